// The kernels of experts.h.
#pragma once

#include "../linear/batch.cuh"
#include "experts.h"

namespace pen {

constexpr int ROUTE_WARPS = 8;       // rows per block
constexpr int GROUP_THREADS = 1024;  // of the one block that groups a step

__device__ __forceinline__ bool comes_before(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// Grid: (ceil(rows / ROUTE_WARPS)), one warp per row.
__global__ void __launch_bounds__(ROUTE_WARPS* WARP) route_kernel(const __grid_constant__ Routing p) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (row >= p.num_rows) return;
  int32_t* chosen = p.chosen + size_t(row) * p.used;
  float* weights = p.weights + size_t(row) * p.used;
  if (p.slot_mapping[row] == NO_SLOT) {
    for (int i = lane; i < p.used; i += WARP) chosen[i] = -1, weights[i] = 0.0f;
    return;
  }
  const float* scores = p.scores + size_t(row) * p.num_experts;
  const float NOTHING = -__builtin_huge_valf();
  float before = __builtin_huge_valf(), highest = 0.0f, sum = 0.0f;
  int last = -1;
  for (int rank = 0; rank < p.used; rank++) {
    float best = NOTHING;
    int at = p.num_experts;
    for (int i = lane; i < p.num_experts; i += WARP) {
      const float score = scores[i];
      if (comes_before(before, last, score, i) && comes_before(score, i, best, at)) best = score, at = i;
    }
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
      if (comes_before(other, other_at, best, at)) best = other, at = other_at;
    }
    // If the scores are NaN, the row takes expert 0 with a NaN as its weight, so that its result fails.
    const bool found = at < p.num_experts;
    if (rank == 0) highest = best;
    const float weight = found ? __expf(best - highest) : __int_as_float(0x7fffffff);
    sum = __fadd_rn(sum, weight);
    if (lane == 0) chosen[rank] = found ? at : 0, weights[rank] = weight;
    before = best, last = at;
  }
  if (!p.normalise) {
    sum = 0.0f;
    for (int i = lane; i < p.num_experts; i += WARP) sum = __fadd_rn(sum, __expf(scores[i] - highest));
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < p.used; i += WARP) weights[i] = __fdiv_rn(weights[i], sum);
  if (!p.shared_router) return;
  float dot = 0.0f;
  for (int i = lane; i < p.hidden; i += WARP) dot = __fmaf_rn(__half2float(p.h[size_t(row) * p.ldh + i]), p.shared_router[i], dot);
  dot = warp_sum(dot);
  if (lane == 0) p.share[row] = __fdiv_rn(1.0f, __fadd_rn(1.0f, __expf(-dot)));
}

// One block; shared memory: two integers per expert. The counters' timing decides where in its group a choice lands; no bit depends on
// that.
__global__ void __launch_bounds__(GROUP_THREADS) group_kernel(const __grid_constant__ Grouping p) {
  extern __shared__ int group_counters[];
  int* counts = group_counters;
  int* first = group_counters + p.num_experts;  // group of each expert
  let_next_start();
  wait_for_previous();
  for (int i = threadIdx.x; i < p.num_experts; i += GROUP_THREADS) counts[i] = 0;
  for (int i = threadIdx.x; i < p.max_groups; i += GROUP_THREADS) p.expert_of[i] = -1;
  for (int i = threadIdx.x; i < p.max_groups * p.group; i += GROUP_THREADS) p.order[i] = -1;
  __syncthreads();
  for (int c = threadIdx.x; c < p.num_choices; c += GROUP_THREADS) {
    if (p.chosen[c] >= 0) atomicAdd(&counts[p.chosen[c]], 1);
  }
  __syncthreads();
  if (threadIdx.x < WARP) {
    int next = 0;
    for (int base = 0; base < p.num_experts; base += WARP) {
      const int expert = base + threadIdx.x;
      const int groups = expert < p.num_experts ? ceil_div(counts[expert], p.group) : 0;
      int end = groups;
#pragma unroll
      for (int offset = 1; offset < WARP; offset *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, end, offset);
        if (threadIdx.x >= offset) end += below;
      }
      if (expert < p.num_experts) {
        first[expert] = next + end - groups;
        for (int g = 0; g < groups; g++) p.expert_of[next + end - groups + g] = expert;
        counts[expert] = 0;
      }
      next += __shfl_sync(0xffffffffu, end, WARP - 1);
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < p.num_choices; c += GROUP_THREADS) {
    const int expert = p.chosen[c];
    if (expert >= 0) p.order[first[expert] * p.group + atomicAdd(&counts[expert], 1)] = c;
  }
}

// Grid: (groups of MT row tiles of all segments, groups of NT · 8 choices). Like linear_kernel, except that a block learns only after
// its wait which weights to read.
template <int MT, int NT>
__global__ void __launch_bounds__(SLICES* WARP, MT* NT <= 2 ? 2 : 1) expert_kernel(const __grid_constant__ ExpertLinear p) {
  using Shared = LinearShared<MT, NT>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* partial = reinterpret_cast<float(*)[NT * 8][Shared::STRIDE]>(shared);
  __shared__ int32_t choices[NT * 8];
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int group = blockIdx.x, segment = 0;
  while (segment + 1 < p.num_segments && group >= ceil_div(p.w[segment].tiles(), MT)) group -= ceil_div(p.w[segment++].tiles(), MT);
  Matrix w = p.w[segment];
  const int tile = group * MT, offset = p.out_offset[segment];
  const bool glu = p.epilogue != Epilogue::STORE;
  wait_for_previous();
  const int expert = p.expert_of[blockIdx.y];
  if (expert < 0) return;
  w.data += size_t(expert) * w.tiles() * w.chunks() * w.record_bytes;
  if (threadIdx.x < NT * 8) choices[threadIdx.x] = p.order[blockIdx.y * NT * 8 + threadIdx.x];
  __syncthreads();
  const auto ready = [&](const __half* (&x)[NT]) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const int choice = choices[8 * n + lane / 4];
      x[n] = choice >= 0 ? p.x + size_t(choice / p.share) * p.ldx + 2 * (lane % 4) : nullptr;
    }
  };
  float acc[MT][NT][4] = {};
  with_format(w.format, [&](auto format) { multiply_slice<decltype(format), MT, NT>(acc, w, tile, warp, lane, ready); });
  const Output out{p.out, p.out16, offset, p.ldo, w.rows, p.epilogue, glu};
  finish_tiles<MT, NT, false>(out, acc, partial, tile, [&](int column, int& row) {
    row = choices[column];
    return row >= 0;
  });
}

// Grid: (ceil(hidden / ROUTE_WARPS · WARP), rows)
__global__ void __launch_bounds__(ROUTE_WARPS* WARP) combine_kernel(const __grid_constant__ Combine p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ROUTE_WARPS * WARP + threadIdx.x;
  const size_t row = blockIdx.y;
  if (i >= p.hidden || p.slot_mapping[row] == NO_SLOT) return;
  float sum = 0.0f;
  for (int rank = 0; rank < p.used; rank++) {
    sum = __fadd_rn(sum, __fmul_rn(p.weights[row * p.used + rank], p.outputs[(row * p.used + rank) * p.hidden + i]));
  }
  if (p.shared) sum = __fadd_rn(sum, __fmul_rn(p.share[row], p.shared[row * p.hidden + i]));
  float& out = p.out[row * p.hidden + i];
  out = p.add ? __fadd_rn(out, sum) : sum;
}

}  // namespace pen
