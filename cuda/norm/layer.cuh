// The kernel of LayerNorm.
#pragma once

#include "../device/kernel.cuh"
#include "norm.h"

namespace pen {

// The most elements that a thread keeps in registers. A longer row is read again in each pass.
constexpr int LAYER_NORM_KEPT = 8;

__device__ __forceinline__ float layer_norm_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < NORM_THREADS / WARP; w++) total = __fadd_rn(total, shared[w]);
  __syncthreads();
  return total;
}

// Grid: (rows).
__global__ void __launch_bounds__(NORM_THREADS) layer_norm_kernel(const __grid_constant__ LayerNorm p) {
  __shared__ float shared[NORM_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  const int row = p.gather ? p.gather[blockIdx.x] : int(blockIdx.x);
  if (row < 0) return;
  const float* x = p.x + size_t(row) * p.hidden;
  if (p.plain) {
    for (int i = threadIdx.x; i < p.hidden; i += NORM_THREADS) p.h[size_t(blockIdx.x) * p.ldh + i] = __float2half_rn(x[i]);
    return;
  }
  const bool kept = p.hidden <= LAYER_NORM_KEPT * NORM_THREADS;
  float own[LAYER_NORM_KEPT];
#pragma unroll
  for (int k = 0; k < LAYER_NORM_KEPT; k++) {
    const int i = k * NORM_THREADS + threadIdx.x;
    own[k] = kept && i < p.hidden ? x[i] : 0.0f;
  }
  // Calls f(column, element) for the thread's elements in ascending order.
  const auto each = [&](auto&& f) {
    if (kept) {
#pragma unroll
      for (int k = 0; k < LAYER_NORM_KEPT; k++) {
        const int i = k * NORM_THREADS + threadIdx.x;
        if (i < p.hidden) f(i, own[k]);
      }
    } else {
      for (int i = threadIdx.x; i < p.hidden; i += NORM_THREADS) f(i, x[i]);
    }
  };
  float sum = 0.0f;
  each([&](int, float value) { sum = __fadd_rn(sum, value); });
  const float mean = layer_norm_sum(sum, shared) / float(p.hidden);
  float squares = 0.0f;
  each([&](int, float value) {
    const float d = __fsub_rn(value, mean);
    squares = __fmaf_rn(d, d, squares);
  });
  const float inverse = 1.0f / sqrtf(layer_norm_sum(squares, shared) / float(p.hidden) + p.eps);
  each([&](int i, float value) {
    const float y = __fmul_rn(__fmul_rn(__fsub_rn(value, mean), inverse), p.weight[i]);
    p.h[size_t(blockIdx.x) * p.ldh + i] = __float2half_rn(p.bias ? __fadd_rn(y, p.bias[i]) : y);
  });
}

}  // namespace pen
