// The kernels of map.h.
#pragma once

#include "map.h"
#include "operand.cuh"

namespace pen {

constexpr int MAP_THREADS = 256;

__device__ __forceinline__ float apply(uint32_t f, float x) {
  switch (f) {
    case PEN_IDENTITY: return x;
    case PEN_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case PEN_TANH: return tanhf(x);
    case PEN_SOFTPLUS: return x > 20.0f ? x : log1pf(expf(x));
    case PEN_EXP: return expf(x);
    default: return activation(Activation(f), x, nullptr);
  }
}

// EACH elements per thread. Grid: (ceil(heads · dim / EACH / MAP_THREADS), rows)
template <int EACH>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(const __grid_constant__ Map p) {
  let_next_start();
  wait_for_previous();
  const int n = (blockIdx.x * MAP_THREADS + threadIdx.x) * EACH;
  if (n >= p.heads * p.dim) return;
  const int head = n / p.dim, i = n % p.dim;
  const size_t row = blockIdx.y;
  float y[EACH], bias[EACH], by[EACH], out[EACH];
  read(y, p.in, row, head, i);
  if (p.bias) read_floats(bias, p.bias + n);
  if (p.has_by) read(by, p.by, row, head, i);
  if (p.add) read(out, p.out, row, head, i);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    if (p.bias) y[k] = __fadd_rn(y[k], bias[k]);
    y[k] = apply(p.f, y[k]);
    if (p.scale) y[k] = __fmul_rn(y[k], p.scale[(n + k) / p.scale_group]);
    y[k] = apply(p.then, y[k]);
    if (p.has_by) y[k] = __fmul_rn(y[k], apply(p.g, by[k]));
    if (p.factor != 1.0f) y[k] = __fmul_rn(y[k], p.factor);
    if (p.add) y[k] = __fadd_rn(out[k], y[k]);
  }
  write(p.out, row, head, i, y);
}

// Sums over the block: lanes by a tree, then warps in ascending order.
__device__ __forceinline__ float map_sum(float x, float* shared) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < MAP_THREADS / WARP; w++) total = __fadd_rn(total, shared[w]);
  return total;
}

// Grid: (rows)
__global__ void __launch_bounds__(MAP_THREADS) keep_largest_kernel(float* x, size_t ld, int dim, float cutoff) {
  __shared__ float shared[MAP_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  x += size_t(blockIdx.x) * ld;
  float sum = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x; i < dim; i += MAP_THREADS) sum = __fadd_rn(sum, x[i]);
  const float mean = map_sum(sum, shared) / float(dim);
  for (int i = threadIdx.x; i < dim; i += MAP_THREADS) squares = __fmaf_rn(x[i] - mean, x[i] - mean, squares);
  const float least = __fadd_rn(mean, __fmul_rn(cutoff, sqrtf(map_sum(squares, shared) / fmaxf(float(dim - 1), 1.0f))));
  for (int i = threadIdx.x; i < dim; i += MAP_THREADS) {
    const float y = x[i];
    x[i] = y != y ? y : fmaxf(__fsub_rn(y, least), 0.0f);
  }
}

// Grid: (ceil(hidden / MAP_THREADS), rows)
__global__ void __launch_bounds__(MAP_THREADS) predict_kernel(float* streams, const float* router, const float* coefficients, int hidden) {
  __shared__ float factors[STREAMS * STREAMS];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.y;
  if (threadIdx.x < STREAMS * STREAMS) {
    float sum = 0.0f;
    for (int r = 0; r < STREAMS; r++) sum = __fmaf_rn(coefficients[threadIdx.x * STREAMS + r], router[row * STREAMS + r], sum);
    factors[threadIdx.x] = sum;
  }
  __syncthreads();
  const int i = blockIdx.x * MAP_THREADS + threadIdx.x;
  if (i >= hidden) return;
  float* x = streams + row * STREAMS * hidden + i;
  float old[STREAMS];
  for (int s = 0; s < STREAMS; s++) old[s] = x[size_t(s) * hidden];
  for (int to = 0; to < STREAMS; to++) {
    float sum = 0.0f;
    for (int from = 0; from < STREAMS; from++) sum = __fmaf_rn(factors[to * STREAMS + from], old[from], sum);
    x[size_t(to) * hidden] = __fadd_rn(old[to], sum);
  }
}

// Grid: (ceil(hidden / MAP_THREADS), rows)
__global__ void __launch_bounds__(MAP_THREADS) correct_kernel(float* streams, const float* x, const float* router,
                                                              const float* coefficients, int hidden) {
  __shared__ float factors[STREAMS];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.y;
  if (threadIdx.x < STREAMS) {
    float sum = 0.0f;
    for (int r = 0; r < STREAMS; r++) sum = __fmaf_rn(coefficients[threadIdx.x * STREAMS + r], router[row * STREAMS + r], sum);
    factors[threadIdx.x] = __fadd_rn(1.0f, sum);
  }
  __syncthreads();
  const int i = blockIdx.x * MAP_THREADS + threadIdx.x;
  if (i >= hidden) return;
  float* s = streams + row * STREAMS * hidden + i;
  const float difference = __fsub_rn(x[row * hidden + i], s[0]);
  for (int to = 0; to < STREAMS; to++) s[size_t(to) * hidden] = __fmaf_rn(difference, factors[to], s[size_t(to) * hidden]);
}

// Grid: (rows)
__global__ void __launch_bounds__(MAP_THREADS) match_kernel(const __grid_constant__ Operand in, const __grid_constant__ Operand like,
                                                            const __grid_constant__ Operand out, int dim, bool add) {
  __shared__ float shared[MAP_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.x;
  float own = 0.0f, other = 0.0f;
  for (int i = threadIdx.x; i < dim; i += MAP_THREADS) {
    const float x = read(in, row, 0, i), y = read(like, row, 0, i);
    own = __fmaf_rn(x, x, own);
    other = __fmaf_rn(y, y, other);
  }
  own = map_sum(own, shared);
  other = map_sum(other, shared);
  // Keeps NaN, which fmaxf would hide.
  const auto length = [](float squares) { return squares != squares ? squares : fmaxf(sqrtf(squares), 1e-12f); };
  const float factor = length(other) / length(own);
  for (int i = threadIdx.x; i < dim; i += MAP_THREADS) {
    const float y = __fmul_rn(read(in, row, 0, i), factor);
    write(out, row, 0, i, add ? __fadd_rn(read(out, row, 0, i), y) : y);
  }
}

}  // namespace pen
