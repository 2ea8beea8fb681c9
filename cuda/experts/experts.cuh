// The kernels of experts.h for any number of rows.
#pragma once

#include "../linear/batch.cuh"
#include "activated.cuh"
#include "route.cuh"

namespace pen {

constexpr int GROUP_THREADS = 1024;   // threads of the one block that groups a step
constexpr int COMBINE_THREADS = 256;  // threads of a block in kernels with a thread per element

constexpr int ROUTE_WARPS = 8;  // most rows per block

// Grid: (ceil(rows / warps per block)), one warp per row.
__global__ void __launch_bounds__(ROUTE_WARPS* WARP) route_kernel(const __grid_constant__ Routing p) {
  extern __shared__ uint32_t route_keys[];
  let_next_start();
  wait_for_previous();
  const int warp = threadIdx.x / WARP, row = blockIdx.x * (blockDim.x / WARP) + warp, lane = threadIdx.x % WARP;
  if (row >= p.num_rows) return;
  int32_t* chosen = p.chosen + size_t(row) * p.used;
  float* weights = p.weights + size_t(row) * p.used;
  const uint32_t slot = __ldcg(p.slot_mapping + row);
  uint32_t* const keys = route_keys + warp * route_words(p.num_experts, p.groups);
  route_row(p, slot, p.scores + size_t(row) * p.num_experts, lane, keys, chosen, weights);
  if (!p.shared_router || slot == NO_SLOT) return;
  const float share = share_of_row(p, row, lane);
  if (lane == 0) p.share[row] = share;
}

// Grid: one block. Shared memory: two integers per expert. The timing of the counters decides at which place of its group a choice ends up.
// No bit of the result depends on that.
__global__ void __launch_bounds__(GROUP_THREADS) group_kernel(const __grid_constant__ Grouping p) {
  extern __shared__ int group_counters[];
  int* counts = group_counters;
  int* first = group_counters + p.num_experts;  // first group of each expert
  let_next_start();
  wait_for_previous();
  // Reads several choices at once before the atomic additions, because the compiler does not move reads across these.
  const auto each_choice = [&](auto f) {
    constexpr int BATCH = 8;
    for (int base = threadIdx.x; base < p.num_choices; base += BATCH * GROUP_THREADS) {
      int32_t experts[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int c = base + k * GROUP_THREADS;
        experts[k] = c < p.num_choices ? __ldcg(p.chosen + c) : -1;
      }
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        if (experts[k] >= 0) f(base + k * GROUP_THREADS, experts[k]);
      }
    }
  };
  for (int i = threadIdx.x; i < p.num_experts; i += GROUP_THREADS) counts[i] = 0;
  for (int i = threadIdx.x; i < p.max_groups; i += GROUP_THREADS) p.expert_of[i] = -1;
  for (int i = threadIdx.x; i < p.max_groups * p.group; i += GROUP_THREADS) p.order[i] = -1;
  __syncthreads();
  each_choice([&](int, int expert) { atomicAdd(&counts[expert], 1); });
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
    if (threadIdx.x == 0) *p.num_groups = next;
  }
  __syncthreads();
  each_choice([&](int c, int expert) { p.order[first[expert] * p.group + atomicAdd(&counts[expert], 1)] = c; });
}

// Adds up the slices' sums of MT row tiles × NT · 8 columns of the product. `partial`: shared memory of LinearShared<MT, NT>. Calls
// put(tile, column, row, sum) for the first ROWS rows of each tile, where sum(row) is a row's sum. The rows of a tile are known when the
// kernel is compiled. In finish_tiles, whose epilogue is chosen per launch, they are not.
template <int MT, int NT, int ROWS, class Put>
__device__ __forceinline__ void add_slices(const float (&acc)[MT][NT][4], float (*partial)[NT * 8][LinearShared<MT, NT>::STRIDE], Put put) {
#pragma unroll
  for (int m = 0; m < MT; m++) {
    if (m > 0) __syncthreads();
    share_sums(acc[m], partial);
    __syncthreads();
    for (int i = threadIdx.x; i < NT * 8 * ROWS; i += SLICES * WARP) {
      const int column = i / ROWS;
      put(m, column, i % ROWS, [&](int r) { return sum_of_slices(partial, column, r); });
    }
  }
}

// Grid: (groups of MT row tiles of all segments, NT · 8 choices, which are a group or a part of one). Like linear_kernel, except that a
// block learns only after its wait which weights to read.
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
  const int tile = group * MT;
  wait_for_previous();
  const int expert = p.expert_of[blockIdx.y * (NT * 8) / p.group];
  if (expert < 0) return;
  w.data += size_t(expert) * w.tiles() * w.k_tiles() * w.record_bytes;
  if (threadIdx.x < NT * 8) choices[threadIdx.x] = p.order[blockIdx.y * NT * 8 + threadIdx.x];
  __syncthreads();
  if (choices[0] < 0) return;  // this part of the group has no choices
  const auto ready = [&](const __half* (&x)[NT]) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const int choice = choices[8 * n + lane / 4];
      x[n] = choice >= 0 ? p.x + size_t(choice / p.share) * p.ldx + 2 * (lane % 4) : nullptr;
    }
  };
  float acc[MT][NT][4] = {};
  with_format(w.format, [&](auto format) { multiply_slice<decltype(format), MT, NT>(acc, w, tile, warp, lane, ready); });
  const auto place = [&](int column, size_t& at) {
    const int choice = choices[column];
    at = size_t(choice) * p.ldo + p.out_offset[segment];
    return choice >= 0;
  };
  if (p.glu) {
    const int ffn = w.rows / 2;
    add_slices<MT, NT, 8>(acc, partial, [&](int m, int column, int row, auto sum) {
      size_t at;
      const int i = (tile + m) * 8 + row;
      if (i < ffn && place(column, at)) p.out16[at + i] = activated(p, expert, ffn, i, sum(row), sum(row + 8));
    });
  } else {
    add_slices<MT, NT, TILE_ROWS>(acc, partial, [&](int m, int column, int row, auto sum) {
      size_t at;
      const int i = (tile + m) * TILE_ROWS + row;
      if (i < w.rows && place(column, at)) p.out[at + i] = sum(row);
    });
  }
}

// Grid: (choices, ceil(columns with padding / COMBINE_THREADS))
__global__ void __launch_bounds__(COMBINE_THREADS) expert_activate_kernel(const __grid_constant__ ExpertActivate p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.y * COMBINE_THREADS + threadIdx.x, expert = p.chosen[blockIdx.x];
  if (expert < 0 || i >= int(round_up(p.ffn, K_TILE))) return;
  __half& out = p.out[size_t(blockIdx.x) * p.ldh + i];
  if (i >= p.ffn) {
    out = __float2half_rn(0.0f);
    return;
  }
  const float* row = p.gate_up + size_t(blockIdx.x) * p.ffn * (p.gated ? 2 : 1);
  if (p.gated) {
    out = activated(p, expert, p.ffn, i, row[i], row[p.ffn + i]);
  } else {
    const float up = p.up_bias ? __fadd_rn(row[i], p.up_bias[size_t(expert) * p.ffn + i]) : row[i];
    out = clamped_half(activation(p.activation, up, p.params));
  }
}

// Grid: (choices, ceil(columns with padding / COMBINE_THREADS))
__global__ void __launch_bounds__(COMBINE_THREADS) weigh_input_kernel(const __grid_constant__ WeighInput p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
  const size_t choice = blockIdx.x;
  if (p.chosen[choice] < 0 || i >= int(round_up(p.hidden, K_TILE))) return;
  const float x = i < p.hidden ? __fmul_rn(__half2float(p.h[choice / p.used * p.ldh + i]), p.weights[choice]) : 0.0f;
  p.out[choice * p.ld + i] = clamped_half(x);
}

// Grid: (rows, ceil(hidden / COMBINE_THREADS))
__global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(const __grid_constant__ Combine p) {
  __shared__ uint8_t eighths[MAX_USED];
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.y * COMBINE_THREADS + threadIdx.x;
  const size_t row = blockIdx.x;
  if (threadIdx.x < p.used) eighths[threadIdx.x] = uint8_t(eighth_of(p.chosen[row * p.used + threadIdx.x], p.num_experts));
  __syncthreads();
  if (i >= p.hidden || p.slot_mapping[row] == NO_SLOT) return;
  EighthSums sums;
#pragma unroll 8
  for (int rank = 0; rank < p.used; rank++) {
    const size_t choice = row * p.used + rank;
    float y = p.outputs[choice * p.hidden + i];
    if (p.down_bias) y = __fadd_rn(y, p.down_bias[size_t(p.chosen[choice]) * p.hidden + i]);
    const float weight = p.weights ? __fmul_rn(p.weights[choice], p.factor) : p.factor;
    sums.add(eighths[rank], __fmul_rn(weight, y));
  }
  float sum = sums.total();
  if (p.shared) sum = __fadd_rn(sum, __fmul_rn(p.share ? p.share[row] : 1.0f, p.shared[row * p.hidden + i]));
  if (p.mean_shared) sum = __fmul_rn(sum, 0.5f);
  sum = __fmul_rn(sum, p.scale);
  float& out = p.out[row * p.hidden + i];
  out = p.add ? __fadd_rn(out, sum) : sum;
}

}  // namespace pen
