// The kernel of LayerNorm.
#pragma once

#include "../device/kernel.cuh"
#include "norm.h"

namespace pen {

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
  float sum = 0.0f;
  for (int i = threadIdx.x; i < p.hidden; i += NORM_THREADS) sum = __fadd_rn(sum, x[i]);
  const float mean = layer_norm_sum(sum, shared) / float(p.hidden);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < p.hidden; i += NORM_THREADS) {
    const float d = __fsub_rn(x[i], mean);
    squares = __fmaf_rn(d, d, squares);
  }
  const float inverse = 1.0f / sqrtf(layer_norm_sum(squares, shared) / float(p.hidden) + p.eps);
  for (int i = threadIdx.x; i < p.hidden; i += NORM_THREADS) {
    const float y = __fmul_rn(__fmul_rn(__fsub_rn(x[i], mean), inverse), p.weight[i]);
    p.h[size_t(blockIdx.x) * p.ldh + i] = __float2half_rn(p.bias ? __fadd_rn(y, p.bias[i]) : y);
  }
}

}  // namespace pen
