// The forward pass: one interpreter of ops for every architecture.
#include "program.h"

#include <string>

#include "../elementwise/elementwise.h"
#include "../embedding/embedding.h"
#include "../linear/linear.h"
#include "../norm/group.h"

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

Op compile_embed(const Resolver& find, const pen_embed& op) {
  Embed args{};
  args.table = find.matrix(op.table);
  args.last = find.m.sampler.last;
  args.x = find.floats(op.out);
  args.scale = op.scale;
  args.types = find.vector(op.types, args.table.cols);
  if (op.positions != PEN_NONE) args.positions = find.matrix(op.positions);
  if (find.buffer(op.out, PEN_F32).ld != args.table.cols) throw StatusError(PEN_INVALID_ARG, "an embedding does not fit its buffer");
  return [=](const Pass& pass) {
    Embed now = args;
    now.inputs = pass.step.inputs;
    now.position = pass.step.view.positions;
    now.token_type = pass.step.token_types;
    now.num_tokens = pass.tokens;
    embed(pass.launch, now);
  };
}

Op compile_normalise(const Resolver& find, const pen_normalise& op) {
  const FinalNorm norm = find.norm(op.norm);
  const Rows& out = find.buffer(op.out, PEN_F16);
  __half* const h = out.data.as<__half>();
  if (!norm.norm.x || out.ld < norm.norm.hidden) throw StatusError(PEN_INVALID_ARG, "a norm has no input, or exceeds its buffer");
  return [=, ld = out.ld](const Pass& pass) { write_norm(pass.launch, norm, nullptr, pass.tokens, h, ld); };
}

Op compile_linear(const Resolver& find, const pen_linear& op) {
  const FinalNorm norm = find.norm(op.norm);
  const bool halves = op.epilogue == PEN_SILU_MUL || op.epilogue == PEN_GELU_MUL;
  const Rows &in = find.buffer(op.in, PEN_F16), &out = find.buffer(op.out, halves ? PEN_F16 : PEN_F32);
  __half* const x = in.data.as<__half>();
  Linear args = product_of(find.m, x, in.ld, Epilogue(op.epilogue), nullptr, out.ld);
  (halves ? reinterpret_cast<void*&>(args.out16) : reinterpret_cast<void*&>(args.out)) = out.data.as<void>();
  const uint32_t tensors[] = {op.w0, op.w1, op.w2}, offsets[] = {0, op.offset1, op.offset2};
  for (int i = 0; i < MAX_SEGMENTS && tensors[i] != PEN_NONE; i++) {
    const Matrix& w = find.matrix(tensors[i]);
    const int rows = halves ? w.rows / 2 : w.rows;
    if (w.cols != int(in.desc.width) || int(offsets[i]) + rows > out.ld || op.epilogue > PEN_GELU_MUL) {
      throw StatusError(PEN_INVALID_ARG, "a product's matrix does not fit its buffers");
    }
    args.w[args.num_segments] = w;
    args.out_offset[args.num_segments++] = int(offsets[i]);
  }
  if (args.num_segments == 0) throw StatusError(PEN_INVALID_ARG, "a product has no matrix");
  return [=, ld = in.ld](const Pass& pass) {
    Linear now = args;
    now.num_tokens = pass.tokens;
    if (norm.norm.x) {
      // With few rows, the product normalises its own input. Otherwise a separate kernel does so first.
      const bool own = norm.kind == NormKind::RMS && takes_norm(pass.launch.device, shape_of(now));
      if (own) now.norm = norm.norm;
      else write_norm(pass.launch, norm, nullptr, pass.tokens, x, ld);
    }
    linear(pass.launch, now);
  };
}

Op compile_group_norm(const Resolver& find, const pen_group_norm& op) {
  const uint64_t length = op.own ? uint64_t(op.heads) * op.dim : op.dim;
  const GroupNorm args{find.operand(op.in, op.heads, op.dim), find.operand(op.out, op.heads, op.dim), int(op.heads), int(op.dim), op.kind,
                       find.vector(op.weight, length), find.vector(op.bias, length), op.own != 0, op.eps, op.length};
  return [=](const Pass& pass) { group_norm(pass.launch, args, pass.tokens); };
}

Op compile_activate(const Resolver& find, const pen_activate& op) {
  const Rows &in = find.buffer(op.gate_up, PEN_F32), &out = find.buffer(op.out, PEN_F16);
  if (in.ld < int(op.dim * (op.gated ? 2 : 1)) || out.ld < int(op.dim)) {
    throw StatusError(PEN_INVALID_ARG, "an activation does not fit its buffers");
  }
  if (op.activation > PEN_XIELU) throw StatusError(PEN_INVALID_ARG, "no such activation");
  float* const gate_up = in.data.as<float>();
  Activate args{gate_up, find.vector(op.gate_bias, op.dim), find.vector(op.up_bias, op.dim), out.data.as<__half>(), in.ld, int(op.dim),
                out.ld, op.gated != 0, Activation(op.activation), {op.xielu0, op.xielu1, op.xielu2, op.xielu3}};
  return [=, cutoff = op.cutoff](const Pass& pass) {
    if (cutoff != 0.0f) keep_largest(pass.launch, gate_up, size_t(args.ld), args.ffn, cutoff, pass.tokens);
    activate(pass.launch, args, pass.tokens);
  };
}

Op compile_map(const Resolver& find, const pen_map& op) {
  const uint64_t n = uint64_t(op.heads) * op.dim;
  const Map args{find.operand(op.in, op.heads, op.dim), find.operand(op.by, op.heads, op.dim), find.operand(op.out, op.heads, op.dim),
                 int(op.heads), int(op.dim), find.vector(op.bias, n),
                 find.vector(op.scale, op.scale_group ? n / op.scale_group : 0), int(op.scale_group), op.f, op.then, op.g,
                 op.by.buffer != PEN_NONE, op.add != 0, op.factor};
  return [=](const Pass& pass) { map(pass.launch, args, pass.tokens); };
}

Op compile_predict(const Resolver& find, const pen_predict& op) {
  float *const streams = find.floats(op.streams), *const router = find.floats(op.router);
  const float* const factors = find.vector(op.coefficients, STREAMS * STREAMS * STREAMS);
  return [=, hidden = int(op.hidden)](const Pass& pass) { predict(pass.launch, streams, router, factors, hidden, pass.tokens); };
}

Op compile_correct(const Resolver& find, const pen_correct& op) {
  float *const streams = find.floats(op.streams), *const router = find.floats(op.router), *const x = find.floats(op.x);
  const float* const factors = find.vector(op.coefficients, STREAMS * STREAMS);
  return [=, hidden = int(op.hidden)](const Pass& pass) { correct(pass.launch, streams, x, router, factors, hidden, pass.tokens); };
}

Op compile_match(const Resolver& find, const pen_match& op) {
  const Operand in = find.operand(op.in, 1, op.dim), like = find.operand(op.like, 1, op.dim), out = find.operand(op.out, 1, op.dim);
  return [=, dim = int(op.dim), add = op.add != 0](const Pass& pass) { match_length(pass.launch, in, like, out, dim, add, pass.tokens); };
}

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
  if (op.bias != PEN_NONE || op.scale != 1.0f) {
    const Operand row{logits, nullptr, size_t(vocab), vocab};
    map(launch, Map{row, {}, row, 1, vocab, find.vector(op.bias, vocab), nullptr, 0, PEN_IDENTITY, PEN_IDENTITY, PEN_IDENTITY, false, false,
                    op.scale}, num_rows);
  }
  if (op.soft_cap > 0.0f) soft_cap(launch, logits, op.soft_cap, num_rows, vocab);
}

}  // namespace

Op compile(const pen_model& m, const pen_op& op) {
  const Resolver find(m);
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
    default: throw StatusError(PEN_INVALID_ARG, "op " + std::to_string(op.kind) + " does not exist");
  }
}

void forward(pen_model& m, const pen_kv& kv, const Step& step) {
  const Pass pass{m, kv, step, m.launch(true), step.view.num_tokens};
  for (const Op& op : m.program) op(pass);
  if (step.num_rows > 0) queue_head(m, pass.launch, step.gather, step.num_rows);
}

FinalNorm final_norm(const pen_model& m) { return Resolver(m).norm(m.desc.head.norm); }

void head(pen_model& m, const int32_t* rows, int num_rows) { queue_head(m, m.launch(false), rows, num_rows); }

}  // namespace pen
