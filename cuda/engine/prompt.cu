// A step's work on prompts apart from K and V. None of it is part of a graph: it runs before the forward pass or after the sampling, and
// only if the batch requests it.
#include "prompt.h"

#include <algorithm>
#include <cstring>

#include "../recurrence/recurrence.h"
#include "program.h"

namespace pen {

namespace {

// Lists the vectors that a batch requests and, one vector after another, the rows of each. Returns the number of vectors.
int list_pools(const pen_batch& b, const PromptLists& lists, int& num_rows) {
  int n = 0;
  num_rows = 0;
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    const int kind = b.pools[i] & ~PEN_POOL_COMPLETE, first = int(b.cu_seqlens_q[i]), end = int(b.cu_seqlens_q[i + 1]);
    const bool complete = b.pools[i] & PEN_POOL_COMPLETE, starts = b.context_lens[i] == uint32_t(end - first);
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

void check_prompts(const pen_model& m, const pen_kv& kv, const pen_batch& b) {
  bool fits = b.num_copies <= PromptLists::max_copies(m.desc) && b.num_scored <= b.num_tokens && (b.num_copies == 0 || b.copies);
  fits = fits && b.num_state_copies <= 2 * m.desc.max_slots && (b.num_state_copies == 0 || b.state_copies);
  for (uint32_t i = 0; fits && i < 2 * b.num_state_copies; i++) fits = b.state_copies[i] < m.desc.state_slots;
  fits = fits && (b.num_scored == 0 || (b.scored_rows && b.scored_ids && b.scored_logprobs));
  for (uint32_t i = 0; fits && i < 2 * b.num_copies; i++) fits = b.copies[i] < uint32_t(kv.backed);
  for (uint32_t i = 0; fits && i < b.num_scored; i++) {
    fits = b.scored_rows[i] < b.num_tokens && b.scored_ids[i] < m.desc.vocab_size && b.scored_logprobs[i] <= uint32_t(MAX_LOGPROBS);
  }
  for (uint32_t i = 0; fits && b.pools && i < b.num_seqs; i++) fits = b.pools[i] <= PEN_POOL_MEAN + PEN_POOL_COMPLETE;
  if (!fits) throw StatusError(PEN_INVALID_ARG, "the copies, scored rows or vectors of the batch are out of bounds");
}

void begin_prompts(pen_model& m, pen_kv& kv, const pen_batch& b, InFlight& f) {
  const PromptLists host(f.prompt_lists.as<void>(), m.desc), device(m.scratch.prompt_lists.as<void>(), m.desc);
  f.pools.clear();
  f.num_scored = b.num_scored;
  f.num_pools = f.num_pool_rows = 0;
  if (b.pools) {
    f.pools.assign(b.pools, b.pools + b.num_seqs);
    f.num_pools = list_pools(b, host, f.num_pool_rows);
  }
  if (b.num_copies == 0 && b.num_state_copies == 0 && b.num_scored == 0 && f.num_pools == 0) return;
  const auto put = [](auto* to, const uint32_t* from, size_t count) {
    if (count > 0) std::memcpy(to, from, count * 4);
  };
  put(host.scored_rows, b.scored_rows, b.num_scored);
  put(host.scored_ids, b.scored_ids, b.num_scored);
  put(host.scored_logprobs, b.scored_logprobs, b.num_scored);
  put(host.copies, b.copies, 2 * size_t(b.num_copies));
  put(host.state_copies, b.state_copies, 2 * size_t(b.num_state_copies));
  check(cudaMemcpyAsync(m.scratch.prompt_lists.as<uint8_t>(), f.prompt_lists.as<uint8_t>(), PromptLists::bytes(m.desc),
                        cudaMemcpyHostToDevice, m.stream.handle), "copying what is asked of prompts");
  const Launch launch = m.launch(false);
  const int n = int(b.num_copies);
  for (size_t i = 0; n > 0 && i < kv.places.size(); i++) {
    const pen_cache& cache = kv.places[i];
    const size_t row = sizeof(__half) * size_t(cache.heads) * kv.block_size;
    copy_blocks(launch, device.copies, n, kv.keys[i].as<void>(), row * cache.key_dim);
    if (cache.value_dim > 0) copy_blocks(launch, device.copies, n, kv.values[i].as<void>(), row * cache.value_dim);
  }
  for (size_t i = 0; b.num_state_copies > 0 && i < m.states.size(); i++) {
    copy_states(launch, m.states[i].as<float>(), m.state_widths[i], device.state_copies, int(b.num_state_copies));
  }
}

// Rows are scored in groups that fit the logits' buffer, which the sampling no longer needs.
void finish_prompts(pen_model& m, InFlight& f) {
  const PromptLists device(m.scratch.prompt_lists.as<void>(), m.desc);
  const Scratch& s = m.scratch;
  const Launch launch = m.launch(false);
  const int group = int(m.desc.max_slots), hidden = int(m.desc.hidden_dim);
  for (int first = 0; first < f.num_scored; first += group) {
    const int n = std::min(group, f.num_scored - first);
    head(m, device.scored_rows + first, n);
    Logprobs args{};
    args.logits = s.logits.as<float>();
    args.num_rows = n;
    args.slots = device.scored_rows + first;  // none is negative, so every row is scored
    args.chosen = device.scored_ids + first;
    args.num_likeliest = device.scored_logprobs + first;
    args.logprobs = s.scored.as<float>() + size_t(first) * (1 + MAX_LOGPROBS);
    args.ids = s.scored_ids.as<int32_t>() + size_t(first) * MAX_LOGPROBS;
    logprobs(launch, m.sampler, args);
  }
  const auto fetch = [&](const Pinned& to, const Buffer& from, size_t bytes) {
    check(cudaMemcpyAsync(to.as<uint8_t>(), from.as<uint8_t>(), bytes, cudaMemcpyDeviceToHost, m.stream.handle), "copying results");
  };
  if (f.num_scored > 0) {
    fetch(f.scored, s.scored, size_t(f.num_scored) * (1 + MAX_LOGPROBS) * 4);
    fetch(f.scored_ids, s.scored_ids, size_t(f.num_scored) * MAX_LOGPROBS * 4);
  }
  if (f.num_pools == 0) return;
  float* const rows = s.pool_rows.as<float>();
  if (f.num_pool_rows > 0) final_rows(launch, device.pool_rows, f.num_pool_rows, final_norm(m), rows);
  pool_rows(launch, device.pooled, f.num_pools, rows, s.pool_sums.as<double>(), s.pooled.as<float>(), hidden);
  fetch(f.pooled, s.pooled, f.pools.size() * hidden * 4);
}

void collect_prompts(const pen_model& m, const InFlight& f, pen_output& out) {
  if (out.num_scored != uint32_t(f.num_scored)) throw StatusError(PEN_INVALID_ARG, "the step has a different number of scored rows");
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
