// The forward pass: one list of instructions for every architecture.
#include "program.h"

#include <algorithm>
#include <string>

#include "../adapters/adapters.h"
#include "../elementwise/elementwise.h"
#include "../elementwise/exchange.h"
#include "../embedding/embedding.h"
#include "../linear/linear.h"
#include "../norm/group.h"
#include "encode.h"
#include "slicing.h"

namespace pen {

namespace {

Linear product_of(const pen_model& m, const __half* x, int ldx, Epilogue epilogue, float* out, int ldo) {
  Linear args{};
  args.x = x;
  args.ldx = ldx;
  args.out = out;
  args.ldo = ldo;
  args.epilogue = epilogue;
  args.slabs = m.scratch.workspace.as<float>();
  args.slab_bytes = m.scratch.workspace.size();
  args.arrivals = m.scratch.arrivals.as<uint32_t>();
  return args;
}

// h [rows, ld] = the norm of rows of x: the first ones, or those that `gather` lists.
void write_norm(const Launch& launch, const FinalNorm& n, const int32_t* gather, int rows, __half* h, int ld) {
  if (n.kind == NormKind::RMS) return rms_norm(launch, n.norm, gather, rows, h, ld);
  layer_norm(launch, LayerNorm{n.norm.x, n.norm.weight, n.bias, n.norm.hidden, n.norm.eps, gather, h, ld, n.kind == NormKind::NONE}, rows);
}

Instruction compile_embed(const Resolver& find, const pen_embed& op) {
  Embed args{};
  args.table = find.matrix(op.table);
  args.last = find.m.sampler.last;
  args.x = find.floats(op.out);
  args.pads_embeddings = op.pads_embeddings != 0;
  args.scale = op.scale;
  args.types = find.vector(op.types, args.table.cols);
  if (op.positions != PEN_NONE) args.positions = find.matrix(op.positions);
  if (find.buffer(op.out, PEN_F32).ld != args.table.cols) throw StatusError(PEN_INVALID_ARG, "an embedding does not fit its buffer");
  return {Kind::EMBED, args};
}

void run_embed(const Instruction& instruction, const Pass& pass) {
  Embed now = instruction.as<Embed>();
  now.inputs = pass.step.inputs;
  now.position = pass.step.view.positions;
  now.token_type = pass.step.token_types;
  now.num_tokens = pass.tokens;
  embed(pass.launch, now);
}

struct Normalise {
  FinalNorm norm;
  __half* h;
  int ld;
};

Instruction compile_normalise(const Resolver& find, const pen_normalise& op) {
  const FinalNorm norm = find.norm(op.norm);
  const Rows& out = find.buffer(op.out, PEN_F16);
  __half* const h = out.data.as<__half>();
  if (!norm.norm.x || out.ld < norm.norm.hidden) throw StatusError(PEN_INVALID_ARG, "a norm has no input, or exceeds its buffer");
  return {Kind::NORMALISE, Normalise{norm, h, out.ld}};
}

void run_normalise(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<Normalise>();
  write_norm(pass.launch, op.norm, nullptr, pass.tokens, op.h, op.ld);
}

struct Product {
  FinalNorm norm;  // without x: the input is normalised already
  Linear product;
  __half* x;  // the product's input
  uint32_t sites[MAX_SEGMENTS];  // the tensors that adapters change: those of the product, or gate and up
};

Instruction compile_linear(const Resolver& find, const pen_linear& op) {
  const FinalNorm norm = find.norm(op.norm);
  const bool halves = op.epilogue == PEN_SILU_MUL || op.epilogue == PEN_GELU_MUL;
  const Rows &in = find.buffer(op.in, PEN_F16), &out = find.buffer(op.out, halves ? PEN_F16 : PEN_F32);
  __half* const x = in.data.as<__half>();
  if (op.first % K_TILE != 0 || op.first > in.desc.width) throw StatusError(PEN_INVALID_ARG, "a product begins at no K tile of its input");
  Linear args = product_of(find.m, x + op.first, in.ld, Epilogue(op.epilogue), nullptr, out.ld);
  const uint32_t cols = in.desc.width - op.first;
  args.slicing = slicing_of(op, int(cols));
  (halves ? reinterpret_cast<void*&>(args.out16) : reinterpret_cast<void*&>(args.out)) = out.data.as<void>();
  const uint32_t tensors[] = {op.w0, op.w1, op.w2}, offsets[] = {0, op.offset1, op.offset2};
  for (int i = 0; i < MAX_SEGMENTS && tensors[i] != PEN_NONE; i++) {
    const Matrix& w = find.matrix(tensors[i]);
    const int rows = halves ? w.rows / 2 : w.rows;
    // beyond the columns of a K tile there are zeros
    const bool reads = w.cols == int(cols) || (w.cols < int(cols) && w.cols % K_TILE == 0);
    if (!reads || int(offsets[i]) + rows > out.ld || op.epilogue > PEN_GELU_MUL) {
      throw StatusError(PEN_INVALID_ARG, "a product's matrix does not fit its buffers");
    }
    args.w[args.num_segments] = w;
    args.out_offset[args.num_segments++] = int(offsets[i]);
  }
  if (args.num_segments == 0) throw StatusError(PEN_INVALID_ARG, "a product has no matrix");
  return {Kind::LINEAR, Product{norm, args, x, {op.w0, halves ? op.w0 + 1 : op.w1, op.w2}}};
}

// Gate and up with their changes. A row without a change keeps what the product has written.
void run_gated_change(const Product& op, const Adapters& adapters, const LowRank* const (&changes)[MAX_CHANGED], const Pass& pass) {
  const int ffn = op.product.w[0].rows / 2;
  for (int first = 0; first < pass.tokens; first += Adapters::ROWS_PER_PASS) {
    const int rows = std::min(pass.tokens - first, Adapters::ROWS_PER_PASS);
    Linear sums = op.product;
    sums.x += size_t(first) * sums.ldx;
    sums.num_tokens = rows;
    sums.epilogue = Epilogue::STORE;
    sums.out = adapters.sums();
    sums.out16 = nullptr;
    sums.ldo = 2 * ffn;
    linear(pass.launch, sums);
    GatedChange gated{adapters.change(2, rows, nullptr), sums.out, sums.ldo, ffn, op.product.out16 + size_t(first) * op.product.ldo,
                      op.product.ldo, op.product.epilogue == Epilogue::SILU_MUL ? Activation::SILU : Activation::GELU};
    Change& change = gated.change;
    change.rows.place += first, change.rows.scale += first;
    std::copy_n(changes, 2, change.changes);
    change.x = sums.x, change.ldx = sums.ldx, change.cols = sums.w[0].cols;
    shrink(pass.launch, change);
    expand_gated(pass.launch, gated);
  }
}

// Changes the rows of a product that have adapters. The product's input is in memory.
void run_change(const Product& op, const Adapters& adapters, const LowRank* const (&changes)[MAX_CHANGED], const Pass& pass) {
  if (is_gated(op.product.epilogue)) return run_gated_change(op, adapters, changes, pass);
  const Linear& product = op.product;
  Change change = adapters.change(product.num_segments, pass.tokens, nullptr);
  std::copy_n(changes, MAX_CHANGED, change.changes);
  change.x = product.x, change.ldx = product.ldx, change.cols = product.w[0].cols;
  change.out = product.out, change.ldo = product.ldo;
  for (int i = 0; i < product.num_segments; i++) change.offset[i] = product.out_offset[i], change.num_outs[i] = product.w[i].rows;
  shrink(pass.launch, change);
  expand(pass.launch, change);
}

void run_linear(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<Product>();
  Linear now = op.product;
  now.num_tokens = pass.tokens;
  const LowRank* changes[MAX_CHANGED] = {};
  bool changed = false;
  for (int i = 0; pass.adapters && i < MAX_CHANGED; i++) {
    changes[i] = op.sites[i] == PEN_NONE ? nullptr : pass.adapters->changes(op.sites[i], false);
    changed = changed || changes[i];
  }
  if (op.norm.norm.x) {
    // With few rows, the product normalises its own input. Otherwise a separate kernel does so first, as it does for adapters.
    const bool own = !changed && op.norm.kind == NormKind::RMS && takes_norm(pass.launch.device, shape_of(now));
    if (own) now.norm = op.norm.norm;
    else write_norm(pass.launch, op.norm, nullptr, pass.tokens, op.x, now.ldx);
  }
  // The product of gate and up has no use if all rows get another one.
  if (!changed || !is_gated(now.epilogue) || !pass.adapters->covered()) linear(pass.launch, now);
  if (changed) run_change(op, *pass.adapters, changes, pass);
}

Instruction compile_group_norm(const Resolver& find, const pen_group_norm& op) {
  const uint64_t length = op.own ? uint64_t(op.heads) * op.dim : op.dim;
  const GroupNorm args{find.operand(op.in, op.heads, op.dim), find.operand(op.out, op.heads, op.dim), int(op.heads), int(op.dim), op.kind,
                       find.vector(op.weight, length), find.vector(op.bias, length), op.own != 0, op.eps, op.length};
  return {Kind::GROUP_NORM, args};
}

void run_group_norm(const Instruction& instruction, const Pass& pass) {
  group_norm(pass.launch, instruction.as<GroupNorm>(), pass.tokens);
}

struct ActivateRows {
  Activate rows;
  float* gate_up;  // the rows' input, which a cutoff changes in place
  float cutoff;    // 0: none
};

Instruction compile_activate(const Resolver& find, const pen_activate& op) {
  const Rows &in = find.buffer(op.gate_up, PEN_F32), &out = find.buffer(op.out, PEN_F16);
  if (in.ld < int(op.dim * (op.gated ? 2 : 1)) || out.ld < int(op.dim)) {
    throw StatusError(PEN_INVALID_ARG, "an activation does not fit its buffers");
  }
  if (op.activation > PEN_XIELU && op.activation != PEN_GELU_QUICK) throw StatusError(PEN_INVALID_ARG, "no such activation");
  float* const gate_up = in.data.as<float>();
  Activate args{gate_up, find.vector(op.gate_bias, op.dim), find.vector(op.up_bias, op.dim), out.data.as<__half>(), in.ld, int(op.dim),
                out.ld, op.gated != 0, Activation(op.activation), {op.xielu0, op.xielu1, op.xielu2, op.xielu3}};
  return {Kind::ACTIVATE, ActivateRows{args, gate_up, op.cutoff}};
}

void run_activate(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<ActivateRows>();
  if (op.cutoff != 0.0f) keep_largest(pass.launch, op.gate_up, size_t(op.rows.ld), op.rows.ffn, op.cutoff, pass.tokens);
  activate(pass.launch, op.rows, pass.tokens);
}

Instruction compile_map(const Resolver& find, const pen_map& op) {
  const uint64_t n = uint64_t(op.heads) * op.dim;
  const Map args{find.operand(op.in, op.heads, op.dim), find.operand(op.by, op.heads, op.dim), find.operand(op.out, op.heads, op.dim),
                 int(op.heads), int(op.dim), find.vector(op.bias, n),
                 find.vector(op.scale, op.scale_group ? n / op.scale_group : 0), int(op.scale_group), op.f, op.then, op.g,
                 op.by.buffer != PEN_NONE, op.add != 0, op.factor};
  return {Kind::MAP, args};
}

void run_map(const Instruction& instruction, const Pass& pass) { map(pass.launch, instruction.as<Map>(), pass.tokens); }

Instruction compile_exchange(const Resolver& find, const pen_exchange& op) {
  const uint32_t parts[] = {op.part0, op.part1, op.part2, op.part3, op.part4, op.part5, op.part6, op.part7};
  const uint32_t outs[] = {op.out0, op.out1, op.out2, op.out3, op.out4, op.out5, op.out6, op.out7};
  Exchange args{};
  args.add = op.add != 0;
  if (op.num_parts > SLICES || op.num_parts % 2 != 0 || op.num_parts == 0) throw StatusError(PEN_INVALID_ARG, "parts that are no halves");
  args.num_parts = int(op.num_parts);
  args.half = op.halves ? args.num_parts / 2 : args.num_parts;
  args.width = int(find.buffer(op.out0, PEN_F32).desc.width);
  const auto rows = [&](uint32_t index) {
    if (find.buffer(index, PEN_F32).desc.width != uint32_t(args.width)) throw StatusError(PEN_INVALID_ARG, "parts differ in width");
    return find.floats(index);
  };
  for (uint32_t i = 0; i < op.num_parts; i++) args.parts[i] = parts[i] == PEN_NONE ? nullptr : rows(parts[i]);
  for (const uint32_t out : outs) {
    if (out != PEN_NONE) args.outs[args.num_outs++] = rows(out);
  }
  return {Kind::EXCHANGE, args};
}

void run_exchange(const Instruction& instruction, const Pass& pass) { exchange(pass.launch, instruction.as<Exchange>(), pass.tokens); }

// The arguments of both ops on several residual streams.
struct Streams {
  float *streams, *x, *router;  // x: only to correct
  const float* factors;
  int hidden;
};

Instruction compile_predict(const Resolver& find, const pen_predict& op) {
  const float* const factors = find.vector(op.coefficients, STREAMS * STREAMS * STREAMS);
  return {Kind::PREDICT, Streams{find.floats(op.streams), nullptr, find.floats(op.router), factors, int(op.hidden)}};
}

void run_predict(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<Streams>();
  predict(pass.launch, op.streams, op.router, op.factors, op.hidden, pass.tokens);
}

Instruction compile_correct(const Resolver& find, const pen_correct& op) {
  const float* const factors = find.vector(op.coefficients, STREAMS * STREAMS);
  return {Kind::CORRECT, Streams{find.floats(op.streams), find.floats(op.x), find.floats(op.router), factors, int(op.hidden)}};
}

void run_correct(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<Streams>();
  correct(pass.launch, op.streams, op.x, op.router, op.factors, op.hidden, pass.tokens);
}

struct Match {
  Operand in, like, out;
  int dim;
  bool add;
};

Instruction compile_match(const Resolver& find, const pen_match& op) {
  const auto row = [&](const pen_part& part) { return find.operand(part, 1, op.dim); };
  return {Kind::MATCH, Match{row(op.in), row(op.like), row(op.out), int(op.dim), op.add != 0}};
}

void run_match(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<Match>();
  match_length(pass.launch, op.in, op.like, op.out, op.dim, op.add, pass.tokens);
}

// The functions that run the instructions, by kind.
constexpr Run* RUN[] = {
    run_embed,     run_normalise,         run_group_norm, run_linear, run_each_head, run_activate, run_map,     run_heads,
    run_attention, run_general_attention, run_convolve,   run_scan,   run_delta,     run_experts,  run_predict, run_correct,
    run_match,     run_exchange,          run_add_slice,  run_patches, run_mix,     run_among,
};
static_assert(FIRST_EMBEDDING == PEN_FIRST_EMBEDDING, "the header's value is the kernel's");
static_assert(sizeof(RUN) / sizeof(*RUN) == size_t(Kind::COUNT), "each kind has a function");

// Queues the logits of the rows that `gather` lists, or of the first ones if it is null.
void queue_head(pen_model& m, const Launch& launch, const int32_t* gather, int num_rows) {
  const Scratch& s = m.scratch;
  const pen_head& op = m.desc.head;
  const Resolver find(m);
  __half* const h = s.last.as<__half>();
  // The norm is not fused: the product has too many blocks for each of them to normalise its own input.
  write_norm(launch, find.norm(op.norm), gather, num_rows, h, s.ld_hidden);
  const int vocab = m.desc.vocab_size;
  float* const logits = s.logits.as<float>();
  Linear product = product_of(m, h, s.ld_hidden, Epilogue::STORE, logits, vocab);
  product.w[0] = find.matrix(op.w);
  product.num_segments = 1;
  product.num_tokens = num_rows;
  linear(launch, product);
  if (const LowRank* const changes = m.adapters.changes(PEN_NONE, true)) {
    Change change = m.adapters.change(1, num_rows, gather);
    change.changes[0] = changes;
    change.x = h, change.ldx = s.ld_hidden, change.cols = product.w[0].cols;
    change.out = logits, change.ldo = vocab, change.num_outs[0] = vocab;
    shrink(launch, change);
    expand(launch, change);
  }
  if (op.bias != PEN_NONE || op.scale != 1.0f) {
    const Operand row{logits, nullptr, size_t(vocab), vocab};
    map(launch, Map{row, {}, row, 1, vocab, find.vector(op.bias, vocab), nullptr, 0, PEN_IDENTITY, PEN_IDENTITY, PEN_IDENTITY, false, false,
                    op.scale}, num_rows);
  }
  if (op.soft_cap > 0.0f) soft_cap(launch, logits, op.soft_cap, num_rows, vocab);
}

}  // namespace

namespace {

Instruction compile_kind(const Resolver& find, const pen_op& op) {
  switch (op.kind) {
    case PEN_OP_EMBED: return compile_embed(find, *static_cast<const pen_embed*>(op.args));
    case PEN_OP_NORMALISE: return compile_normalise(find, *static_cast<const pen_normalise*>(op.args));
    case PEN_OP_GROUP_NORM: return compile_group_norm(find, *static_cast<const pen_group_norm*>(op.args));
    case PEN_OP_LINEAR: return compile_linear(find, *static_cast<const pen_linear*>(op.args));
    case PEN_OP_EACH_HEAD: return compile_each_head(find, *static_cast<const pen_each_head*>(op.args));
    case PEN_OP_ACTIVATE: return compile_activate(find, *static_cast<const pen_activate*>(op.args));
    case PEN_OP_MAP: return compile_map(find, *static_cast<const pen_map*>(op.args));
    case PEN_OP_HEADS: return compile_heads(find, *static_cast<const pen_heads*>(op.args));
    case PEN_OP_ATTENTION: return compile_attention(find, *static_cast<const pen_attention*>(op.args));
    case PEN_OP_CONVOLVE: return compile_convolve(find, *static_cast<const pen_convolve*>(op.args));
    case PEN_OP_SCAN: return compile_scan(find, *static_cast<const pen_scan*>(op.args));
    case PEN_OP_DELTA: return compile_delta(find, *static_cast<const pen_delta*>(op.args));
    case PEN_OP_EXPERTS: return compile_experts(find, *static_cast<const pen_experts*>(op.args));
    case PEN_OP_PREDICT: return compile_predict(find, *static_cast<const pen_predict*>(op.args));
    case PEN_OP_CORRECT: return compile_correct(find, *static_cast<const pen_correct*>(op.args));
    case PEN_OP_MATCH: return compile_match(find, *static_cast<const pen_match*>(op.args));
    case PEN_OP_EXCHANGE: return compile_exchange(find, *static_cast<const pen_exchange*>(op.args));
    case PEN_OP_ADD_SLICE: return compile_add_slice(find, *static_cast<const pen_add_slice*>(op.args));
    case PEN_OP_PATCHES: return compile_patches(find, *static_cast<const pen_patches*>(op.args));
    case PEN_OP_MIX: return compile_mix(find, *static_cast<const pen_mix*>(op.args));
    case PEN_OP_AMONG: return compile_among(find, *static_cast<const pen_among*>(op.args));
    default: throw StatusError(PEN_INVALID_ARG, "op " + std::to_string(op.kind) + " does not exist");
  }
}

}  // namespace

Instruction compile(const pen_model& m, const pen_op& op) {
  Instruction instruction = compile_kind(Resolver(m), op);
  instruction.set_rows(op.rows);
  return instruction;
}

double product_weights(const Instruction& instruction) {
  const Linear& product = instruction.as<Product>().product;
  double weights = 0.0;
  for (int i = 0; i < product.num_segments; i++) weights += double(product.w[i].rows) * product.w[i].cols;
  return weights;
}

void run_program(pen_model& m, const Step& step, const PictureStep& pictures, const Slice& slice) {
  Pass pass{nullptr, step, m.launch(true), 0, &pictures};
  pass.launch.stream = slice.stream;
  // The first kernel waits for what came before it on the stream, which may be another model's.
  const bool overlap = pass.launch.overlap;
  pass.launch.overlap = false;
  for (size_t i = slice.first; i < slice.end; i++) {
    pass.tokens = pictures.rows[m.program[i].rows()];
    if (pass.tokens == 0) continue;
    RUN[size_t(m.program[i].kind())](m.program[i], pass);
    pass.launch.overlap = overlap;
  }
}

void forward(pen_model& m, const pen_kv& kv, const Step& step) {
  const Pass pass{&kv, step, m.launch(true), step.view.num_tokens, nullptr, m.adapters.in_step() ? &m.adapters : nullptr};
  // Kernels may read the rows of slots before they wait, so the first one follows only when these have moved on.
  Pass first = pass;
  first.launch.overlap = pass.launch.overlap && !step.of_slots;
  for (const Instruction& instruction : m.program) {
    RUN[size_t(instruction.kind())](instruction, &instruction == m.program.data() ? first : pass);
  }
  const int rows = step.shares_slots ? std::min(step.num_rows, int(m.desc.max_slots)) : step.num_rows;
  if (rows > 0 && m.has_head()) queue_head(m, pass.launch, step.gather, rows);
}

void place_embeddings(pen_model& m, const pen_batch& b, InFlight& f) {
  const size_t hidden = m.desc.hidden_dim, further = m.desc.slices * hidden, width = hidden + further;
  const size_t bytes = b.num_tokens * width * sizeof(float);
  if (b.num_embeddings == 0) return;
  if (f.embeddings.size() < bytes) f.embeddings = Pinned(bytes);
  float *const rows = f.embeddings.as<float>(), *const slices = rows + b.num_tokens * hidden;
  std::vector<float*> places = m.inputs;
  for (const Instruction& instruction : m.program) {
    if (instruction.kind() == Kind::EMBED && !instruction.as<Embed>().pads_embeddings) places.push_back(instruction.as<Embed>().x);
  }
  const auto is_given = [&](uint32_t row) { return row < b.num_tokens && b.inputs[row] <= PEN_FIRST_EMBEDDING; };
  for (uint32_t first = 0, end; first < b.num_tokens; first = end + 1) {
    for (end = first; is_given(end); end++) {
      const float* const embedding = b.embeddings + size_t(PEN_FIRST_EMBEDDING - b.inputs[end]) * width;
      std::copy_n(embedding, hidden, rows + end * hidden);
      std::copy_n(embedding + hidden, further, slices + end * further);
    }
    const auto send = [&](float* to, const float* from, size_t of) {
      if (end == first || of == 0) return;
      const size_t bytes = (end - first) * of * sizeof(float);
      check(cudaMemcpyAsync(to + first * of, from + first * of, bytes, cudaMemcpyHostToDevice, m.stream.handle), "copying embeddings");
    };
    send(m.scratch.slices.as<float>(), slices, further);
    for (float* const place : places) send(place, rows, hidden);
  }
}

FinalNorm final_norm(const pen_model& m) { return Resolver(m).norm(m.desc.head.norm); }

void head(pen_model& m, const int32_t* rows, int num_rows) { queue_head(m, m.launch(false), rows, num_rows); }

}  // namespace pen
