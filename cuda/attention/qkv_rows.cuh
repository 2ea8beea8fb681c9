// Finishes a step's fresh Q, K and V if heads have no norm, with one thread per eight elements. Without a norm nothing is summed over a
// head, so the bits are those of qkv.cuh.
#pragma once

#include "qkv.cuh"

namespace pen {

constexpr int QKV_ROW_THREADS = 256;

__device__ __forceinline__ void load_four(float (&x)[4], const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

// Whether head size, rotation and addresses are multiples of a thread's reads.
inline bool takes_qkv_rows(const QkvFinish& p) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool plain = p.q_norm == nullptr && p.k_norm == nullptr && p.kv.head_dim % 8 == 0 && p.rope_dim % 8 == 0;
  return plain && aligned(p.qkv) && aligned(p.q_bias) && aligned(p.k_bias) && aligned(p.v_bias) && aligned(p.rope) && aligned(p.q) &&
         aligned(p.kv.k) && aligned(p.kv.v);
}

// Four pairs of a head, by one thread.
struct FreshPart {
  bool halves;
  int first, second;  // elements: each names the first of four consecutive ones
  const float* x;
  float4 one, two;
  float cosine[4] = {1.0f, 1.0f, 1.0f, 1.0f}, sine[4] = {}, bias_low[4] = {}, bias_high[4] = {};

  // Requests what does not depend on the step's products. `index`: number among the heads of its kind. `grid`: as in FreshHead.
  __device__ __forceinline__ void prepare(const QkvFinish& p, Head kind, int index, int token, uint32_t position, int part,
                                          const uint32_t* grid = nullptr) {
    const int head_dim = p.kv.head_dim, kv_heads = p.kv.num_kv_heads, heads = p.num_heads + 2 * kv_heads;
    const int before = kind == Head::Q ? 0 : kind == Head::K ? p.num_heads : p.num_heads + kv_heads;
    // Four pairs from pair 4 · part. All of them are rotated, or none.
    const int rotated = kind == Head::V ? 0 : p.rope_dim / 2;
    const bool in_rope = 4 * part < rotated;
    halves = in_rope && p.rope_halves;
    first = halves ? 4 * part : 8 * part, second = halves ? first + rotated : first + 4;
    if (in_rope && grid != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* row = rope_row(p.rope, p.rope_dim, p.rope_axes, 4 * part + i, position, grid);
        cosine[i] = row[4 * part + i], sine[i] = row[rotated + 4 * part + i];
      }
    } else if (in_rope) {
      const float* table = p.rope + static_cast<size_t>(position) * p.rope_dim + 4 * part;
      load_four(cosine, table);
      load_four(sine, table + rotated);
    }
    const float* bias = kind == Head::Q ? p.q_bias : kind == Head::K ? p.k_bias : p.v_bias;
    if (bias != nullptr) {
      load_four(bias_low, bias + index * head_dim + first);
      load_four(bias_high, bias + index * head_dim + second);
    }
    x = p.qkv + (static_cast<size_t>(token) * heads + before + index) * head_dim;
  }
  // Loads bypass L1, which may still hold what an earlier kernel read at this address.
  __device__ __forceinline__ void load() {
    one = __ldcg(reinterpret_cast<const float4*>(x + first)), two = __ldcg(reinterpret_cast<const float4*>(x + second));
  }
  // `out`: the head's first element.
  __device__ __forceinline__ void put(__half* out) const {
    const float low[4] = {__fadd_rn(one.x, bias_low[0]), __fadd_rn(one.y, bias_low[1]), __fadd_rn(one.z, bias_low[2]),
                          __fadd_rn(one.w, bias_low[3])};
    const float high[4] = {__fadd_rn(two.x, bias_high[0]), __fadd_rn(two.y, bias_high[1]), __fadd_rn(two.z, bias_high[2]),
                           __fadd_rn(two.w, bias_high[3])};
    __half lead[4], other[4];  // elements of the rotated pairs
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 2 * i % 4;
      const float a = halves ? low[i] : i < 2 ? low[at] : high[at], b = halves ? high[i] : i < 2 ? low[at + 1] : high[at + 1];
      lead[i] = to_half(__fmaf_rn(a, cosine[i], -__fmul_rn(b, sine[i])));
      other[i] = to_half(__fmaf_rn(a, sine[i], __fmul_rn(b, cosine[i])));
    }
    const auto pack = [](__half even, __half odd) { return half2_bits(__halves2half2(even, odd)); };
    const uint2 before = halves ? make_uint2(pack(lead[0], lead[1]), pack(lead[2], lead[3]))
                                : make_uint2(pack(lead[0], other[0]), pack(lead[1], other[1]));
    const uint2 behind = halves ? make_uint2(pack(other[0], other[1]), pack(other[2], other[3]))
                                : make_uint2(pack(lead[2], other[2]), pack(lead[3], other[3]));
    *reinterpret_cast<uint2*>(out + first) = before;
    *reinterpret_cast<uint2*>(out + second) = behind;
  }
};

// Grid: (num_tokens, ceil((num_heads + 2 num_kv_heads) · head_dim / 8 / QKV_ROW_THREADS)). Waits as in qkv_finish_kernel.
template <bool GRID>
__global__ void __launch_bounds__(QKV_ROW_THREADS) qkv_rows_kernel(QkvFinish p, StepView step, bool early) {
  const int head_dim = p.kv.head_dim, kv_heads = p.kv.num_kv_heads, heads = p.num_heads + 2 * kv_heads, parts = head_dim / 8;
  const int token = blockIdx.x, item = blockIdx.y * QKV_ROW_THREADS + threadIdx.x;
  if (item >= heads * parts) return;
  const int head = item / parts;
  const Head kind = head < p.num_heads ? Head::Q : head < p.num_heads + kv_heads ? Head::K : Head::V;
  const int index = kind == Head::Q ? head : head - p.num_heads - (kind == Head::V ? kv_heads : 0);
  const uint32_t slot = step.slot_mapping[token];
  FreshPart fresh;
  const uint32_t* grid = GRID ? step.grid + 2 * static_cast<size_t>(token) : nullptr;
  fresh.prepare(p, kind, index, token, slot == NO_SLOT ? 0 : step.positions[token], item % parts, grid);
  if (early) let_next_start();
  wait_for_previous();
  let_next_start();
  if (slot == NO_SLOT) return;
  fresh.load();
  fresh.put(kind == Head::Q ? p.q + (static_cast<size_t>(token) * p.num_heads + head) * head_dim
                            : page_row(p.kv, kind == Head::V ? p.kv.v : p.kv.k, slot, index));
}

}  // namespace pen
