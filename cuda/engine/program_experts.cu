// Compiles and runs ops that multiply rows by matrices of a stack: experts, and heads that have a matrix each.
#include "../experts/decode.h"
#include "../experts/experts.h"
#include "../experts/stack.h"
#include "program.h"

namespace pen {

namespace {

// A step's choices, sorted into groups.
struct Sorted {
  int choices, experts, each, least;
};

Groups group(const Launch& launch, const ExpertScratch& e, const Sorted& s) {
  const Groups groups(s.choices, s.experts, s.each, s.least);
  group_choices(launch, Grouping{e.chosen.as<int32_t>(), s.choices, s.experts, groups.size, groups.most, e.expert_of.as<int32_t>(),
                                 e.order.as<int32_t>(), e.num_groups.as<int32_t>()});
  return groups;
}

ExpertLinear product_of(const ExpertScratch& e, int group, const Matrix& w, const __half* x, int ldx, int share, float* out, int ldo) {
  ExpertLinear args{};
  args.w[0] = w;
  args.num_segments = 1;
  args.expert_of = e.expert_of.as<int32_t>();
  args.order = e.order.as<int32_t>();
  args.num_groups = e.num_groups.as<int32_t>();
  args.group = group;
  args.x = x;
  args.ldx = ldx;
  args.share = share;
  args.out = out;
  args.ldo = ldo;
  return args;
}

// An op of experts, with the tensors and buffers that it names.
struct Experts {
  pen_experts op;
  const ExpertScratch* scratch;
  Routing routing;
  Matrix gate, up, down;
  bool fused;  // gate and up share a matrix
  const __half* in;
  int ld_in, ld_hidden;
  __half* hidden;
  const float *gate_bias, *up_bias, *down_bias;
  Activation activation;
  Combine combine;
  bool has_decode;
  ExpertDecode decode;

  void run(const Pass& pass) const;
  void widen(const Pass& pass, const Groups& groups, const __half* x, int ldx, int share) const;
};

void Experts::run(const Pass& pass) const {
  const ExpertScratch& e = *scratch;
  const int tokens = pass.tokens, used = int(op.used), choices = tokens * used;
  if (has_decode && tokens <= DECODE_ROWS) {
    ExpertDecode few = decode;
    few.routing.slot_mapping = few.combine.slot_mapping = pass.step.view.slot_mapping;
    few.routing.num_rows = tokens;
    if (takes_decode(pass.launch.device, few)) return expert_decode(pass.launch, few);
  }
  const int experts = op.chunk_group ? ceil_div(int(op.count), int(op.chunk_group)) : int(op.count);
  Routing route_now = routing;
  route_now.slot_mapping = pass.step.view.slot_mapping;
  route_now.num_rows = tokens;
  route(pass.launch, route_now);
  // Several experts of a row may have the same adjugate.
  const int each = op.chunk_group ? choices : tokens;
  const Groups groups = group(pass.launch, e, {choices, experts, each, least_group(pass.launch.device, up)});
  const __half* x = in;
  int ldx = ld_in, share = used;
  if (op.weigh_input) {
    ldx = int(round_up(op.hidden, K_TILE));
    const WeighInput weighed{in,   e.weights.as<float>(), e.chosen.as<int32_t>(), e.input.as<__half>(), int(op.hidden),
                             used, ld_in,                 ldx};
    weigh_input(pass.launch, weighed, tokens);
    x = e.input.as<__half>();
    share = 1;
  }
  widen(pass, groups, x, ldx, share);
  const int rows = int(op.hidden);
  expert_linear(pass.launch, product_of(e, groups.size, down, hidden, ld_hidden, 1, e.outputs.as<float>(), rows), groups.most);
  Combine sums = combine;
  sums.slot_mapping = pass.step.view.slot_mapping;
  pen::combine(pass.launch, sums, tokens);
}

// hidden = activation(gate · x) · (up · x) of each choice
void Experts::widen(const Pass& pass, const Groups& groups, const __half* x, int ldx, int share) const {
  const ExpertScratch& e = *scratch;
  const int dim = int(op.dim);
  const float params[4] = {};
  if (fused) {
    ExpertLinear args = product_of(e, groups.size, gate, x, ldx, share, nullptr, ld_hidden);
    args.out16 = hidden;
    args.glu = true;
    args.activation = activation;
    args.gate_bias = gate_bias;
    args.up_bias = up_bias;
    return expert_linear(pass.launch, args, groups.most);
  }
  const bool gated = op.gate != PEN_NONE;
  ExpertLinear args = product_of(e, groups.size, gated ? gate : up, x, ldx, share, e.gate_up.as<float>(), gated ? 2 * dim : dim);
  if (gated) {
    args.w[1] = up;
    args.out_offset[1] = dim;
    args.num_segments = 2;
  }
  expert_linear(pass.launch, args, groups.most);
  ExpertActivate act{e.gate_up.as<float>(), e.chosen.as<int32_t>(), gate_bias, up_bias, hidden, dim, ld_hidden, gated, activation, {}};
  std::copy(params, params + 4, act.params);
  expert_activate(pass.launch, act, pass.tokens * int(op.used));
}

}  // namespace

Instruction compile_experts(const Resolver& find, const pen_experts& op) {
  const ExpertScratch& scratch = find.m.scratch.experts;
  const Rows &in = find.buffer(op.in, PEN_F16), &scores = find.buffer(op.scores, PEN_F32), &out = find.buffer(op.out, PEN_F32);
  const uint32_t experts = op.chunk_group ? (op.count + op.chunk_group - 1) / op.chunk_group : op.count;
  const bool gated = op.gate != PEN_NONE;
  const bool fits = in.ld >= int(op.hidden) && scores.ld == int(op.count) && out.ld == int(op.hidden);
  if (!fits || op.activation > PEN_SWIGLU_CLAMPED || op.gating > PEN_GATE_SOFTMAX_OF_CHOSEN) {
    throw StatusError(PEN_INVALID_ARG, "experts do not fit their buffers");
  }
  if (op.used > uint32_t(MAX_USED) || op.groups > uint32_t(MAX_EXPERT_GROUPS)) {
    throw StatusError(PEN_UNSUPPORTED, "more than " + std::to_string(MAX_USED) + " experts per row");
  }
  Experts e{};
  e.op = op;
  e.scratch = &scratch;
  e.fused = gated && find.m.tensors.at(op.gate).placement == Placement::UPPER_HALF;
  if (gated) e.gate = find.matrix(op.gate, e.fused ? 2 * op.dim : op.dim, op.hidden);
  e.up = e.fused ? e.gate : find.matrix(op.up, op.dim, op.hidden);
  e.down = find.matrix(op.down, op.hidden, op.dim);
  for (const uint32_t stack : {op.up, op.down}) {
    if (find.m.tensors.at(stack).count != experts) throw StatusError(PEN_INVALID_ARG, "a stack has the wrong number of experts");
  }
  e.in = in.data.as<__half>();
  e.ld_in = in.ld;
  e.hidden = scratch.hidden.at(op.dim).as<__half>();
  e.ld_hidden = int(round_up(op.dim, K_TILE));
  e.gate_bias = find.vector(op.gate_bias, uint64_t(experts) * op.dim);
  e.up_bias = find.vector(op.up_bias, uint64_t(experts) * op.dim);
  e.down_bias = find.vector(op.down_bias, uint64_t(experts) * op.hidden);
  e.activation = Activation(op.activation);
  const float* const shared_router = find.vector(op.shared_router, op.hidden);
  Routing& r = e.routing;
  r.scores = scores.data.as<float>();
  r.h = e.in;
  r.shared_router = shared_router;
  r.num_experts = int(op.count);
  r.used = int(op.used);
  r.ldh = in.ld;
  r.hidden = int(op.hidden);
  r.normalise = op.normalise != 0;
  r.chosen = scratch.chosen.as<int32_t>();
  r.weights = scratch.weights.as<float>();
  r.share = scratch.share.as<float>();
  r.gating = Gating(op.gating);
  r.choice_bias = find.vector(op.choice_bias, op.count);
  r.groups = int(op.groups);
  r.groups_used = int(op.groups_used);
  r.scale = op.scale;
  r.output_scales = find.vector(op.output_scales, op.count);
  r.chunk_group = int(op.chunk_group);
  Combine& c = e.combine;
  c.outputs = scratch.outputs.as<float>();
  c.weights = op.weigh_input ? nullptr : r.weights;
  c.shared = op.shared == PEN_NONE ? nullptr : find.floats(op.shared);
  c.share = shared_router ? r.share : nullptr;
  c.out = out.data.as<float>();
  c.hidden = int(op.hidden);
  c.used = int(op.used);
  c.add = op.add != 0;
  c.factor = op.factor;
  c.mean_shared = op.mean_shared != 0;
  c.chosen = r.chosen;
  c.num_experts = int(experts);
  c.down_bias = e.down_bias;
  e.has_decode = e.fused && !op.chunk_group && !op.weigh_input && scratch.outputs.size() >= lists_bytes();
  if (e.has_decode) {
    ExpertDecode& d = e.decode;
    d.routing = r;
    d.gate_up = e.gate;
    d.down = e.down;
    d.x = e.in;
    d.ldx = e.ld_in;
    d.hidden = e.hidden;
    d.ld_hidden = e.ld_hidden;
    d.activation = e.activation;
    d.gate_bias = e.gate_bias;
    d.up_bias = e.up_bias;
    d.combine = c;
    d.lists = scratch.outputs.as<void>();  // not used by those kernels otherwise
  }
  return {Kind::EXPERTS, e};
}

void run_experts(const Instruction& instruction, const Pass& pass) { instruction.as<Experts>().run(pass); }

namespace {

// Heads that have a matrix each.
struct EachHead {
  Linear all;  // all heads' matrices as one, whose rows of x and y hold the heads side by side
  const ExpertScratch* scratch;
  Matrix w;
  int ldx, ldy;  // of one head's rows
  int heads;
};

}  // namespace

Instruction compile_each_head(const Resolver& find, const pen_each_head& op) {
  const Rows &in = find.buffer(op.in, PEN_F16), &out = find.buffer(op.out, PEN_F32);
  const Matrix& w = find.matrix(op.stack);
  const bool fits = w.cols == int(in.desc.width) && w.rows == out.ld && in.desc.per_token == op.heads && out.desc.per_token == op.heads;
  if (!fits || find.m.tensors.at(op.stack).count != op.heads) throw StatusError(PEN_INVALID_ARG, "heads' matrices do not fit");
  Linear all{};
  all.w[0] = w;
  all.w[0].rows *= int(op.heads);
  all.num_segments = 1;
  all.x = in.data.as<__half>();
  all.ldx = in.ld * int(op.heads);
  all.out = out.data.as<float>();
  all.ldo = out.ld * int(op.heads);
  all.epilogue = Epilogue::STORE;
  all.stacked = int(op.heads);
  return {Kind::EACH_HEAD, EachHead{all, &find.m.scratch.experts, w, in.ld, out.ld, int(op.heads)}};
}

void run_each_head(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<EachHead>();
  const ExpertScratch& e = *op.scratch;
  const int tokens = pass.tokens;
  Linear now = op.all;
  now.num_tokens = tokens;
  const StackPlan plan = choose_stack(product_device(pass.launch.device), op.w, tokens, op.heads);
  if (plan.whole && op.ldx == op.w.cols && linear_stack(pass.launch, now)) return;
  const HeadGroups groups{tokens,  op.heads, plan.group, e.expert_of.as<int32_t>(), e.order.as<int32_t>(),
                          e.num_groups.as<int32_t>()};
  group_heads(pass.launch, groups);
  expert_linear(pass.launch, product_of(e, groups.group, op.w, now.x, op.ldx, 1, now.out, op.ldy), groups.count());
}

}  // namespace pen
