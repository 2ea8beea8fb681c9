// What a step does for prompts beside their K and V: blocks of a shared prompt are copied, its tokens are scored, its rows become a
// vector. None of it is part of a graph: it comes before the forward pass or after the sampling, and only where a batch asks.
#include <algorithm>
#include <cstring>

#include "../ops/prompt.cuh"
#include "model.h"

namespace pen {

namespace {

// Places in the metadata, each `tokens` or `slots` long.
struct Lists {
  int32_t *scored_rows, *scored_ids, *scored_logprobs, *pool_rows;
  uint32_t* copies;
  Pooled* pooled;
  Lists(void* base, const pen_model_desc& d) {
    const size_t t = d.max_batch_tokens;
    scored_rows = static_cast<int32_t*>(base);
    scored_ids = scored_rows + t;
    scored_logprobs = scored_ids + t;
    pool_rows = scored_logprobs + t;
    copies = reinterpret_cast<uint32_t*>(pool_rows + t);
    pooled = reinterpret_cast<Pooled*>(copies + 2 * d.max_slots);
  }
};

size_t lists_bytes(const pen_model_desc& d) { return (4 * size_t(d.max_batch_tokens) + 2 * d.max_slots) * 4 + d.max_slots * sizeof(Pooled); }

// The rows of each vector, from the first on in one list; how many vectors.
int list_pools(const pen_model_desc& d, const pen_batch& b, const Lists& lists, int& num_rows) {
  int n = 0;
  num_rows = 0;
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    const int kind = b.pools[i] & ~PEN_POOL_COMPLETE, first = int(b.cu_seqlens_q[i]), end = int(b.cu_seqlens_q[i + 1]);
    const bool complete = b.pools[i] & PEN_POOL_COMPLETE, starts = b.positions[first] == 0;
    if (kind == PEN_POOL_NONE) continue;
    const int from = kind == PEN_POOL_LAST ? (complete ? end - 1 : end) : first;
    const int to = kind == PEN_POOL_FIRST ? (starts ? first + 1 : first) : end;
    Pooled& p = lists.pooled[n++];
    p = {int32_t(b.slots[i]), int32_t(i), num_rows, to - from, starts || kind == PEN_POOL_LAST, 0};
    if (complete) p.divisor = kind == PEN_POOL_MEAN ? int32_t(b.context_lens[i]) : 1;
    for (int row = from; row < to; row++) lists.pool_rows[num_rows++] = row;
  }
  return n;
}

}  // namespace

PromptSizes::PromptSizes(const pen_model_desc& d) {
  const size_t t = d.max_batch_tokens, s = d.max_slots;
  lists = lists_bytes(d);
  scored = t * (1 + MAX_LOGPROBS) * 4;
  scored_ids = t * MAX_LOGPROBS * 4;
  sums = s * d.hidden_dim * 8;
  pooled = s * d.hidden_dim * 4;
}

void make_prompt_scratch(pen_model& m) {
  const PromptSizes z(m.desc);
  m.prompt_lists = Buffer(m.ctx, z.lists, true);
  m.scored = Buffer(m.ctx, z.scored, true);
  m.scored_ids = Buffer(m.ctx, z.scored_ids, true);
  m.pool_sums = Buffer(m.ctx, z.sums, true);
  m.pooled = Buffer(m.ctx, z.pooled, true);
  for (InFlight& f : m.ring) {
    f.prompt_lists = Pinned(z.lists);
    f.scored = Pinned(z.scored);
    f.scored_ids = Pinned(z.scored_ids);
    f.pooled = Pinned(z.pooled);
  }
}

void check_prompt(const pen_model& m, const pen_kv& kv, const pen_batch& b) {
  bool fits = b.num_copies <= m.desc.max_slots && b.num_scored <= b.num_tokens && (b.num_copies == 0 || b.copies);
  fits = fits && (b.num_scored == 0 || (b.scored_rows && b.scored_ids && b.scored_logprobs));
  for (uint32_t i = 0; fits && i < 2 * b.num_copies; i++) fits = b.copies[i] < uint32_t(kv.num_blocks);
  for (uint32_t i = 0; fits && i < b.num_scored; i++) {
    fits = b.scored_rows[i] < b.num_tokens && b.scored_ids[i] < m.desc.vocab_size && b.scored_logprobs[i] <= uint32_t(MAX_LOGPROBS);
  }
  for (uint32_t i = 0; fits && b.pools && i < b.num_seqs; i++) fits = b.pools[i] <= PEN_POOL_MEAN + PEN_POOL_COMPLETE;
  if (!fits) throw StatusError(PEN_INVALID_ARG, "the copies, scored rows or vectors of the batch are out of bounds");
}

void begin_prompts(pen_model& m, pen_kv& kv, const pen_batch& b, InFlight& f) {
  const Lists host(f.prompt_lists.as<void>(), m.desc), device(m.prompt_lists.as<void>(), m.desc);
  f.pools.clear();
  f.num_scored = b.num_scored;
  f.num_pools = f.num_pool_rows = 0;
  if (b.pools) {
    f.pools.assign(b.pools, b.pools + b.num_seqs);
    f.num_pools = list_pools(m.desc, b, host, f.num_pool_rows);
  }
  if (b.num_copies == 0 && b.num_scored == 0 && f.num_pools == 0) return;
  const auto put = [](auto* to, const uint32_t* from, size_t count) {
    if (count > 0) std::memcpy(to, from, count * 4);
  };
  put(host.scored_rows, b.scored_rows, b.num_scored);
  put(host.scored_ids, b.scored_ids, b.num_scored);
  put(host.scored_logprobs, b.scored_logprobs, b.num_scored);
  put(host.copies, b.copies, 2 * size_t(b.num_copies));
  check(cudaMemcpyAsync(m.prompt_lists.as<uint8_t>(), f.prompt_lists.as<uint8_t>(), lists_bytes(m.desc), cudaMemcpyHostToDevice,
                        m.stream.handle), "copying what is asked of prompts");
  if (b.num_copies == 0) return;
  const pen_model_desc& d = m.desc;
  const int words = int(size_t(kv.block_size) * d.num_kv_heads * d.head_dim * 2 / 16);
  copy_blocks_kernel<<<dim3(b.num_copies, d.num_layers), PROMPT_THREADS, 0, m.stream.handle>>>(device.copies, kv.k.as<uint4>(), kv.v.as<uint4>(),
                                                                                      size_t(kv.num_blocks), words);
  check(cudaGetLastError(), "copying blocks");
}

// Rows are scored in groups of as many as there is room for logits, which the sampling has done with.
void finish_prompts(pen_model& m, InFlight& f) {
  const Lists device(m.prompt_lists.as<void>(), m.desc);
  const int group = int(m.desc.max_slots), hidden = int(m.desc.hidden_dim);
  for (int first = 0; first < f.num_scored; first += group) {
    const int n = std::min(group, f.num_scored - first);
    head(m, device.scored_rows + first, n);
    Sample args{};
    args.logits = m.scratch.logits.as<float>();
    args.num_rows = n;
    args.slots = device.scored_rows + first;  // not negative: every row is one
    args.sampled = device.scored_ids + first;
    args.num_logprobs = device.scored_logprobs + first;
    args.logprobs = m.scored.as<float>() + size_t(first) * (1 + MAX_LOGPROBS);
    args.logprob_ids = m.scored_ids.as<int32_t>() + size_t(first) * MAX_LOGPROBS;
    sample_logprobs(Launch{m.stream.handle}, m.sampler, args);
  }
  const auto fetch = [&](const Pinned& to, const Buffer& from, size_t bytes) {
    check(cudaMemcpyAsync(to.as<uint8_t>(), from.as<uint8_t>(), bytes, cudaMemcpyDeviceToHost, m.stream.handle), "copying what prompts gave");
  };
  if (f.num_scored > 0) {
    fetch(f.scored, m.scored, size_t(f.num_scored) * (1 + MAX_LOGPROBS) * 4);
    fetch(f.scored_ids, m.scored_ids, size_t(f.num_scored) * MAX_LOGPROBS * 4);
  }
  if (f.num_pools == 0) return;
  const Norm norm = final_norm(m);
  float* rows = norm.x == m.scratch.x.as<float>() ? m.scratch.x_other.as<float>() : m.scratch.x.as<float>();  // the one that is free
  if (f.num_pool_rows > 0) {
    finish_kernel<<<f.num_pool_rows, PROMPT_THREADS, 0, m.stream.handle>>>(device.pool_rows, norm, m.desc.layer_norm != 0, m.output_norm_bias, rows);
  }
  pool_kernel<<<dim3(ceil_div(hidden, PROMPT_THREADS), f.num_pools), PROMPT_THREADS, 0, m.stream.handle>>>(device.pooled, rows, m.pool_sums.as<double>(),
                                                                                          m.pooled.as<float>(), hidden);
  check(cudaGetLastError(), "a vector");
  fetch(f.pooled, m.pooled, f.pools.size() * hidden * 4);
}

void collect_prompts(const pen_model& m, const InFlight& f, pen_output& out) {
  if (out.num_scored != uint32_t(f.num_scored)) throw StatusError(PEN_INVALID_ARG, "the step had another number of scored rows");
  if (f.num_scored > 0 && out.scored && out.scored_ids) {
    std::memcpy(out.scored, f.scored.as<float>(), size_t(f.num_scored) * (1 + MAX_LOGPROBS) * 4);
    std::memcpy(out.scored_ids, f.scored_ids.as<int32_t>(), size_t(f.num_scored) * MAX_LOGPROBS * 4);
  }
  const size_t hidden = m.desc.hidden_dim;
  for (size_t i = 0; out.pooled && i < f.pools.size(); i++) {
    if (f.pools[i] & PEN_POOL_COMPLETE) std::memcpy(out.pooled + i * hidden, f.pooled.as<float>() + i * hidden, hidden * 4);
  }
}

}  // namespace pen
