// The kernels of prompt.h.
#pragma once

#include "../device/kernel.cuh"
#include "prompt.h"

namespace pen {

constexpr int PROMPT_THREADS = 256;

// Grid: (copies, layers). `words`: of 16 bytes, in a block.
__global__ void __launch_bounds__(PROMPT_THREADS) copy_blocks_kernel(const uint32_t* copies, uint4* k, uint4* v, size_t num_blocks,
                                                                     int words) {
  const size_t layer = blockIdx.y * num_blocks;
  const size_t from = (layer + copies[2 * blockIdx.x]) * words, to = (layer + copies[2 * blockIdx.x + 1]) * words;
  for (int i = threadIdx.x; i < words; i += PROMPT_THREADS) {
    k[to + i] = k[from + i];
    v[to + i] = v[from + i];
  }
}

// The sum over the block, by a tree.
__device__ inline double sum_of_block(double x) {
  __shared__ double sums[PROMPT_THREADS];
  sums[threadIdx.x] = x;
  for (int width = PROMPT_THREADS / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  __syncthreads();
  const double sum = sums[0];
  __syncthreads();
  return sum;
}

// Grid: (rows). A row of the residual stream after the final norm. `centred`: a LayerNorm, whose bias may be null.
__global__ void __launch_bounds__(PROMPT_THREADS) finish_kernel(const int32_t* rows, Norm p, bool centred, const float* bias, float* out) {
  const size_t row = size_t(rows[blockIdx.x]) * p.hidden;
  float scale = 0, mean = 0;
  const auto sum_over = [&](auto term) {
    double sum = 0;
    for (int i = threadIdx.x; i < p.hidden; i += PROMPT_THREADS) sum += term(i);
    return float(sum_of_block(sum) / p.hidden);
  };
  const auto square = [](float x) { return double(x) * double(x); };
  if (p.branch) scale = rsqrtf(sum_over([&](int i) { return square(p.branch[row + i]); }) + p.eps);
  const auto at = [&](int i) { return p.branch ? p.x[row + i] + p.branch[row + i] * scale * p.branch_weight[i] : p.x[row + i]; };
  if (centred) mean = sum_over([&](int i) { return double(at(i)); });
  const float inverse = rsqrtf(sum_over([&](int i) { return square(at(i) - mean); }) + p.eps);
  for (int i = threadIdx.x; i < p.hidden; i += PROMPT_THREADS) {
    out[size_t(blockIdx.x) * p.hidden + i] = (at(i) - mean) * inverse * p.weight[i] + (bias ? bias[i] : 0.0f);
  }
}

// Grid: (ceil(hidden / PROMPT_THREADS), vectors).
__global__ void __launch_bounds__(PROMPT_THREADS) pool_kernel(const Pooled* pooled, const float* rows, double* sums, float* out,
                                                              int hidden) {
  const Pooled p = pooled[blockIdx.y];
  const int column = blockIdx.x * PROMPT_THREADS + threadIdx.x;
  if (column >= hidden) return;
  double* const total = sums + size_t(p.slot) * hidden + column;
  double sum = p.starts ? 0.0 : *total;
  for (int i = p.first; i < p.first + p.count; i++) sum += double(rows[size_t(i) * hidden + column]);
  *total = sum;
  if (p.divisor > 0) out[size_t(p.seq) * hidden + column] = float(sum / p.divisor);
}

}  // namespace pen
