// Which experts a row uses, by one warp: the routing of experts.h.
#pragma once

#include "../device/kernel.cuh"
#include "experts.h"

namespace pen {

constexpr uint32_t ALL_LANES = 0xffffffffu;

__device__ __forceinline__ uint32_t warp_max_bits(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(ALL_LANES, x);
#else
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, offset));
  return x;
#endif
}

// Integers in the order of float32 values; 0 stands for none.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // −0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Keys of up to 32 N things: lane l holds things l, l + 32 …. Registers up to 16 N, local memory beyond.
template <int N>
struct Keys {
  static constexpr int UNROLL = N <= 16 ? N : 4;
  uint32_t key[N];

  // The thing with the highest key, of equals the first, or −1; takes it out.
  __device__ __forceinline__ int take_best(int lane) {
    uint32_t best = 0;
    int at = 0;
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) {
      if (key[j] > best) best = key[j], at = j;
    }
    const uint32_t top = warp_max_bits(best);
    if (top == 0) return -1;
    const uint32_t owners = __ballot_sync(ALL_LANES, best == top);
    int index;
    if ((owners & (owners - 1)) == 0) {
      index = __shfl_sync(ALL_LANES, at * WARP + lane, __ffs(owners) - 1);
    } else {
      index = int(~warp_max_bits(best == top ? ~uint32_t(at * WARP + lane) : 0));
    }
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) {
      if (j * WARP + lane == index) key[j] = 0;
    }
    return index;
  }
  // Keeps the experts of the `used` groups whose two best keys have the highest sums.
  __device__ __forceinline__ void keep_groups(int groups, int used, int size, int lane) {
    Keys<N> sums;
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) sums.key[j] = 0;
    for (int g = 0; g < groups; g++) {
      uint32_t first = 0, second = 0;
#pragma unroll UNROLL
      for (int j = 0; j < N; j++) {
        const uint32_t k = (j * WARP + lane) / size == g ? key[j] : 0;
        second = max(second, min(first, k)), first = max(first, k);
      }
      const uint32_t top = warp_max_bits(first);
      const bool owner = lane == __ffs(__ballot_sync(ALL_LANES, first == top)) - 1;
      const uint32_t next = warp_max_bits(owner ? second : first);
      const float sum = next ? __fadd_rn(value_of(top), value_of(next)) : value_of(top);
#pragma unroll UNROLL
      for (int j = 0; j < N; j++) {
        if (j * WARP + lane == g) sums.key[j] = ordered(sum);
      }
    }
    uint32_t picked = 0;
    for (int i = 0; i < used; i++) {
      const int g = sums.take_best(lane);
      if (g >= 0 && g % WARP == lane) picked |= 1u << (g / WARP);
    }
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) {
      const int g = (j * WARP + lane) / size;
      const uint32_t bits = __shfl_sync(ALL_LANES, picked, g % WARP);
      if (g >= groups || !(bits >> (g / WARP) & 1)) key[j] = 0;
    }
  }
};

// A score's share of all: the highest score and the sum of exp(score − highest) are known. One copy of its code: this runs once in a step,
// so what it costs is mostly the time to fetch its instructions.
inline __device__ __noinline__ float route_share(bool sigmoid, float score, float highest, float total) {
  const float above = sigmoid ? 1.0f : __expf(score - highest), below = sigmoid ? __fadd_rn(1.0f, expf(-score)) : total;
  return __fdiv_rn(above, below);
}

// Chooses a row's experts and their weights; only the experts if `weights` is null. A row that is padding (`slot`) chooses nothing.
template <int N>
__device__ __forceinline__ void route_row(const Routing& p, uint32_t slot, const float* scores, int lane, int32_t* chosen,
                                          float* weights) {
  constexpr int UNROLL = Keys<N>::UNROLL;
  // The smallest normal float16: below it, the published models' own code would divide by zero.
  constexpr float LEAST_SUM = 6.103515625e-5f;
  const Gating gating = p.gating;
  const int experts = p.num_experts, used = p.used;
  const bool adjugate = p.chunk_group > 0, grouped = p.groups > 1, biased = p.choice_bias != nullptr && !adjugate;
  const bool sigmoid = gating == Gating::SIGMOID;
  float score[N], highest = -__builtin_huge_valf();
  bool finite = true;
#pragma unroll UNROLL
  for (int j = 0; j < N; j++) {
    const int i = j * WARP + lane;
    score[j] = i < experts ? __ldcg(scores + i) : -__builtin_huge_valf();
  }
#pragma unroll UNROLL
  for (int j = 0; j < N; j++) {
    finite &= j * WARP + lane >= experts || fabsf(score[j]) < __builtin_huge_valf();
    highest = fmaxf(highest, score[j]);
  }
  finite = __all_sync(ALL_LANES, finite);
  if (slot == NO_SLOT || !finite) {
    for (int i = lane; i < used; i += WARP) {
      chosen[i] = slot == NO_SLOT ? -1 : adjugate ? i / p.chunk_group : i;
      if (weights) weights[i] = slot == NO_SLOT ? 0.0f : __int_as_float(0x7fffffff);
    }
    return;
  }
  // Whether weights are computed before the choice, as shares of all experts.
  const bool ranks_shares = sigmoid || (gating == Gating::SOFTMAX && (biased || grouped));
  const bool shares = ranks_shares || adjugate;
  highest = warp_max(highest);
  float total = 0.0f;
  if (!sigmoid && (shares || (gating == Gating::SOFTMAX && !p.normalise && weights))) {
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) {
      if (j * WARP + lane < experts) total = __fadd_rn(total, __expf(score[j] - highest));
    }
    total = warp_sum(total);
  }
  Keys<N> keys;
  if (ranks_shares) {
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) score[j] = route_share(sigmoid, score[j], highest, total);
  }
  if (biased) {
#pragma unroll UNROLL
    for (int j = 0; j < N; j++) {
      if (j * WARP + lane < experts) score[j] = __fadd_rn(score[j], p.choice_bias[j * WARP + lane]);
    }
  }
#pragma unroll UNROLL
  for (int j = 0; j < N; j++) keys.key[j] = j * WARP + lane < experts ? ordered(score[j]) : 0;
  if (grouped) keys.keep_groups(p.groups, p.groups_used, experts / p.groups, lane);

  // The lane's own choices: number `lane` and `lane + 32` of the row.
  int expert[2] = {-1, -1};
#pragma unroll 1
  for (int rank = 0; rank < used; rank++) {
    const int best = keys.take_best(lane);
    if (rank == lane) expert[0] = best;
    if (rank == lane + WARP) expert[1] = best;
  }
  if (!weights && !adjugate) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (k * WARP + lane < used) chosen[k * WARP + lane] = expert[k];
    }
    return;
  }
  float weight[2] = {}, top = -__builtin_huge_valf();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    if (expert[k] < 0) continue;
    if (adjugate) expert[k] /= p.chunk_group;
    weight[k] = __ldcg(scores + expert[k]);
    top = fmaxf(top, weight[k]);
  }
  if (gating == Gating::SOFTMAX_OF_CHOSEN) top = warp_max(top);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float from = gating == Gating::SOFTMAX_OF_CHOSEN ? top : highest;
    if (expert[k] >= 0) weight[k] = shares ? route_share(sigmoid, weight[k], highest, total) : __expf(weight[k] - from);
  }
  float sum = 0.0f;
#pragma unroll 1
  for (int rank = 0; rank < used; rank++) {
    sum = __fadd_rn(sum, __shfl_sync(ALL_LANES, rank < WARP ? weight[0] : weight[1], rank % WARP));
  }
  if (shares) {
    sum = p.normalise || adjugate ? fmaxf(sum, LEAST_SUM) : 1.0f;
  } else if (gating == Gating::SOFTMAX && !p.normalise) {
    sum = total;
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = k * WARP + lane;
    if (i >= used) continue;
    float w = __fdiv_rn(weight[k], sum);
    if (!adjugate) w = __fmul_rn(w, p.scale);
    if (!adjugate && p.output_scales && expert[k] >= 0) w = __fmul_rn(w, p.output_scales[expert[k]]);
    chosen[i] = expert[k];
    if (weights) weights[i] = w;
  }
}

// The shared expert's weight for a row, by a warp.
__device__ __forceinline__ float share_of_row(const Routing& p, int row, int lane) {
  float dot = 0.0f;
#pragma unroll 8
  for (int i = lane; i < p.hidden; i += WARP) dot = __fmaf_rn(__half2float(p.h[size_t(row) * p.ldh + i]), p.shared_router[i], dot);
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, __expf(-warp_sum(dot))));
}

constexpr int ROUTE_WARPS = 8;  // rows per block

// Grid: (ceil(rows / ROUTE_WARPS)), one warp per row. Up to 32 N experts.
template <int N>
__global__ void __launch_bounds__(ROUTE_WARPS* WARP) route_kernel(const __grid_constant__ Routing p) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (row >= p.num_rows) return;
  int32_t* chosen = p.chosen + size_t(row) * p.used;
  float* weights = p.weights + size_t(row) * p.used;
  const uint32_t slot = __ldcg(p.slot_mapping + row);
  route_row<N>(p, slot, p.scores + size_t(row) * p.num_experts, lane, chosen, weights);
  if (!p.shared_router || slot == NO_SLOT) return;
  const float share = share_of_row(p, row, lane);
  if (lane == 0) p.share[row] = share;
}

}  // namespace pen
