// The kernel that finishes heads: a warp per token and head or per four heads, or one block if heads are long.
#pragma once

#include "../device/kernel.cuh"
#include "../device/rope.cuh"
#include "heads.h"

namespace pen {

// One head in shared memory, processed by a team of TEAM threads. Thread t has the elements t, t + TEAM, …, but a rotation crosses threads.
template <int TEAM>
struct StagedHead {
  float* x;     // [dim]
  float* sums;  // [TEAM / WARP]
  int thread;

  __device__ __forceinline__ void sync() const {
    if constexpr (TEAM == WARP) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // Sums over the team. Every thread gets the same result.
  __device__ __forceinline__ float sum(float value) const {
    value = warp_sum(value);
    if constexpr (TEAM > WARP) {
      if (thread % WARP == 0) sums[thread / WARP] = value;
      __syncthreads();
      value = 0.0f;
#pragma unroll
      for (int w = 0; w < TEAM / WARP; ++w) value = __fadd_rn(value, sums[w]);
      __syncthreads();
    }
    return value;
  }

  __device__ __forceinline__ void norm(const Heads& p, int head) const {
    const int n = p.norm_dim > 0 ? p.norm_dim : p.dim;
    float mean = 0.0f, squares = 0.0f;
    if (p.norm == HeadNorm::LAYER) {
      float total = 0.0f;
      for (int i = thread; i < n; i += TEAM) total = __fadd_rn(total, x[i]);
      mean = __fdiv_rn(sum(total), static_cast<float>(n));
    }
    for (int i = thread; i < n; i += TEAM) {
      const float d = __fsub_rn(x[i], mean);
      squares = __fmaf_rn(d, d, squares);
    }
    const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum(squares), static_cast<float>(n)), p.eps)));
    const size_t at = static_cast<size_t>(head) * p.norm_stride;
    for (int i = thread; i < n; i += TEAM) {
      float y = __fmul_rn(__fsub_rn(x[i], mean), inverse);
      if (p.norm_weight != nullptr) y = __fmul_rn(y, p.norm_weight[at + i]);
      if (p.norm_bias != nullptr) y = __fadd_rn(y, p.norm_bias[at + i]);
      x[i] = y;
    }
  }

  // `grid`: the row's other positions, or null.
  __device__ __forceinline__ void rotate(const Heads& p, uint32_t position, const uint32_t* grid) const {
    const int pairs = p.rope_dim / 2;
    const float* table = p.rope + static_cast<size_t>(position) * p.rope_dim;
    sync();
    for (int i = thread; i < pairs; i += TEAM) {
      const int half = pairs / 2, in_half = i < half ? i : i + half;
      const int low = p.rope_quarters ? in_half : p.rope_halves ? i : 2 * i;
      float& first = x[p.rope_first + low];
      float& second = x[p.rope_first + low + (p.rope_quarters ? half : p.rope_halves ? pairs : 1)];
      const float* row = grid == nullptr ? table : rope_row(p.rope, p.rope_dim, p.rope_axes, i, position, grid);
      const float a = first, b = second, cosine = row[i], sine = row[pairs + i];
      first = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
      second = __fmaf_rn(a, sine, __fmul_rn(b, cosine));
    }
    sync();
  }
};

// Clamps before rounding: a value beyond float16's range must not become infinite, because an infinite V times a masked 0 is NaN. A NaN
// stays NaN.
__device__ __forceinline__ __half head_half(float x) { return __float2half_rn(x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f)); }

// A team takes EACH neighbouring heads of a token, all of which it requests before it needs the first.
// Grid: (ceil(num_tokens · num_heads / EACH / (HEADS_THREADS / TEAM))). Shared memory: EACH · dim floats per team.
template <int TEAM, int EACH>
__global__ void __launch_bounds__(HEADS_THREADS)
    finish_heads_kernel(const __grid_constant__ Heads p, const __grid_constant__ StepView step) {
  extern __shared__ float shared[];
  __shared__ float sums[HEADS_THREADS / WARP];
  let_next_start();
  constexpr int TEAMS = HEADS_THREADS / TEAM;
  const int team = threadIdx.x / TEAM, thread = threadIdx.x % TEAM;
  // 32 bits, because a division of 64 takes longer than the rest of a short head
  const uint32_t item = (blockIdx.x * TEAMS + team) * EACH, num_heads = static_cast<uint32_t>(p.num_heads);
  const bool real = item < static_cast<uint32_t>(step.num_tokens) * num_heads;
  const int token = real ? static_cast<int>(item / num_heads) : 0, first = real ? static_cast<int>(item % num_heads) : 0;
  const uint32_t slot = real ? step.slot_mapping[token] : NO_SLOT;
  wait_for_previous();
  if (slot == NO_SLOT) return;
  const uint32_t position = step.positions[token];

  float* const all = shared + team * EACH * p.dim;
  const float* in = p.in + static_cast<size_t>(token) * p.ld_in + static_cast<size_t>(first) * p.head_stride;
  for (int i = thread; i < p.dim; i += TEAM) {
    float x[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) x[e] = __ldcg(in + static_cast<size_t>(e) * p.head_stride + i);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      if (p.bias != nullptr) x[e] = __fadd_rn(x[e], p.bias[static_cast<size_t>(first + e) * p.dim + i]);
      // fminf and fmaxf would turn NaN into a number.
      if (p.clamp > 0.0f && x[e] == x[e]) x[e] = fminf(fmaxf(x[e], -p.clamp), p.clamp);
      all[e * p.dim + i] = x[e];
    }
  }
  const bool normed = p.norm != HeadNorm::NONE;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const StagedHead<TEAM> staged{all + e * p.dim, sums, thread};
    if (normed && !p.norm_after_rope) staged.norm(p, first + e);
    if (p.rope != nullptr) staged.rotate(p, position, step.grid == nullptr ? nullptr : step.grid + 2 * static_cast<size_t>(token));
    if (normed && p.norm_after_rope) staged.norm(p, first + e);
  }

  float factor = 1.0f;
  if (p.temperature_scale != 0.0f) {
    const float steps = floorf(__fdiv_rn(__fadd_rn(static_cast<float>(position), p.temperature_offset), p.temperature_floor));
    factor = __fadd_rn(1.0f, __fmul_rn(p.temperature_scale, log1pf(steps)));
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int head = first + e;
    const size_t at = static_cast<size_t>(token) * p.ld_out + static_cast<size_t>(head) * p.out_head_stride;
    __half* row = p.out16 != nullptr ? p.out16 + at : nullptr;
    if (p.pages != nullptr) {
      const uint32_t size = static_cast<uint32_t>(p.block_size);
      const size_t at_page = (static_cast<size_t>(slot / size) * p.num_heads + head) * size + slot % size;
      row = p.pages + at_page * p.page_dim;
    }
    for (int i = thread; i < p.dim; i += TEAM) {
      const float x = __fmul_rn(all[e * p.dim + i], factor);
      if (row != nullptr) {
        row[i] = head_half(x);
      } else {
        p.out[at + i] = x;
      }
    }
    if (p.pages != nullptr) {
      for (int i = p.dim + thread; i < p.page_dim; i += TEAM) row[i] = __ushort_as_half(0);
    }
  }
}

}  // namespace pen
