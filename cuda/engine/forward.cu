// The forward pass: one layer loop for every architecture.
#include "forward.h"

#include "../embedding/embedding.h"
#include "pass.h"

namespace pen {

Linear product_of(const pen_model& m, const Matrix& w, const __half* x, int ldx, int num_tokens, Epilogue epilogue, float* out, int ldo) {
  Linear args{};
  args.w[0] = w;
  args.num_segments = 1;
  args.x = x;
  args.ldx = ldx;
  args.num_tokens = num_tokens;
  args.out = out;
  args.ldo = ldo;
  args.epilogue = epilogue;
  args.slabs = m.scratch.workspace.as<float>();
  args.slab_bytes = m.scratch.workspace.size();
  args.arrivals = m.scratch.arrivals.as<uint32_t>();
  return args;
}

Norm Pass::norm(const float* branch_weight, const float* weight) {
  const Scratch& s = m.scratch;
  Norm args{x, branch_weight ? s.branch.as<float>() : nullptr, branch_weight, nullptr, weight, int(m.desc.hidden_dim), m.desc.norm_eps};
  if (branch_weight) {
    x = x == s.x.as<float>() ? s.x_other.as<float>() : s.x.as<float>();
    args.x_out = x;
  }
  return args;
}

void Pass::normalise(Linear& args, const Norm& norm, const float* bias) const {
  const Scratch& s = m.scratch;
  if (m.desc.layer_norm) {
    layer_norm(launch, LayerNorm{norm.x, norm.weight, bias, norm.hidden, norm.eps, nullptr, s.h.as<__half>(), s.ld_hidden}, tokens);
  } else if (takes_norm(args.num_tokens, norm.hidden)) {
    args.norm = norm;
  } else {
    rms_norm(launch, norm, nullptr, args.num_tokens, s.h.as<__half>(), s.ld_hidden);
  }
}

void Pass::branch(const Matrix& w, const __half* in, int ld, const float* post_norm, const float* bias) const {
  const int hidden = m.desc.hidden_dim;
  float* out = branch_out(post_norm);
  linear(launch, product(w, in, ld, post_norm ? Epilogue::STORE : Epilogue::ADD, out, hidden));
  if (bias) add_bias(launch, out, bias, tokens, hidden);
}

void Pass::attention(int index, const Layer& l, const Norm& norm) {
  const Scratch& s = m.scratch;
  const pen_model_desc& d = m.desc;
  const int heads = d.num_heads * d.head_dim, kv_dim = d.num_kv_heads * d.head_dim;
  Linear qkv = product(l.q, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, s.qkv.as<float>(), heads + 2 * kv_dim);
  qkv.w[1] = l.k;
  qkv.w[2] = l.v;
  qkv.out_offset[1] = heads;
  qkv.out_offset[2] = heads + kv_dim;
  qkv.num_segments = 3;
  normalise(qkv, norm, l.attn_norm_bias);
  linear(launch, qkv);
  const float* rope = m.ropes.as<float>() + size_t(l.rope) * d.max_positions * d.rope_dim;
  const KvView pages = kv.layer(index);
  const QkvFinish fresh{s.qkv.as<float>(), l.q_bias, l.k_bias, l.v_bias, l.q_norm, l.k_norm, d.norm_eps, rope, int(d.rope_dim),
                        d.rope_pairs == 1, int(d.num_heads), s.q.as<__half>(), pages};
  if (step.has_prefill) qkv_finish(launch, fresh, step.view);
  const Attention args{s.q.as<__half>(),  pages,    s.attn.as<__half>(),        s.ld_attn,         int(d.num_heads),
                       d.attn_scale,      l.window, s.workspace.as<float>(),    s.workspace.size(), d.attn_soft_cap};
  attention_decode(launch, args, step.view, step.has_prefill ? nullptr : &fresh);
  if (step.has_prefill) attention_prefill(launch, args, step.view);
  branch(l.attn_output, s.attn.as<__half>(), s.ld_attn, l.post_attn_norm, l.attn_output_bias);
}

namespace {

// The logits of rows; `gather` null: of the first ones.
void queue_head(pen_model& m, const Launch& launch, const int32_t* gather, int num_rows) {
  const Scratch& s = m.scratch;
  // Not within the product, whose blocks are too many for each to normalise its own input.
  const Norm norm = final_norm(m);
  __half* const h = s.last.as<__half>();
  if (m.desc.layer_norm) {
    layer_norm(launch, LayerNorm{norm.x, norm.weight, m.weights.output_norm_bias, norm.hidden, norm.eps, gather, h, s.ld_hidden}, num_rows);
  } else {
    rms_norm(launch, norm, gather, num_rows, h, s.ld_hidden);
  }
  const int vocab = m.desc.vocab_size;
  linear(launch, product_of(m, m.weights.output, h, s.ld_hidden, num_rows, Epilogue::STORE, s.logits.as<float>(), vocab));
  if (m.desc.final_soft_cap > 0.0f) soft_cap(launch, s.logits.as<float>(), m.desc.final_soft_cap, num_rows, vocab);
}

}  // namespace

// Each branch that is normalised before it is added has moved the residual stream to its other buffer, except the last one.
Norm final_norm(const pen_model& m) {
  const Scratch& s = m.scratch;
  const Layer& last = m.weights.layers.back();
  size_t moves = 0;
  for (const Layer& l : m.weights.layers) moves += (l.post_attn_norm != nullptr) + (&l != &last && l.post_ffn_norm != nullptr);
  float* x = moves % 2 == 0 ? s.x.as<float>() : s.x_other.as<float>();
  const float* branch = last.post_ffn_norm ? s.branch.as<float>() : nullptr;
  return Norm{x, branch, last.post_ffn_norm, nullptr, m.weights.output_norm, int(m.desc.hidden_dim), m.desc.norm_eps};
}

void forward(pen_model& m, const pen_kv& kv, const Step& step) {
  const Weights& w = m.weights;
  Pass pass{m, kv, step, m.launch(true), step.view.num_tokens, m.scratch.x.as<float>()};
  embed(pass.launch, Embed{w.token_embd, step.inputs, m.sampler.last, pass.x, pass.tokens, m.desc.embedding_scale, w.position_embd,
                           step.view.positions});
  const float* pending = nullptr;  // the norm of a branch that x has not received yet
  for (size_t i = 0; i < w.layers.size(); i++) {
    const Layer& l = w.layers[i];
    pass.attention(int(i), l, pass.norm(pending, l.attn_norm));
    pass.feed_forward(l, pass.norm(l.post_attn_norm, l.ffn_norm));
    pending = l.post_ffn_norm;
  }
  if (step.num_rows > 0) queue_head(m, pass.launch, step.gather, step.num_rows);
}

void head(pen_model& m, const int32_t* rows, int num_rows) { queue_head(m, m.launch(false), rows, num_rows); }

}  // namespace pen
