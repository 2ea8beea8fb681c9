// The kernels of elementwise.h. Grid of each: (ceil(columns per thread / ELEMENTWISE_THREADS), rows).
#pragma once

#include "../device/kernel.cuh"
#include "elementwise.h"
#include "operand.cuh"

namespace pen {

constexpr int ELEMENTWISE_THREADS = 256;

__global__ void __launch_bounds__(ELEMENTWISE_THREADS) soft_cap_kernel(float* x, int cols, float cap) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ELEMENTWISE_THREADS + threadIdx.x;
  float& y = x[size_t(blockIdx.y) * cols + i];
  if (i < cols) y = __fmul_rn(cap, tanhf(__fdiv_rn(y, cap)));
}

// Adds biases, if there are any.
template <int EACH>
__device__ __forceinline__ void add_bias(float (&x)[EACH], const float* bias) {
  if (bias == nullptr) return;
  float own[EACH];
  read_floats(own, bias);
#pragma unroll
  for (int k = 0; k < EACH; k++) x[k] = __fadd_rn(x[k], own[k]);
}

// EACH elements per thread.
template <int EACH>
__global__ void __launch_bounds__(ELEMENTWISE_THREADS) activate_kernel(const __grid_constant__ Activate p) {
  let_next_start();
  wait_for_previous();
  const int i = (blockIdx.x * ELEMENTWISE_THREADS + threadIdx.x) * EACH;
  if (i >= p.ffn) return;
  const float* row = p.gate_up + size_t(blockIdx.y) * p.ld;
  float gate[EACH], up[EACH];
  read_floats(up, row + (p.gated ? p.ffn + i : i));
  add_bias(up, p.up_bias ? p.up_bias + i : nullptr);
  if (p.gated) {
    read_floats(gate, row + i);
    add_bias(gate, p.gate_bias ? p.gate_bias + i : nullptr);
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    up[k] = p.gated ? gated(p.activation, gate[k], up[k], p.params) : activation(p.activation, up[k], p.params);
  }
  write_halves(p.h + size_t(blockIdx.y) * p.ldh + i, up);
}

}  // namespace pen
