// The kernels of prompt.h.
#pragma once

#include "../device/kernel.cuh"
#include "prompt.h"

namespace pen {

constexpr int PROMPT_THREADS = 256;

// Grid: (copies). `words`: words of 16 bytes per block.
__global__ void __launch_bounds__(PROMPT_THREADS) copy_blocks_kernel(const uint32_t* copies, uint4* pages, size_t words) {
  const size_t from = copies[2 * blockIdx.x] * words, to = copies[2 * blockIdx.x + 1] * words;
  for (size_t i = threadIdx.x; i < words; i += PROMPT_THREADS) pages[to + i] = pages[from + i];
}

// Sums over the block, by a tree.
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

// Grid: (rows). Normalises one row of the residual stream by the final norm.
__global__ void __launch_bounds__(PROMPT_THREADS) finish_kernel(const int32_t* rows, const __grid_constant__ FinalNorm p, float* out) {
  const Norm& n = p.norm;
  const size_t row = size_t(rows[blockIdx.x]) * n.hidden;
  float scale = 0, mean = 0, inverse = 1;
  const auto sum_over = [&](auto term) {
    double sum = 0;
    for (int i = threadIdx.x; i < n.hidden; i += PROMPT_THREADS) sum += term(i);
    return float(sum_of_block(sum) / n.hidden);
  };
  const auto square = [](float x) { return double(x) * double(x); };
  if (n.branch) scale = rsqrtf(sum_over([&](int i) { return square(n.branch[row + i]); }) + n.eps);
  const auto at = [&](int i) { return n.branch ? n.x[row + i] + n.branch[row + i] * scale * n.branch_weight[i] : n.x[row + i]; };
  if (p.kind == NormKind::LAYER) mean = sum_over([&](int i) { return double(at(i)); });
  if (p.kind != NormKind::NONE) inverse = rsqrtf(sum_over([&](int i) { return square(at(i) - mean); }) + n.eps);
  for (int i = threadIdx.x; i < n.hidden; i += PROMPT_THREADS) {
    const float y = (at(i) - mean) * inverse * (n.weight ? n.weight[i] : 1.0f);
    out[size_t(blockIdx.x) * n.hidden + i] = y + (p.bias ? p.bias[i] : 0.0f);
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
