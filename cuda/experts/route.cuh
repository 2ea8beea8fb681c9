// Routing as defined in experts.h: the experts that a row uses, computed by one warp.
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

// Maps float32 values to integers of the same order. 0 means no key.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));  // −0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Keys per lane. Keys are in shared memory, a contiguous range per lane, followed by zeros. The code is short loops: routing runs in a
// single warp, so its cost is the number of its instructions and the time to fetch them.
__host__ __device__ constexpr int places_of_lane(int count) { return (count + 4 * WARP - 1) / (4 * WARP) * 4; }

// Finds the highest of `count` keys, the first one among equals, and sets it to 0. Returns its index, or −1 if all keys are 0.
__device__ __forceinline__ int take_best(uint32_t* keys, int count, int lane) {
  const int own = places_of_lane(count);
  const auto* from = reinterpret_cast<const uint4*>(keys + lane * own);
  uint32_t best = 0;
  int at = 0;
  for (int i = 0; i < own / 4; i++) {
    const uint4 key = from[i];
    const uint32_t highest = max(max(key.x, key.y), max(key.z, key.w));
    if (highest > best) {
      best = highest;
      at = 4 * i + (key.x == highest ? 0 : key.y == highest ? 1 : key.z == highest ? 2 : 3);
    }
  }
  const uint32_t top = warp_max_bits(best);
  if (top == 0) return -1;
  const int owner = __ffs(__ballot_sync(ALL_LANES, best == top)) - 1;
  const int index = __shfl_sync(ALL_LANES, lane * own + at, owner);
  if (lane == owner) keys[index] = 0;
  return index;
}

// Keeps only the experts of the `used` groups whose two best keys have the highest sums. `sums`: room for one key per group.
inline __device__ __noinline__ void keep_groups(uint32_t* keys, uint32_t* sums, int experts, int groups, int used, int lane) {
  const int size = experts / groups;
  for (int g = 0; g < groups; g++) {
    uint32_t first = 0, second = 0;
    for (int i = g * size + lane; i < (g + 1) * size; i += WARP) {
      const uint32_t key = keys[i];
      second = max(second, min(first, key)), first = max(first, key);
    }
    const uint32_t top = warp_max_bits(first);
    const bool owner = lane == __ffs(__ballot_sync(ALL_LANES, first == top)) - 1;
    const uint32_t next = warp_max_bits(owner ? second : first);
    const float sum = next ? __fadd_rn(value_of(top), value_of(next)) : value_of(top);
    if (g % WARP == lane) sums[g] = ordered(sum);
  }
  for (int g = groups + lane; g < WARP * places_of_lane(groups); g += WARP) sums[g] = 0;
  __syncwarp();
  uint32_t picked = 0;
  for (int i = 0; i < used; i++) {
    const int g = take_best(sums, groups, lane);
    if (g >= 0 && g % WARP == lane) picked |= 1u << (g / WARP);
  }
  for (int base = 0; base < experts; base += WARP) {
    const int i = base + lane, g = i / size;
    const uint32_t bits = __shfl_sync(ALL_LANES, picked, g % WARP);
    if (i < experts && (g >= groups || !(bits >> (g / WARP) & 1))) keys[i] = 0;
  }
}

// The weight of a score, given the highest score and the sum of exp(score − highest). Not inlined, so that its code exists once.
inline __device__ __noinline__ float route_share(bool sigmoid, float score, float highest, float total) {
  const float above = sigmoid ? 1.0f : __expf(score - highest), below = sigmoid ? __fadd_rn(1.0f, expf(-score)) : total;
  return __fdiv_rn(above, below);
}

// Words of shared memory that route_row() needs.
__host__ __device__ constexpr int route_words(int experts, int groups) {
  return WARP * (places_of_lane(experts) + (groups > 1 ? places_of_lane(groups) : 0));
}

// Chooses a row's experts and their weights, by a warp. If `weights` is null, chooses only the experts. A padding row (by its `slot`)
// chooses nothing. `keys`: route_words() of shared memory, aligned to 16 bytes.
inline __device__ void route_row(const Routing& p, uint32_t slot, const float* scores, int lane, uint32_t* keys, int32_t* chosen,
                                 float* weights) {
  // The smallest normal float16. Below it, the published models' own code would divide by zero.
  constexpr float LEAST_SUM = 6.103515625e-5f;
  const Gating gating = p.gating;
  const int experts = p.num_experts, used = p.used;
  const bool adjugate = p.chunk_group > 0, grouped = p.groups > 1, biased = p.choice_bias != nullptr && !adjugate;
  const bool sigmoid = gating == Gating::SIGMOID;
  float highest = -__builtin_huge_valf();
  bool finite = true;
#pragma unroll 8
  for (int i = lane; i < experts; i += WARP) {
    const float score = __ldcg(scores + i);
    finite &= fabsf(score) < __builtin_huge_valf();
    highest = fmaxf(highest, score);
    keys[i] = ordered(score);
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
#pragma unroll 1
    for (int i = lane; i < experts; i += WARP) total = __fadd_rn(total, __expf(value_of(keys[i]) - highest));
    total = warp_sum(total);
  }
  if (ranks_shares || biased) {
#pragma unroll 2
    for (int i = lane; i < experts; i += WARP) {
      float rank = value_of(keys[i]);
      if (ranks_shares) rank = route_share(sigmoid, rank, highest, total);
      if (biased) rank = __fadd_rn(rank, p.choice_bias[i]);
      keys[i] = ordered(rank);
    }
  }
  for (int i = experts + lane; i < WARP * places_of_lane(experts); i += WARP) keys[i] = 0;
  __syncwarp();
  if (grouped) {
    keep_groups(keys, keys + WARP * places_of_lane(experts), experts, p.groups, p.groups_used, lane);
    __syncwarp();
  }

  // The lane's own choices: numbers `lane` and `lane + 32` of the row.
  int expert[2] = {-1, -1};
#pragma unroll 1
  for (int rank = 0; rank < used; rank++) {
    const int best = take_best(keys, experts, lane);
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

// The shared expert's weight for a row, computed by a warp.
__device__ __forceinline__ float share_of_row(const Routing& p, int row, int lane) {
  float dot = 0.0f;
#pragma unroll 8
  for (int i = lane; i < p.hidden; i += WARP) dot = __fmaf_rn(__half2float(p.h[size_t(row) * p.ldh + i]), p.shared_router[i], dot);
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, __expf(-warp_sum(dot))));
}

}  // namespace pen
