// Finishes a step's fresh Q, K and V, with one warp per token and head. For few sequences, decode attention does this itself. Otherwise
// this kernel or that of qkv_rows.cuh does.
#pragma once

#include "../device/kernel.cuh"
#include "../device/rope.cuh"
#include "attention.h"

namespace pen {

constexpr int QKV_WARPS = 4;
constexpr int QKV_PAIRS = 4;  // most pairs of elements per lane: head_dim up to 256

// Clamps before rounding: a value beyond float16's range must not become infinite, because an infinite V times a masked 0 is NaN. A NaN
// stays NaN.
__device__ __forceinline__ __half to_half(float x) {
  return __float2half_rn(x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

enum class Head : int { Q, K, V };

// One token's head of up to 64 PAIRS elements, by a warp. Everything that does not depend on the step's products is computed and requested
// first: in a short step, the instructions after the wait are nearly all that attention costs.
template <int PAIRS>
struct FreshHead {
  const float* x;
  bool normed;
  float inverse_dim, eps;
  // Pairs: the rotated ones first, then the other elements, two by two.
  bool there[PAIRS];
  int first[PAIRS], second[PAIRS];
  float cosine[PAIRS], sine[PAIRS], bias_a[PAIRS], bias_b[PAIRS], norm_a[PAIRS], norm_b[PAIRS];

  // `index`: number among the heads of its kind. `grid`: the row's second and third position, or null if they equal the first.
  __device__ __forceinline__ void prepare(const QkvFinish& p, Head kind, int index, int token, uint32_t position, bool exists, int lane,
                                          const uint32_t* grid = nullptr) {
    const int head_dim = p.kv.head_dim, kv_heads = p.kv.num_kv_heads;
    const int before = kind == Head::Q ? 0 : kind == Head::K ? p.num_heads : p.num_heads + kv_heads;
    x = held(p.qkv + (static_cast<size_t>(token) * (p.num_heads + 2 * kv_heads) + before + index) * head_dim);
    const float* bias = kind == Head::Q ? p.q_bias : kind == Head::K ? p.k_bias : p.v_bias;
    const float* norm = kind == Head::Q ? p.q_norm : kind == Head::K ? p.k_norm : nullptr;
    if (bias != nullptr) bias += index * head_dim;
    normed = norm != nullptr, inverse_dim = held(__frcp_rn(static_cast<float>(head_dim))), eps = held(p.norm_eps);
    const int rotated = kind == Head::V ? 0 : p.rope_dim / 2;
    const float* table = p.rope + static_cast<size_t>(position) * p.rope_dim;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      const int i = lane + WARP * j;
      const bool in_rope = i < rotated, halves = in_rope && p.rope_halves;
      there[j] = exists && i < head_dim / 2;
      first[j] = held(halves ? i : 2 * i);
      second[j] = held(halves ? i + rotated : 2 * i + 1);
      cosine[j] = norm_a[j] = norm_b[j] = 1.0f, sine[j] = bias_a[j] = bias_b[j] = 0.0f;
      if (!there[j]) continue;
      if (in_rope) {
        const float* row = grid == nullptr ? table : rope_row(p.rope, p.rope_dim, p.rope_axes, i, position, grid);
        cosine[j] = row[i], sine[j] = row[rotated + i];
      }
      if (bias != nullptr) bias_a[j] = bias[first[j]], bias_b[j] = bias[second[j]];
      if (norm != nullptr) norm_a[j] = norm[first[j]], norm_b[j] = norm[second[j]];
    }
  }

  // put(j, which element of the pair, value)
  template <class Put>
  __device__ __forceinline__ void finish(Put put) const {
    float a[PAIRS], b[PAIRS], squares = 0.0f;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      a[j] = there[j] ? __ldcg(x + first[j]) : 0.0f;
      b[j] = there[j] ? __ldcg(x + second[j]) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      a[j] = __fadd_rn(a[j], bias_a[j]), b[j] = __fadd_rn(b[j], bias_b[j]);
      squares = __fmaf_rn(b[j], b[j], __fmaf_rn(a[j], a[j], squares));
    }
    if (normed) {
      const float inverse = rsqrtf(__fmaf_rn(warp_sum(squares), inverse_dim, eps));
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        a[j] = __fmul_rn(a[j], __fmul_rn(inverse, norm_a[j]));
        b[j] = __fmul_rn(b[j], __fmul_rn(inverse, norm_b[j]));
      }
    }
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      if (!there[j]) continue;
      put(j, 0, to_half(__fmaf_rn(a[j], cosine[j], -__fmul_rn(b[j], sine[j]))));
      put(j, 1, to_half(__fmaf_rn(a[j], sine[j], __fmul_rn(b[j], cosine[j]))));
    }
  }
};

// The row of a slot in the pages of K or V.
__device__ __forceinline__ __half* page_row(const KvView& kv, __half* pages, uint32_t slot, int kv_head) {
  const size_t row = (static_cast<size_t>(slot / kv.block_size) * kv.num_kv_heads + kv_head) * kv.block_size + slot % kv.block_size;
  return pages + row * kv.head_dim;
}

// Grid: (ceil(num_tokens · (num_heads + 2 num_kv_heads) / QKV_WARPS)).
//
// Positions, slots and tables are read before the wait: the host copied the former two, and the tables never change. The next kernel may
// start only after the wait. Before its own wait, attention may then fetch whatever earlier kernels wrote, except the fresh rows. `early`:
// the next kernel may start before this kernel's wait, because until its own wait it fetches only what earlier steps wrote. GRID: the rows
// have three positions.
template <bool GRID>
__global__ void __launch_bounds__(32 * QKV_WARPS) qkv_finish_kernel(QkvFinish p, StepView step, bool early) {
  const int head_dim = p.kv.head_dim, heads = p.num_heads + 2 * p.kv.num_kv_heads;
  const int lane = threadIdx.x % WARP;
  const long long item = static_cast<long long>(blockIdx.x) * QKV_WARPS + threadIdx.x / WARP;
  const bool real = item < static_cast<long long>(step.num_tokens) * heads;
  const int token = real ? static_cast<int>(item / heads) : 0, head = real ? static_cast<int>(item % heads) : 0;
  const uint32_t slot = real ? step.slot_mapping[token] : NO_SLOT;
  const Head kind = head < p.num_heads ? Head::Q : head < p.num_heads + p.kv.num_kv_heads ? Head::K : Head::V;
  const int index = kind == Head::Q ? head : head - p.num_heads - (kind == Head::V ? p.kv.num_kv_heads : 0);
  FreshHead<QKV_PAIRS> fresh;
  const uint32_t* grid = GRID ? step.grid + 2 * static_cast<size_t>(token) : nullptr;
  fresh.prepare(p, kind, index, token, slot == NO_SLOT ? 0 : step.positions[token], slot != NO_SLOT, lane, grid);
  if (early) let_next_start();
  wait_for_previous();
  let_next_start();
  if (slot == NO_SLOT) return;
  __half* out = kind == Head::Q ? p.q + (static_cast<size_t>(token) * p.num_heads + head) * head_dim
                                : page_row(p.kv, kind == Head::V ? p.kv.v : p.kv.k, slot, index);
  fresh.finish([&](int j, int which, __half y) { out[which == 0 ? fresh.first[j] : fresh.second[j]] = y; });
}

}  // namespace pen
