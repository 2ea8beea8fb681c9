// Log-probabilities of the raw logits.
#pragma once

#include "philox.cuh"
#include "select.cuh"
#include "sampling.h"

namespace pen {

// Grid: (rows). Rows that do not request log-probabilities return at once.
__global__ void __launch_bounds__(SELECT_THREADS) logprobs_kernel(SamplerState state, Logprobs args) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x, vocab = state.vocab, asked = args.num_likeliest[row], slot = args.slots[row];
  if (slot < 0 || asked < 0) return;
  const int n = min(min(asked, MAX_LOGPROBS), vocab), chosen = args.chosen != nullptr ? args.chosen[row] : state.last[slot];
  const float* logits = args.logits + size_t(row) * vocab;
  float* out = args.logprobs + size_t(row) * (1 + MAX_LOGPROBS);
  int32_t* ids = args.ids + size_t(row) * MAX_LOGPROBS;
  const int tid = threadIdx.x;
  if (chosen < 0) {
    if (tid <= MAX_LOGPROBS) out[tid] = NAN;
    if (tid < MAX_LOGPROBS) ids[tid] = -1;
    return;
  }
  __shared__ SelectShared s;
  __shared__ float maxima[SELECT_WARPS];
  __shared__ float top[MAX_LOGPROBS];
  __shared__ int top_ids[MAX_LOGPROBS];
  float max = -INFINITY;
#pragma unroll 4
  for (int i = tid; i < vocab; i += SELECT_THREADS) max = fmaxf(max, logits[i]);
  max = warp_max(max);
  if (tid % WARP == 0) maxima[tid / WARP] = max;
  if (tid == 0) s.found = 0;
  __syncthreads();
  max = warp_max(maxima[tid % WARP]);
  double sum = 0.0;
#pragma unroll 4
  for (int i = tid; i < vocab; i += SELECT_THREADS) sum += double(exp_weight(__fsub_rn(logits[i], max)));
  const double norm = log(block_sum(sum, s));
  const auto logprob = [&](float x) { return float(double(x) - double(max) - norm); };
  if (tid == 0) out[0] = logprob(logits[chosen]);
  if (n > 0) {
    const auto keys = [&](int i) { return order_key(logits[i]); };
    const KeyCut cut = select_largest(vocab, uint32_t(n), keys, s);
    const int cut_id = cut.all ? vocab : nth_equal(vocab, cut.key, cut.ties, keys, s);
    if (tid == 0) s.found = 0;
    __syncthreads();
    for (int i = tid; i < vocab; i += SELECT_THREADS) {
      const uint32_t key = keys(i);
      if (key > cut.key || (key == cut.key && i <= cut_id)) {
        const uint32_t at = atomicAdd(&s.found, 1u);  // in any order: the ranks below sort them
        if (at < uint32_t(n)) {
          top[at] = logits[i];
          top_ids[at] = i;
        }
      }
    }
    __syncthreads();
  }
  if (tid < n) {
    int rank = 0;
    for (int j = 0; j < n; j++) rank += top[j] > top[tid] || (top[j] == top[tid] && top_ids[j] < top_ids[tid]);
    out[1 + rank] = logprob(top[tid]);
    ids[rank] = top_ids[tid];
  }
  if (tid >= n && tid < MAX_LOGPROBS) {
    out[1 + tid] = -INFINITY;
    ids[tid] = -1;
  }
}

}  // namespace pen
