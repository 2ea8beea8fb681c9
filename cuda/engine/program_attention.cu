// Compiles and runs the ops of attention.
#include "../attention/attention.h"
#include "../attention/general.h"
#include "../heads/heads.h"
#include "program.h"

namespace pen {

namespace {

struct CachedAttention {
  Attention attention;
  QkvFinish fresh;
  bool has_fresh;
  uint32_t cache, group;
  GeneralAttention general;  // for steps whose rows see later ones
};

struct CachedGeneralAttention {
  GeneralAttention attention;
  uint32_t cache, group;
  int value_dim;  // of the cache
};

struct FinishHeads {
  Heads heads;
  bool is_cached, values;
  uint32_t cache, group;
};

GeneralAttention general_of(const Resolver& find, const pen_attention& op) {
  const Rows &q = find.buffer(op.q, PEN_F16), &out = find.buffer(op.out, PEN_F16);
  const pen_cache cache = find.m.caches[find.cache(op.cache)];
  GeneralAttention args{};
  args.q = q.data.as<__half>();
  args.ld_q = q.ld * int(q.desc.per_token);
  args.out = out.data.as<__half>();
  args.ld_out = out.ld * int(out.desc.per_token);
  args.num_heads = int(op.heads);
  args.head_dim = int(cache.key_dim);
  args.value_dim = int(op.value_dim);
  args.scale = op.scale;
  args.window = op.window;
  args.window_kind = Window(op.window_kind);
  args.bidirectional = op.bidirectional != 0;
  args.run_sight = RunSight(op.run_sight);
  args.soft_cap = op.soft_cap;
  args.alibi = op.alibi;
  args.sinks = find.vector(op.sinks, op.heads);
  args.workspace = find.m.scratch.workspace.as<float>();
  args.workspace_bytes = find.m.scratch.workspace.size();
  return args;
}

Instruction compile_general(const Resolver& find, const pen_attention& op) {
  const pen_cache cache = find.m.caches[find.cache(op.cache)];
  const GeneralAttention args = general_of(find, op);
  const bool fits = uint32_t(args.ld_q) >= op.heads * cache.key_dim && uint32_t(args.ld_out) >= op.heads * op.value_dim;
  const bool known = op.window_kind <= PEN_SYMMETRIC && op.run_sight <= PEN_SIGHT_LATER;
  if (!fits || !known) throw StatusError(PEN_INVALID_ARG, "attention does not fit its buffers");
  const uint32_t value_dim = cache.value_dim > 0 ? cache.value_dim : cache.key_dim;
  return {Kind::GENERAL_ATTENTION, CachedGeneralAttention{args, op.cache, cache.group, int(value_dim)}};
}

}  // namespace

Instruction compile_heads(const Resolver& find, const pen_heads& op) {
  Heads args{};
  const Operand in = find.operand(op.in, op.heads, op.dim);
  const uint64_t normed = op.norm_dim ? op.norm_dim : op.dim, weights = op.own ? uint64_t(op.heads) * op.dim : normed;
  if (!in.x) throw StatusError(PEN_INVALID_ARG, "heads have no input");
  args.in = in.x;
  args.ld_in = int(in.ld);
  args.head_stride = in.stride;
  args.num_heads = int(op.heads);
  args.dim = int(op.dim);
  args.bias = find.vector(op.bias, uint64_t(op.heads) * op.dim);
  args.clamp = op.clamp;
  args.norm = op.norm == PEN_RMS_NORM ? HeadNorm::RMS : op.norm == PEN_LAYER_NORM ? HeadNorm::LAYER : HeadNorm::NONE;
  args.norm_dim = int(op.norm_dim);
  args.norm_weight = find.vector(op.weight, weights);
  args.norm_bias = find.vector(op.norm_bias, weights);
  args.norm_stride = op.own ? int(op.dim) : 0;
  args.eps = op.eps;
  args.norm_after_rope = op.norm_behind != 0;
  args.rope = find.rope(op.rope);
  args.rope_axes = find.axes(op.rope);
  args.rope_dim = op.rope == PEN_NONE ? 0 : int(find.m.rope_dims[op.rope]);
  args.rope_first = int(op.rope_first);
  args.rope_halves = op.rope_pairs == PEN_PAIRS_HALVES;
  args.rope_quarters = op.rope_pairs == PEN_PAIRS_QUARTERS;
  args.temperature_scale = op.temperature_scale;
  args.temperature_floor = op.temperature_floor;
  args.temperature_offset = op.temperature_offset;
  if (op.cache != PEN_NONE) {
    const pen_cache cache = find.m.caches[find.cache(op.cache)];
    args.page_dim = int(op.values ? cache.value_dim : cache.key_dim);
    if (cache.heads != op.heads || args.page_dim < args.dim) throw StatusError(PEN_INVALID_ARG, "heads do not fit into the cache");
    return {Kind::HEADS, FinishHeads{args, true, op.values != 0, op.cache, cache.group}};
  }
  const Operand out = find.operand(op.out, op.heads, op.dim);
  if (!out.x && !out.half) throw StatusError(PEN_INVALID_ARG, "heads have no output");
  args.out = out.x;
  args.out16 = out.half;
  args.ld_out = int(out.ld);
  args.out_head_stride = out.stride;
  return {Kind::HEADS, FinishHeads{args, false, false, 0, 0}};
}

void run_heads(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<FinishHeads>();
  if (!op.is_cached) {
    StepView view = pass.step.view;
    view.num_tokens = pass.tokens;
    return finish_heads(pass.launch, op.heads, view);
  }
  const KvView pages = pass.kv->layer(op.cache);
  Heads now = op.heads;
  now.pages = op.values ? pages.v : pages.k;
  now.block_size = pages.block_size;
  finish_heads(pass.launch, now, pass.step.view_of(op.group));
}

Instruction compile_attention(const Resolver& find, const pen_attention& op) {
  if (op.general) return compile_general(find, op);
  const Rows &q = find.buffer(op.q, PEN_F16), &out = find.buffer(op.out, PEN_F16);
  const pen_cache cache = find.m.caches[find.cache(op.cache)];
  const bool has_fresh = op.qkv != PEN_NONE;
  const uint64_t dim = cache.key_dim;
  if (q.ld * q.desc.per_token < op.heads * dim || out.ld * out.desc.per_token < op.heads * dim || cache.value_dim != cache.key_dim) {
    throw StatusError(PEN_INVALID_ARG, "attention does not fit its buffers");
  }
  QkvFinish fresh{};
  if (!has_fresh && q.ld * q.desc.per_token != op.heads * dim) throw StatusError(PEN_INVALID_ARG, "queries have gaps between their rows");
  if (has_fresh) {
    const Rows& qkv = find.buffer(op.qkv, PEN_F32);
    if (qkv.ld != int((op.heads + 2 * cache.heads) * dim)) throw StatusError(PEN_INVALID_ARG, "fresh heads do not fit their buffer");
    fresh.qkv = qkv.data.as<float>();
    fresh.q_bias = find.vector(op.q_bias, op.heads * dim);
    fresh.k_bias = find.vector(op.k_bias, cache.heads * dim);
    fresh.v_bias = find.vector(op.v_bias, cache.heads * dim);
    fresh.q_norm = find.vector(op.q_norm, dim);
    fresh.k_norm = find.vector(op.k_norm, dim);
    fresh.norm_eps = op.eps;
    fresh.rope = find.rope(op.rope);
    fresh.rope_axes = find.axes(op.rope);
    fresh.by_position = fresh.rope_axes != nullptr;
    fresh.rope_dim = op.rope == PEN_NONE ? 0 : int(find.m.rope_dims[op.rope]);
    fresh.rope_halves = op.rope_halves != 0;
    fresh.num_heads = int(op.heads);
    fresh.q = q.data.as<__half>();
  }
  Attention args{};
  args.q = q.data.as<__half>();
  args.out = out.data.as<__half>();
  args.out_stride = out.ld;
  args.num_heads = int(op.heads);
  args.scale = op.scale;
  args.window = op.window;
  args.workspace = find.m.scratch.workspace.as<float>();
  args.workspace_bytes = find.m.scratch.workspace.size();
  args.soft_cap = op.soft_cap;
  args.sinks = find.vector(op.sinks, op.heads);
  args.chunked = op.window != 0 && op.window_kind == PEN_CHUNKED;
  if ((args.sinks || args.chunked) && !attention_extras(int(dim))) {
    throw StatusError(PEN_INVALID_ARG, "sinks or chunked windows with heads of this size");
  }
  if (op.run_sight > PEN_SIGHT_LATER) throw StatusError(PEN_INVALID_ARG, "attention over whole runs of an unknown kind");
  GeneralAttention general = general_of(find, op);
  general.ld_q = int(op.heads * dim);  // there are no gaps between rows, whatever the buffer's padding
  return {Kind::ATTENTION, CachedAttention{args, fresh, has_fresh, op.cache, cache.group, general}};
}

void run_attention(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<CachedAttention>();
  const StepView view = pass.step.view_of(op.group);
  Attention now = op.attention;
  QkvFinish heads = op.fresh;
  now.kv = heads.kv = pass.kv->layer(op.cache);
  const bool prefill = pass.step.has_prefill;
  const bool before = op.has_fresh && (prefill || pass.step.bounds.moved);
  if (before) qkv_finish(pass.launch, heads, view);
  attention_decode(pass.launch, now, pass.step.single_of(view), op.has_fresh && !before ? &heads : nullptr);
  if (!prefill) return;
  if (view.runs == nullptr || op.general.run_sight == RunSight::CAUSAL) return attention_prefill(pass.launch, now, pass.step.many_of(view));
  GeneralAttention among = op.general;
  among.kv = GeneralKv{now.kv.k, now.kv.v, now.kv.num_blocks, now.kv.block_size, now.kv.num_kv_heads, now.kv.head_dim, now.kv.head_dim};
  attention_general(pass.launch, among, pass.step.many_of(view));
}

void run_general_attention(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<CachedGeneralAttention>();
  GeneralAttention now = op.attention;
  const KvView pages = pass.kv->layer(op.cache);
  now.kv = GeneralKv{pages.k, pages.v, pages.num_blocks, pages.block_size, pages.num_kv_heads, pages.head_dim, op.value_dim};
  const StepView view = pass.step.view_of(op.group);
  attention_general(pass.launch, now, pass.step.single_of(view));
  if (pass.step.has_prefill) attention_general(pass.launch, now, pass.step.many_of(view));
}

}  // namespace pen
