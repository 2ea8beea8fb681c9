// Finishes a step's fresh Q, K and V: bias, RMS norm of each head (Qwen3, Gemma 3), rotation (RoFormer, Su et al. 2021), rounding to
// float16; K and V go into their page slots. One warp a (token, head), float32 inside. The work of a row depends on that row only.
#pragma once

#include "../src/ops.h"

namespace pen {

constexpr int QKV_WARPS = 4;
constexpr int QKV_PAIRS = 4;  // pairs of elements a lane, at most: head_dim up to 256

// What does not fit must not become infinite: an infinite V would turn its masked product into a NaN. A NaN stays one.
__device__ __forceinline__ __half to_half(float x) {
  return __float2half_rn(x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

// One (token, head) of up to 64 PAIRS elements, by a warp: what does not depend on the step's products is requested first.
template <int PAIRS>
struct FreshHead {
  bool is_q, is_v, real;
  int kv_head, rotated, pairs;
  const float* norm;
  // Where pair i lies: rotated pairs first, then what is left, two by two.
  int first[PAIRS], second[PAIRS];
  float cosine[PAIRS], sine[PAIRS], bias_a[PAIRS], bias_b[PAIRS];

  __device__ __forceinline__ void prepare(const QkvFinish& p, int head, uint32_t position, bool exists, int lane) {
    const int head_dim = p.kv.head_dim, kv_heads = p.kv.num_kv_heads;
    is_q = head < p.num_heads, is_v = head >= p.num_heads + kv_heads, real = exists;
    kv_head = is_q ? 0 : (head - p.num_heads) % kv_heads;
    const float* bias = is_q ? p.q_bias : is_v ? p.v_bias : p.k_bias;
    if (bias != nullptr) bias += (is_q ? head : kv_head) * head_dim;
    norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    rotated = is_v ? 0 : p.rope_dim / 2, pairs = head_dim / 2;
    const float* table = p.rope;
    if (real && rotated > 0) table += static_cast<size_t>(position) * p.rope_dim;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      const int i = lane + WARP * j;
      const bool turned = i < rotated, halves = turned && p.rope_halves;
      first[j] = halves ? i : 2 * i;
      second[j] = halves ? i + rotated : 2 * i + 1;
      cosine[j] = 1.0f, sine[j] = 0.0f, bias_a[j] = 0.0f, bias_b[j] = 0.0f;
      if (!real || i >= pairs) continue;
      if (turned) cosine[j] = table[i], sine[j] = table[rotated + i];
      if (bias != nullptr) bias_a[j] = bias[first[j]], bias_b[j] = bias[second[j]];
    }
  }

  // `x` [head_dim] of the products to `out` [head_dim].
  __device__ __forceinline__ void finish(const QkvFinish& p, const float* x, __half* out, int lane) const {
    float a[PAIRS], b[PAIRS], squares = 0.0f;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      a[j] = 0.0f, b[j] = 0.0f;
      if (lane + WARP * j >= pairs) continue;
      a[j] = __fadd_rn(x[first[j]], bias_a[j]);
      b[j] = __fadd_rn(x[second[j]], bias_b[j]);
      squares = __fmaf_rn(b[j], b[j], __fmaf_rn(a[j], a[j], squares));
    }
    if (norm != nullptr) {
      const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.kv.head_dim) + p.norm_eps);
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
        if (lane + WARP * j >= pairs) continue;
        a[j] = __fmul_rn(a[j], __fmul_rn(inverse, norm[first[j]]));
        b[j] = __fmul_rn(b[j], __fmul_rn(inverse, norm[second[j]]));
      }
    }
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
      const int i = lane + WARP * j;
      if (i >= pairs) continue;
      const bool turned = i < rotated;
      out[first[j]] = to_half(turned ? __fmaf_rn(a[j], cosine[j], -__fmul_rn(b[j], sine[j])) : a[j]);
      out[second[j]] = to_half(turned ? __fmaf_rn(a[j], sine[j], __fmul_rn(b[j], cosine[j])) : b[j]);
    }
  }
};

// The place of a slot's row in the pages of K or V.
__device__ __forceinline__ __half* page_row(const KvView& kv, __half* pages, uint32_t slot, int kv_head) {
  const size_t row = (static_cast<size_t>(slot / kv.block_size) * kv.num_kv_heads + kv_head) * kv.block_size + slot % kv.block_size;
  return pages + row * kv.head_dim;
}

// grid [ceil(num_tokens * (num_heads + 2 num_kv_heads) / QKV_WARPS)], block [32 QKV_WARPS]
//
// Positions and slots are the host's copies and the tables are static, so they are read before the wait. The next kernel is let go
// only after it: attention may then fetch, ahead of its own wait, whatever earlier kernels wrote, the fresh rows aside.
__global__ void __launch_bounds__(32 * QKV_WARPS) qkv_finish_kernel(QkvFinish p, StepView step) {
  const int head_dim = p.kv.head_dim, heads = p.num_heads + 2 * p.kv.num_kv_heads;
  const int lane = threadIdx.x % WARP;
  const long long item = static_cast<long long>(blockIdx.x) * QKV_WARPS + threadIdx.x / WARP;
  const bool real = item < static_cast<long long>(step.num_tokens) * heads;
  const int token = real ? static_cast<int>(item / heads) : 0, head = real ? static_cast<int>(item % heads) : 0;
  const uint32_t slot = real ? step.slot_mapping[token] : NO_SLOT;
  FreshHead<QKV_PAIRS> fresh;
  fresh.prepare(p, head, slot == NO_SLOT ? 0 : step.positions[token], slot != NO_SLOT, lane);
  wait_for_previous();
  let_next_start();
  if (slot == NO_SLOT) return;
  __half* out = fresh.is_q ? p.q + (static_cast<size_t>(token) * p.num_heads + head) * head_dim
                           : page_row(p.kv, fresh.is_v ? p.kv.v : p.kv.k, slot, fresh.kv_head);
  fresh.finish(p, p.qkv + (static_cast<size_t>(token) * heads + head) * head_dim, out, lane);
}

}  // namespace pen
