// Sets up a slot's sampling state.
#pragma once

#include "row.cuh"

namespace pen {

constexpr int RESET_THREADS = 1024;

__host__ __device__ inline bool needs_counts(const SlotParams& p) {
  return has_penalties(p) || p.num_biases > 0 || p.num_suppressed > 0;
}

__global__ void __launch_bounds__(RESET_THREADS) clear_kernel(SamplerState state, uint32_t slot, SlotParams p) {
  let_next_start();
  wait_for_previous();
  if (blockIdx.x == 0 && threadIdx.x == 0) state.params[slot] = p;
  if (!needs_counts(p)) return;
  uint32_t* counts = state.counts + size_t(slot) * state.vocab;
  for (int i = int(blockIdx.x) * RESET_THREADS + int(threadIdx.x); i < state.vocab; i += int(gridDim.x) * RESET_THREADS) counts[i] = 0;
}

__global__ void __launch_bounds__(RESET_THREADS) mark_kernel(SamplerState state, uint32_t slot, SlotParams p, SlotLists lists) {
  let_next_start();
  wait_for_previous();
  uint32_t* counts = state.counts + size_t(slot) * state.vocab;
  const uint32_t vocab = uint32_t(state.vocab);
  const uint32_t first = blockIdx.x * RESET_THREADS + threadIdx.x, step = gridDim.x * RESET_THREADS;
  if (p.repetition_penalty != 1.0f) {
    for (uint32_t i = first; i < lists.num_prompt; i += step) {
      if (lists.prompt[i] < vocab) atomicOr(&counts[lists.prompt[i]], SEEN_IN_PROMPT);
    }
  }
  if (has_penalties(p)) {
    for (uint32_t i = first; i < lists.num_generated; i += step) {
      if (lists.generated[i] < vocab) atomicAdd(&counts[lists.generated[i]], 1u);
    }
  }
  if (blockIdx.x != 0) return;
  for (uint32_t i = threadIdx.x; i < p.num_suppressed; i += RESET_THREADS) {
    if (lists.suppressed[i] < vocab) atomicOr(&counts[lists.suppressed[i]], SUPPRESSED);
  }
  if (p.num_biases == 0) return;
  // A bitonic sort of biases by (id, place). Biases of the same id keep their order, because sums of floats depend on it.
  __shared__ uint64_t keys[MAX_BIASES];
  for (int i = threadIdx.x; i < MAX_BIASES; i += RESET_THREADS) {
    keys[i] = uint32_t(i) < p.num_biases ? uint64_t(lists.bias_ids[i]) << 32 | uint32_t(i) : ~0ull;
  }
  for (int size = 2; size <= MAX_BIASES; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < MAX_BIASES / 2; t += RESET_THREADS) {
        const int a = t / stride * 2 * stride + t % stride, b = a + stride;
        const bool ascending = (a & size) == 0;
        const uint64_t x = keys[a], y = keys[b];
        if ((x > y) == ascending) {
          keys[a] = y;
          keys[b] = x;
        }
      }
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < p.num_biases; i += RESET_THREADS) {
    const uint32_t id = uint32_t(keys[i] >> 32);
    state.bias_ids[size_t(slot) * MAX_BIASES + i] = id;
    state.biases[size_t(slot) * MAX_BIASES + i] = lists.biases[uint32_t(keys[i])];
    if (id < vocab) atomicOr(&counts[id], BIASED);
  }
}

}  // namespace pen
