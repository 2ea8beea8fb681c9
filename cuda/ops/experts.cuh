// Feed-forward layers of which each row computes with a few, its experts (Shazeer et al. 2017).
//
// The numeric definition: a row's experts are those with the highest scores, of equals the one with the lower number, in descending
// order. The weight of one is exp(score − highest) over the sum of that of all experts (lane l of a warp adds experts l, l + 32 …, then
// the lanes' tree), or over that of the row's, in their order. An expert's output is linear.cuh's, whose bits do not depend on the rows
// beside it. A row's sum takes its experts in their order, then the shared one, each product rounded. So nothing depends on how rows
// are grouped.
//
// A *choice* is a row's use of an expert: choice c is expert number c % used of row c / used. Choices of one expert make groups of as
// many as a block multiplies at once; a group may be short.
#pragma once

#include "linear.cuh"

namespace pen {

constexpr int ROUTE_WARPS = 8;       // rows of a block
constexpr int GROUP_THREADS = 1024;  // one block groups a step
constexpr int MAX_EXPERTS = 4096;    // counted in shared memory

struct Routing {
  const float* scores;           // [num_rows, num_experts]
  const uint32_t* slot_mapping;  // [num_rows] NO_SLOT: padding, which chooses nothing
  const __half* h;               // [num_rows, ldh] the layer's input
  const float* shared_router;    // [hidden] or null
  int num_rows, num_experts, used, ldh, hidden;
  bool normalise;
  int32_t* chosen;  // [num_rows, used] out: experts, or -1
  float* weights;   // [num_rows, used] out
  float* share;     // [num_rows] out, the shared expert's weight
};

__device__ __forceinline__ bool comes_before(float a, int i, float b, int j) { return a > b || (a == b && i < j); }

// A warp a row.
static __global__ void __launch_bounds__(ROUTE_WARPS* WARP) route_kernel(const __grid_constant__ Routing p) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (row >= p.num_rows) return;
  int32_t* chosen = p.chosen + size_t(row) * p.used;
  float* weights = p.weights + size_t(row) * p.used;
  if (p.slot_mapping[row] == 0xffffffffu) {
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
    // Scores that are no numbers choose expert 0 with a weight that is none: the row fails, as it must.
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

struct Grouping {
  const int32_t* chosen;  // [num_choices]
  int num_choices, num_experts, group, max_groups;
  int32_t* expert_of;  // [max_groups] out: a group's expert, or -1
  int32_t* order;      // [max_groups, group] out: choices, or -1
};

// The most groups that so many choices can make.
__host__ __device__ constexpr int most_groups(int choices, int experts, int group) {
  const int padded = int((int64_t(choices) + int64_t(experts) * (group - 1)) / group);
  return choices < padded ? choices : padded;
}

// One block; shared memory: two integers an expert. Where in its group a choice lands is left to the counters: no bit depends on it.
static __global__ void __launch_bounds__(GROUP_THREADS) group_kernel(const __grid_constant__ Grouping p) {
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

// Products of groups with their experts' matrices.
struct ExpertLinear {
  // One expert's matrices that read the same x; `data` is that of a stack of them.
  Matrix w[2];
  int out_offset[2];
  int num_segments;
  const int32_t* expert_of;  // [groups]
  const int32_t* order;      // [groups, 8 NT]
  const __half* x;           // [rows, ldx], columns past the matrix's are zero up to a multiple of 64; choice c reads row c / share
  int ldx, share;
  float* out;      // [choices, ldo]
  __half* out16;   // [choices, ldo]
  int ldo;
  Epilogue epilogue;  // STORE, SILU_MUL or GELU_MUL
};

// Grid: (groups of MT row tiles of all segments, groups of NT · 8 choices). As linear_kernel, but that which weights to read is known
// only after the wait.
template <int MT, int NT>
static __global__ void __launch_bounds__(SLICES* WARP, MT* NT <= 2 ? 2 : 1) expert_kernel(const __grid_constant__ ExpertLinear p) {
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
  const int log_rows = glu ? 3 : 4;  // of a tile's outputs
#pragma unroll
  for (int m = 0; m < MT; m++) {
    if (m > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const int row = lane / 4, at = 8 * n + 2 * (lane % 4);
      partial[warp][at][row] = acc[m][n][0];
      partial[warp][at + 1][row] = acc[m][n][1];
      partial[warp][at][row + 8] = acc[m][n][2];
      partial[warp][at + 1][row + 8] = acc[m][n][3];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < NT * 8 << log_rows; i += SLICES * WARP) {
      const int at = i >> log_rows, row = i & ((1 << log_rows) - 1);
      if (choices[at] < 0) continue;
      const auto sum = [&](int r) {
        float total = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[s][at][r]);
        return total;
      };
      const size_t to = size_t(choices[at]) * p.ldo + offset;
      const int column = (tile + m) * (glu ? 8 : TILE_ROWS) + row;
      if ((glu ? 2 * column : column) >= w.rows) continue;
      if (glu) {
        p.out16[to + column] = gated(sum(row), sum(row + 8), p.epilogue);
      } else {
        p.out[to + column] = sum(row);
      }
    }
  }
}

struct Combine {
  const float* outputs;  // [num_rows, used, hidden] of the experts
  const float* weights;  // [num_rows, used]
  const float* shared;   // [num_rows, hidden] of the shared expert, or null
  const float* share;    // [num_rows]
  const uint32_t* slot_mapping;  // [num_rows]
  float* out;            // [num_rows, hidden]
  int hidden, used;
  bool add;  // to what is there
};

// Grid: (ceil(hidden / ROUTE_WARPS · WARP), rows)
static __global__ void __launch_bounds__(ROUTE_WARPS* WARP) combine_kernel(const __grid_constant__ Combine p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ROUTE_WARPS * WARP + threadIdx.x;
  const size_t row = blockIdx.y;
  if (i >= p.hidden || p.slot_mapping[row] == 0xffffffffu) return;
  float sum = 0.0f;
  for (int rank = 0; rank < p.used; rank++) {
    sum = __fadd_rn(sum, __fmul_rn(p.weights[row * p.used + rank], p.outputs[(row * p.used + rank) * p.hidden + i]));
  }
  if (p.shared) sum = __fadd_rn(sum, __fmul_rn(p.share[row], p.shared[row * p.hidden + i]));
  float& out = p.out[row * p.hidden + i];
  out = p.add ? __fadd_rn(out, sum) : sum;
}

}  // namespace pen
