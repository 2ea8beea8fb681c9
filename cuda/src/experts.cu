// Host side of layers with experts: routing, groups, products, sums.
#include "experts.h"

#include <algorithm>

#include "../ops/dense.cuh"
#include "model.h"

namespace pen {

namespace {

template <int MT, int NT>
void run(const Launch& launch, const ExpertLinear& args, int groups) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += ceil_div(args.w[i].tiles(), MT);
  constexpr size_t bytes = LinearShared<MT, NT>::bytes;
  static const bool once = [] {
    check(cudaFuncSetAttribute(expert_kernel<MT, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "shared memory");
    return true;
  }();
  (void)once;
  launch(expert_kernel<MT, NT>, dim3(tiles, groups), dim3(SLICES * WARP), bytes, args);
}

// How a step's choices are grouped: many of them make large groups. Free of numeric meaning.
struct Groups {
  int size, most;
  Groups(int choices, int experts) {
    const int each = choices / experts;
    size = each <= 8 ? 8 : each <= 32 ? 32 : 64;
    most = most_groups(choices, experts, size);
  }
};

struct Sizes {
  size_t scores, choices, share, expert_of, order, gate_up, hidden, outputs, shared;
  int ld;
  Sizes(const pen_model_desc& d, size_t rows, bool separate) {
    const size_t all = rows * d.experts_used;
    ld = int(round_up(d.expert_ffn_dim, CHUNK));
    scores = rows * d.num_experts * 4;
    choices = all * 4;
    share = rows * 4;
    // Whatever the step's groups are: no more than there are of eight, with no more places than groups of 64 have.
    expert_of = size_t(most_groups(int(all), int(d.num_experts), 8)) * 4;
    order = (all + size_t(d.num_experts) * 64) * 4;
    gate_up = separate ? all * 2 * d.expert_ffn_dim * 4 : 0;
    hidden = all * ld * 2;
    outputs = all * d.hidden_dim * 4;
    shared = d.ffn_dim ? rows * d.hidden_dim * 4 : 0;
  }
};

void expert_linear(const Launch& launch, const ExpertLinear& args, const Groups& groups) {
  if (groups.size == 8) return run<1, 1>(launch, args, groups.most);
  if (groups.size == 32) return run<1, 4>(launch, args, groups.most);
  run<2, 8>(launch, args, groups.most);
}

struct Pass {
  pen_model& m;
  const Launch& launch;
  const Layer& l;
  const ExpertStep& step;

  Linear product(const Matrix& w, const __half* x, int ldx, float* out, int ldo) const {
    Linear args{};
    args.w[0] = w;
    args.num_segments = 1;
    args.x = x;
    args.ldx = ldx;
    args.num_tokens = step.num_rows;
    args.out = out;
    args.ldo = ldo;
    args.epilogue = Epilogue::STORE;
    args.slabs = m.scratch.attention.as<float>();
    args.slab_bytes = m.scratch.attention.size();
    args.arrivals = m.scratch.arrivals.as<uint32_t>();
    return args;
  }

  Epilogue activation() const { return m.desc.activation == 0 ? Epilogue::SILU_MUL : Epilogue::GELU_MUL; }

  // The shared expert is a dense layer for all rows.
  void shared() const {
    const Scratch& s = m.scratch;
    const int ffn = m.desc.ffn_dim;
    if (l.shared.fused) {
      Linear args = product(l.shared.gate_up, s.h.as<__half>(), s.ld_hidden, nullptr, s.ld_ffn);
      args.epilogue = activation();
      args.out16 = s.ffn.as<__half>();
      linear(launch, args);
    } else {
      Linear args = product(l.shared.gate, s.h.as<__half>(), s.ld_hidden, s.gate_up.as<float>(), 2 * ffn);
      args.w[1] = l.shared.up;
      args.out_offset[1] = ffn;
      args.num_segments = 2;
      linear(launch, args);
      activate(s.gate_up.as<float>(), s.ffn.as<__half>(), ffn, s.ld_ffn, step.num_rows);
    }
    linear(launch, product(l.shared.down, s.ffn.as<__half>(), s.ld_ffn, s.experts.shared.as<float>(), m.desc.hidden_dim));
  }

  void activate(const float* gate_up, __half* h, int ffn, int ld, int rows) const {
    const Activate args{gate_up, nullptr, nullptr, h, ffn, ld, true, activation()};
    launch(activate_kernel, dim3(ceil_div(ffn, DENSE_THREADS), rows), dim3(DENSE_THREADS), 0, args);
  }

  void routed(const Groups& groups) const {
    const Scratch& s = m.scratch;
    const ExpertScratch& e = s.experts;
    const int used = m.desc.experts_used, ffn = m.desc.expert_ffn_dim, choices = step.num_rows * used;
    ExpertLinear args{};
    args.expert_of = e.expert_of.as<int32_t>();
    args.order = e.order.as<int32_t>();
    args.x = s.h.as<__half>();
    args.ldx = s.ld_hidden;
    args.share = used;
    if (l.ffn.fused) {
      args.w[0] = l.ffn.gate_up;
      args.num_segments = 1;
      args.out16 = e.hidden.as<__half>();
      args.ldo = e.ld;
      args.epilogue = activation();
      expert_linear(launch, args, groups);
    } else {
      args.w[0] = l.ffn.gate;
      args.w[1] = l.ffn.up;
      args.out_offset[1] = ffn;
      args.num_segments = 2;
      args.out = e.gate_up.as<float>();
      args.ldo = 2 * ffn;
      args.epilogue = Epilogue::STORE;
      expert_linear(launch, args, groups);
      activate(e.gate_up.as<float>(), e.hidden.as<__half>(), ffn, e.ld, choices);
    }
    ExpertLinear down{};
    down.expert_of = args.expert_of;
    down.order = args.order;
    down.w[0] = l.ffn.down;
    down.num_segments = 1;
    down.x = e.hidden.as<__half>();
    down.ldx = e.ld;
    down.share = 1;
    down.out = e.outputs.as<float>();
    down.ldo = m.desc.hidden_dim;
    down.epilogue = Epilogue::STORE;
    expert_linear(launch, down, groups);
  }
};

}  // namespace

size_t expert_scratch_bytes(const pen_model_desc& d, size_t rows) {
  if (d.num_experts == 0) return 0;
  bool separate = false;
  for (uint32_t i = 0; i < d.num_layers; i++) separate |= !d.layers[i].fused_glu;
  const Sizes z(d, rows, separate);
  return z.scores + 2 * z.choices + z.share + z.expert_of + z.order + z.gate_up + z.hidden + z.outputs + z.shared;
}

void make_expert_scratch(pen_model& m, size_t rows) {
  if (m.desc.num_experts == 0) return;
  const bool separate = std::any_of(m.layers.begin(), m.layers.end(), [](const Layer& l) { return !l.ffn.fused; });
  const Sizes z(m.desc, rows, separate);
  ExpertScratch& e = m.scratch.experts;
  e.scores = Buffer(m.ctx, z.scores, true);
  e.chosen = Buffer(m.ctx, z.choices, true);
  e.weights = Buffer(m.ctx, z.choices, true);
  e.share = Buffer(m.ctx, z.share, true);
  e.expert_of = Buffer(m.ctx, z.expert_of, true);
  e.order = Buffer(m.ctx, z.order, true);
  e.gate_up = Buffer(m.ctx, z.gate_up, true);
  e.hidden = Buffer(m.ctx, z.hidden, true);
  e.outputs = Buffer(m.ctx, z.outputs, true);
  e.shared = Buffer(m.ctx, z.shared, true);
  e.ld = z.ld;
}

void experts(pen_model& m, const Launch& launch, const Layer& l, const ExpertStep& step, float* out, bool add) {
  const pen_model_desc& d = m.desc;
  const Scratch& s = m.scratch;
  const ExpertScratch& e = s.experts;
  const int num_experts = d.num_experts, used = d.experts_used;
  const Groups groups(step.num_rows * used, num_experts);
  const Pass pass{m, launch, l, step};
  linear(launch, pass.product(l.router, s.h.as<__half>(), s.ld_hidden, e.scores.as<float>(), num_experts));
  const Routing routing{e.scores.as<float>(), step.slot_mapping,      s.h.as<__half>(),        l.shared_router,       step.num_rows, num_experts, used,
                        s.ld_hidden,          int(d.hidden_dim),      d.normalise_experts != 0, e.chosen.as<int32_t>(), e.weights.as<float>(),
                        e.share.as<float>()};
  launch(route_kernel, dim3(ceil_div(step.num_rows, ROUTE_WARPS)), dim3(ROUTE_WARPS * WARP), 0, routing);
  const Grouping grouping{e.chosen.as<int32_t>(), step.num_rows * used, num_experts, groups.size, groups.most, e.expert_of.as<int32_t>(),
                          e.order.as<int32_t>()};
  launch(group_kernel, dim3(1), dim3(GROUP_THREADS), size_t(num_experts) * 2 * sizeof(int), grouping);
  pass.routed(groups);
  if (l.shared_router) pass.shared();
  const Combine combine{e.outputs.as<float>(), e.weights.as<float>(), l.shared_router ? e.shared.as<float>() : nullptr, e.share.as<float>(),
                        step.slot_mapping,     out,                   int(d.hidden_dim), used, add};
  launch(combine_kernel, dim3(ceil_div(int(d.hidden_dim), ROUTE_WARPS * WARP), step.num_rows), dim3(ROUTE_WARPS * WARP), 0, combine);
}

}  // namespace pen
