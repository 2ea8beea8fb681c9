// The forward pass: one layer loop for every architecture.
#include "../ops/dense.cuh"
#include "../ops/rowwise.cuh"
#include "model.h"

namespace pen {

namespace {

Linear product_of(const pen_model& m, const Matrix& w, const __half* x, int ldx, int tokens, Epilogue epilogue, float* out, int ldo) {
  Linear args{};
  args.w[0] = w;
  args.num_segments = 1;
  args.x = x;
  args.ldx = ldx;
  args.num_tokens = tokens;
  args.out = out;
  args.ldo = ldo;
  args.epilogue = epilogue;
  args.slabs = m.scratch.attention.as<float>();  // which nothing uses while a linear layer runs
  args.slab_bytes = m.scratch.attention.size();
  args.arrivals = m.scratch.arrivals.as<uint32_t>();
  return args;
}

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
  void normalise(Linear& args, const Norm& norm, const float* bias) const {
    if (m.desc.layer_norm) {
      layer_norm(norm.x, norm.weight, bias, nullptr, tokens, m.scratch.h.as<__half>());
    } else if (takes_norm(args.num_tokens, norm.hidden)) {
      args.norm = norm;
    } else {
      launch(norm_kernel, dim3(args.num_tokens), dim3(NORM_THREADS), 0, norm, nullptr, m.scratch.h.as<__half>(), m.scratch.ld_hidden);
    }
  }

  void layer_norm(const float* from, const float* weight, const float* bias, const int32_t* gather, int rows, __half* h) const {
    const LayerNorm args{from, weight, bias, int(m.desc.hidden_dim), m.desc.norm_eps, gather, h, m.scratch.ld_hidden};
    launch(layer_norm_kernel, dim3(rows), dim3(DENSE_THREADS), 0, args);
  }

  Linear product(const Matrix& w, const __half* x, int ldx, Epilogue epilogue, float* out, int ldo) const {
    return product_of(m, w, x, ldx, tokens, epilogue, out, ldo);
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
    normalise(qkv, norm, l.attn_norm_bias);
    linear(launch, qkv);
    const float* rope = m.ropes.as<float>() + size_t(l.rope) * d.max_positions * d.rope_dim;
    const KvView pages = kv.layer(index);
    const QkvFinish fresh{s.qkv.as<float>(), l.q_bias, l.k_bias, l.v_bias, l.q_norm, l.k_norm, d.norm_eps, rope, int(d.rope_dim),
                          d.rope_pairs == 1, int(d.num_heads), s.q.as<__half>(), pages};
    if (step.has_prefill) qkv_finish(launch, fresh, step.view);
    const Attention args{s.q.as<__half>(),  pages,    s.attn.as<__half>(),        s.ld_attn,         int(d.num_heads),
                         d.attn_scale,      l.window, s.attention.as<float>(),    s.attention.size(), d.attn_soft_cap};
    attention_decode(launch, args, step.view, step.has_prefill ? nullptr : &fresh);
    if (step.has_prefill) attention_prefill(launch, args, step.view);
    branch(l.attn_output, s.attn.as<__half>(), s.ld_attn, l.post_attn_norm, l.attn_output_bias);
  }

  // Where a branch goes: to x, or where it is normalised before it is added, to a place of its own.
  float* branch_out(const float* post_norm) const { return post_norm ? m.scratch.branch.as<float>() : x; }

  // The branch W · in + bias.
  void branch(const Matrix& w, const __half* in, int ld, const float* post_norm, const float* bias) const {
    const int hidden = m.desc.hidden_dim;
    float* out = branch_out(post_norm);
    linear(launch, product(w, in, ld, post_norm ? Epilogue::STORE : Epilogue::ADD, out, hidden));
    if (bias) launch(add_bias_kernel, dim3(ceil_div(hidden, DENSE_THREADS), tokens), dim3(DENSE_THREADS), 0, out, bias, hidden);
  }

  void feed_forward(const Layer& l, const Norm& norm) {
    const Scratch& s = m.scratch;
    const FeedForward& f = l.ffn;
    if (m.desc.num_experts > 0) {
      // Many read h: it is written out.
      launch(norm_kernel, dim3(tokens), dim3(NORM_THREADS), 0, norm, nullptr, s.h.as<__half>(), s.ld_hidden);
      return experts(m, launch, l, ExpertStep{step.view.slot_mapping, tokens}, branch_out(l.post_ffn_norm), !l.post_ffn_norm);
    }
    const int ffn = m.desc.ffn_dim;
    const bool gated = m.desc.has_gate;
    const Epilogue activation = m.desc.activation == 0 ? Epilogue::SILU_MUL : Epilogue::GELU_MUL;
    if (f.fused) {
      Linear args = product(f.gate_up, s.h.as<__half>(), s.ld_hidden, activation, nullptr, s.ld_ffn);
      args.out16 = s.ffn.as<__half>();
      normalise(args, norm, l.ffn_norm_bias);
      linear(launch, args);
    } else {
      Linear args = product(gated ? f.gate : f.up, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, s.gate_up.as<float>(), gated ? 2 * ffn : ffn);
      if (gated) {
        args.w[1] = f.up;
        args.out_offset[1] = ffn;
        args.num_segments = 2;
      }
      normalise(args, norm, l.ffn_norm_bias);
      linear(launch, args);
      const Activate activate{s.gate_up.as<float>(), f.gate_bias, f.up_bias, s.ffn.as<__half>(), ffn, s.ld_ffn, gated, activation};
      launch(activate_kernel, dim3(ceil_div(ffn, DENSE_THREADS), tokens), dim3(DENSE_THREADS), 0, activate);
    }
    branch(f.down, s.ffn.as<__half>(), s.ld_ffn, l.post_ffn_norm, f.down_bias);
  }
};

// The logits of rows; `gather` null: of the first ones.
void queue_head(pen_model& m, const Launch& launch, const int32_t* gather, int num_rows) {
  const Scratch& s = m.scratch;
  // Not within the head, whose blocks are too many to do it each for itself.
  const Norm norm = final_norm(m);
  if (m.desc.layer_norm) {
    const LayerNorm args{norm.x, norm.weight, m.output_norm_bias, norm.hidden, norm.eps, gather, s.last.as<__half>(), s.ld_hidden};
    launch(layer_norm_kernel, dim3(num_rows), dim3(DENSE_THREADS), 0, args);
  } else {
    launch(norm_kernel, dim3(num_rows), dim3(NORM_THREADS), 0, norm, gather, s.last.as<__half>(), s.ld_hidden);
  }
  const int vocab = m.desc.vocab_size;
  linear(launch, product_of(m, m.output, s.last.as<__half>(), s.ld_hidden, num_rows, Epilogue::STORE, s.logits.as<float>(), vocab));
  if (m.desc.final_soft_cap > 0.0f) {
    launch(soft_cap_kernel, dim3(ceil_div(vocab, DENSE_THREADS), num_rows), dim3(DENSE_THREADS), 0, s.logits.as<float>(), vocab, m.desc.final_soft_cap);
  }
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
  const Embed embed{m.token_embd, step.inputs, m.sampler.last, pass.x, pass.tokens, m.desc.embedding_scale, m.position_embd, step.view.positions};
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
  args.copy = step.results;
  args.workspace = m.scratch.sampler.as<void>();
  args.workspace_bytes = m.scratch.sampler.size();
  return args;
}

}  // namespace

void sample_step(pen_model& m, const Step& step, bool overlap) {
  if (step.num_rows > 0) sample(Launch{m.stream.handle, overlap && m.overlap}, m.sampler, sampling(m, step));
}

void logprobs_step(pen_model& m, const Step& step, const InFlight& f) {
  Sample args = sampling(m, step);
  args.num_logprobs = step.num_logprobs;
  args.logprobs = f.logprobs.as<float>();
  args.logprob_ids = f.logprob_ids.as<int32_t>();
  // It may follow a graph: not a programmatic dependent of it.
  sample_logprobs(Launch{m.stream.handle}, m.sampler, args);
}

}  // namespace pen
