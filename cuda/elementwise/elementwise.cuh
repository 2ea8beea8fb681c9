// The kernels of elementwise.h. Grid of each: (ceil(columns / ELEMENTWISE_THREADS), rows)
#pragma once

#include "../linear/epilogue.cuh"
#include "elementwise.h"

namespace pen {

constexpr int ELEMENTWISE_THREADS = 256;

__global__ void __launch_bounds__(ELEMENTWISE_THREADS) add_bias_kernel(float* x, const float* bias, int cols) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ELEMENTWISE_THREADS + threadIdx.x;
  float& y = x[size_t(blockIdx.y) * cols + i];
  if (i < cols) y = __fadd_rn(y, bias[i]);
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS) soft_cap_kernel(float* x, int cols, float cap) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ELEMENTWISE_THREADS + threadIdx.x;
  float& y = x[size_t(blockIdx.y) * cols + i];
  if (i < cols) y = __fmul_rn(cap, tanhf(__fdiv_rn(y, cap)));
}

__global__ void __launch_bounds__(ELEMENTWISE_THREADS) activate_kernel(const __grid_constant__ Activate p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ELEMENTWISE_THREADS + threadIdx.x;
  if (i >= p.ffn) return;
  const float* row = p.gate_up + size_t(blockIdx.y) * p.ffn * (p.gated ? 2 : 1);
  const float up = row[p.gated ? p.ffn + i : i], biased = p.up_bias ? __fadd_rn(up, p.up_bias[i]) : up;
  const float gate = p.gated ? (p.gate_bias ? __fadd_rn(row[i], p.gate_bias[i]) : row[i]) : biased;
  p.h[size_t(blockIdx.y) * p.ldh + i] = gated(gate, p.gated ? biased : 1.0f, p.activation);
}

}  // namespace pen
