// The kernels of elementwise.h. Grid of each: (ceil(columns / ELEMENTWISE_THREADS), rows).
#pragma once

#include "../device/kernel.cuh"
#include "activation.cuh"
#include "elementwise.h"

namespace pen {

constexpr int ELEMENTWISE_THREADS = 256;

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
  const float* row = p.gate_up + size_t(blockIdx.y) * p.ld;
  const float up = row[p.gated ? p.ffn + i : i], biased = p.up_bias ? __fadd_rn(up, p.up_bias[i]) : up;
  const float gate = p.gated ? (p.gate_bias ? __fadd_rn(row[i], p.gate_bias[i]) : row[i]) : biased;
  const float y = p.gated ? gated(p.activation, gate, biased, p.params) : activation(p.activation, gate, p.params);
  p.h[size_t(blockIdx.y) * p.ldh + i] = clamped_half(y);
}

}  // namespace pen
