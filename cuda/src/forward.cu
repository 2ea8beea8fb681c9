// The forward pass: one layer loop for every architecture.
#include "../ops/rowwise.cuh"
#include "model.h"

namespace pen {

namespace {

struct Pass {
  pen_model& m;
  const pen_kv& kv;
  const Step& step;
  Launch launch;
  int tokens;
  float* x;  // the residual stream

  // The residual stream after this norm: where a branch is added to it, the other of its two buffers.
  Norm norm(const float* branch_weight, const float* weight) {
    const Scratch& s = m.scratch;
    Norm args{x, branch_weight ? s.branch.as<float>() : nullptr, branch_weight, nullptr, weight, int(m.desc.hidden_dim), m.desc.norm_eps};
    if (branch_weight) {
      x = x == s.x.as<float>() ? s.x_other.as<float>() : s.x.as<float>();
      args.x_out = x;
    }
    return args;
  }

  // The input of a linear layer: computed by the layer itself for few rows, else by a kernel in front of it.
  void normalise(Linear& args, const Norm& norm) const {
    if (takes_norm(args.num_tokens, norm.hidden)) {
      args.norm = norm;
    } else {
      launch(norm_kernel, dim3(args.num_tokens), dim3(NORM_THREADS), 0, norm, nullptr, m.scratch.h.as<__half>(), m.scratch.ld_hidden);
    }
  }

  Linear product(const Matrix& w, const __half* x, int ldx, Epilogue epilogue, float* out, int ldo) const {
    Linear args{};
    args.w[0] = w;
    args.num_segments = 1;
    args.x = x;
    args.ldx = ldx;
    args.num_tokens = tokens;
    args.out = out;
    args.ldo = ldo;
    args.epilogue = epilogue;
    return args;
  }

  void attention(int index, const Layer& l, const Norm& norm) {
    const Scratch& s = m.scratch;
    const pen_model_desc& d = m.desc;
    const int heads = d.num_heads * d.head_dim, kv_dim = d.num_kv_heads * d.head_dim;
    Linear qkv = product(l.q, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, s.qkv.as<float>(), heads + 2 * kv_dim);
    qkv.w[1] = l.k;
    qkv.w[2] = l.v;
    qkv.out_offset[1] = heads;
    qkv.out_offset[2] = heads + kv_dim;
    qkv.num_segments = 3;
    normalise(qkv, norm);
    linear(launch, qkv);
    const float* rope = m.ropes.as<float>() + size_t(l.rope) * d.max_positions * d.rope_dim;
    const KvView pages = kv.layer(index);
    const QkvFinish fresh{s.qkv.as<float>(), l.q_bias, l.k_bias, l.v_bias, l.q_norm, l.k_norm, d.norm_eps, rope, int(d.rope_dim),
                          d.rope_pairs == 1, int(d.num_heads), s.q.as<__half>(), pages};
    if (step.has_prefill) qkv_finish(launch, fresh, step.view);
    const Attention args{s.q.as<__half>(),  pages,    s.attn.as<__half>(),        s.ld_attn,         int(d.num_heads),
                         d.attn_scale,      l.window, s.attention.as<float>(),    s.attention.size()};
    attention_decode(launch, args, step.view, step.has_prefill ? nullptr : &fresh);
    if (step.has_prefill) attention_prefill(launch, args, step.view);
    branch(l.attn_output, s.attn.as<__half>(), s.ld_attn, l.post_attn_norm);
  }

  // x += W · in, or the branch alone where it is normalised before it is added.
  void branch(const Matrix& w, const __half* in, int ld, const float* post_norm) const {
    float* out = post_norm ? m.scratch.branch.as<float>() : x;
    linear(launch, product(w, in, ld, post_norm ? Epilogue::STORE : Epilogue::ADD, out, m.desc.hidden_dim));
  }

  void feed_forward(const Layer& l, const Norm& norm) {
    const Scratch& s = m.scratch;
    const int ffn = m.desc.ffn_dim;
    const Epilogue gate = m.desc.activation == 0 ? Epilogue::SILU_MUL : Epilogue::GELU_MUL;
    if (l.fused_glu) {
      Linear args = product(l.gate_up, s.h.as<__half>(), s.ld_hidden, gate, nullptr, s.ld_ffn);
      args.out16 = s.ffn.as<__half>();
      normalise(args, norm);
      linear(launch, args);
    } else {
      Linear args = product(l.gate, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, s.gate_up.as<float>(), 2 * ffn);
      args.w[1] = l.up;
      args.out_offset[1] = ffn;
      args.num_segments = 2;
      normalise(args, norm);
      linear(launch, args);
      launch(glu_kernel, dim3(ceil_div(ffn, ROW_THREADS), tokens), dim3(ROW_THREADS), 0, s.gate_up.as<float>(), s.ffn.as<__half>(), ffn,
             s.ld_ffn, gate);
    }
    branch(l.down, s.ffn.as<__half>(), s.ld_ffn, l.post_ffn_norm);
  }
};

// The logits of rows; `gather` null: of the first ones.
void queue_head(pen_model& m, const Launch& launch, const int32_t* gather, int num_rows) {
  const Scratch& s = m.scratch;
  Linear args{};
  args.w[0] = m.output;
  args.num_segments = 1;
  args.x = s.last.as<__half>();
  args.ldx = s.ld_hidden;
  args.num_tokens = num_rows;
  args.out = s.logits.as<float>();
  args.ldo = m.desc.vocab_size;
  args.epilogue = Epilogue::STORE;
  // Not within the head, whose blocks are too many to do it each for itself.
  launch(norm_kernel, dim3(num_rows), dim3(NORM_THREADS), 0, final_norm(m), gather, s.last.as<__half>(), s.ld_hidden);
  linear(launch, args);
}

}  // namespace

// A branch that is normalised before it is added has moved the residual stream to the other of its two buffers, each time but the last.
Norm final_norm(const pen_model& m) {
  const Scratch& s = m.scratch;
  const Layer& last = m.layers.back();
  size_t moves = 0;
  for (const Layer& l : m.layers) moves += (l.post_attn_norm != nullptr) + (&l != &last && l.post_ffn_norm != nullptr);
  float* x = moves % 2 == 0 ? s.x.as<float>() : s.x_other.as<float>();
  return Norm{x, last.post_ffn_norm ? s.branch.as<float>() : nullptr, last.post_ffn_norm, nullptr, m.output_norm, int(m.desc.hidden_dim), m.desc.norm_eps};
}

void forward(pen_model& m, const pen_kv& kv, const Step& step) {
  const Scratch& s = m.scratch;
  Pass pass{m, kv, step, Launch{m.stream.handle, m.overlap}, step.view.num_tokens, s.x.as<float>()};
  const Embed embed{m.token_embd, step.inputs, m.sampler.last, pass.x, pass.tokens, m.desc.embedding_scale};
  pass.launch(embed_kernel, dim3(ceil_div(m.token_embd.chunks() * 4, ROW_THREADS), pass.tokens), dim3(ROW_THREADS), 0, embed);
  const float* pending = nullptr;  // the norm of a branch that x has not received yet
  for (size_t i = 0; i < m.layers.size(); i++) {
    const Layer& l = m.layers[i];
    pass.attention(int(i), l, pass.norm(pending, l.attn_norm));
    pass.feed_forward(l, pass.norm(l.post_attn_norm, l.ffn_norm));
    pending = l.post_ffn_norm;
  }
  if (step.num_rows > 0) queue_head(m, pass.launch, step.gather, step.num_rows);
}

void head(pen_model& m, const int32_t* rows, int num_rows) { queue_head(m, Launch{m.stream.handle}, rows, num_rows); }

namespace {

Sample sampling(pen_model& m, const Step& step) {
  Sample args{};
  args.logits = m.scratch.logits.as<float>();
  args.num_rows = step.num_rows;
  args.slots = step.slots;
  args.masks = m.masks.as<uint32_t>();
  args.mask_of = step.mask_of;
  args.sampled = m.sampled.as<int32_t>();
  args.workspace = m.scratch.sampler.as<void>();
  args.workspace_bytes = m.scratch.sampler.size();
  return args;
}

}  // namespace

void sample_step(pen_model& m, const Step& step, bool overlap) {
  if (step.num_rows > 0) sample(Launch{m.stream.handle, overlap && m.overlap}, m.sampler, sampling(m, step));
}

void logprobs_step(pen_model& m, const Step& step) {
  Sample args = sampling(m, step);
  args.num_logprobs = step.num_logprobs;
  args.logprobs = m.logprobs.as<float>();
  args.logprob_ids = m.logprob_ids.as<int32_t>();
  // It may follow a graph: not a programmatic dependent of it.
  sample_logprobs(Launch{m.stream.handle}, m.sampler, args);
}

}  // namespace pen
