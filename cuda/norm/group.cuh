// The kernel of group.h.
#pragma once

#include "../elementwise/operand.cuh"
#include "group.h"

namespace pen {

constexpr int GROUP_NORM_THREADS = 256;

template <int THREADS>
__device__ __forceinline__ float group_norm_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (THREADS == WARP) return x;
  __syncthreads();
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < THREADS / WARP; w++) total = __fadd_rn(total, shared[w]);
  return total;
}

// THREADS of a block work on each head. Grid: (ceil(heads / heads per block), rows).
template <int THREADS>
__global__ void __launch_bounds__(GROUP_NORM_THREADS) group_norm_kernel(const __grid_constant__ GroupNorm p) {
  __shared__ float shared[GROUP_NORM_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.y;
  const int head = blockIdx.x * (GROUP_NORM_THREADS / THREADS) + int(threadIdx.x) / THREADS, lane = threadIdx.x % THREADS;
  if (head >= p.heads) return;
  float mean = 0.0f, squares = 0.0f;
  if (p.kind == PEN_LAYER_NORM) {
    float sum = 0.0f;
    for (int i = lane; i < p.dim; i += THREADS) sum = __fadd_rn(sum, read(p.in, row, head, i));
    mean = group_norm_sum<THREADS>(sum, shared) / float(p.dim);
  }
  for (int i = lane; i < p.dim; i += THREADS) {
    const float x = __fsub_rn(read(p.in, row, head, i), mean);
    squares = __fmaf_rn(x, x, squares);
  }
  squares = group_norm_sum<THREADS>(squares, shared);
  const float root = sqrtf(squares);
  const float factor = p.kind == PEN_LENGTH ? p.length / (root > p.eps || root != root ? root : p.eps)
                                            : 1.0f / sqrtf(squares / float(p.dim) + p.eps);
  const int first = p.own ? head * p.dim : 0;
  for (int i = lane; i < p.dim; i += THREADS) {
    float y = __fmul_rn(__fsub_rn(read(p.in, row, head, i), mean), factor);
    if (p.weight) y = __fmul_rn(y, p.weight[first + i]);
    if (p.bias) y = __fadd_rn(y, p.bias[first + i]);
    write(p.out, row, head, i, y);
  }
}

}  // namespace pen
