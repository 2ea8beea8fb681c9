// Ops of architectures that norm, bias or cap otherwise than most: LayerNorm (Ba et al. 2016), biases behind products, feed-forward
// layers without a gate, soft caps of logits. Float32; an element's or a row's bits depend on itself alone.
#pragma once

#include "linear.cuh"

namespace pen {

constexpr int DENSE_THREADS = 256;

struct LayerNorm {
  const float* x;               // [rows, hidden]
  const float *weight, *bias;   // [hidden]; a null bias is none
  int hidden;
  float eps;
  const int32_t* gather;  // the row of each block (negative: none), or null
  __half* h;              // [blocks, ldh] out
  int ldh;
};

__device__ __forceinline__ float dense_block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < DENSE_THREADS / WARP; w++) total = __fadd_rn(total, shared[w]);
  __syncthreads();
  return total;
}

// A block a row.
static __global__ void __launch_bounds__(DENSE_THREADS) layer_norm_kernel(const __grid_constant__ LayerNorm p) {
  __shared__ float shared[DENSE_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  const int row = p.gather ? p.gather[blockIdx.x] : int(blockIdx.x);
  if (row < 0) return;
  const float* x = p.x + size_t(row) * p.hidden;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < p.hidden; i += DENSE_THREADS) sum = __fadd_rn(sum, x[i]);
  const float mean = dense_block_sum(sum, shared) / float(p.hidden);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < p.hidden; i += DENSE_THREADS) {
    const float d = __fsub_rn(x[i], mean);
    squares = __fmaf_rn(d, d, squares);
  }
  const float inverse = 1.0f / sqrtf(dense_block_sum(squares, shared) / float(p.hidden) + p.eps);
  for (int i = threadIdx.x; i < p.hidden; i += DENSE_THREADS) {
    const float y = __fmul_rn(__fmul_rn(__fsub_rn(x[i], mean), inverse), p.weight[i]);
    p.h[size_t(blockIdx.x) * p.ldh + i] = __float2half_rn(p.bias ? __fadd_rn(y, p.bias[i]) : y);
  }
}

// x += bias, rows of `cols`. Grid: (ceil(cols / DENSE_THREADS), rows)
static __global__ void __launch_bounds__(DENSE_THREADS) add_bias_kernel(float* x, const float* bias, int cols) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * DENSE_THREADS + threadIdx.x;
  float& y = x[size_t(blockIdx.y) * cols + i];
  if (i < cols) y = __fadd_rn(y, bias[i]);
}

// x = cap · tanh(x / cap), rows of `cols`
static __global__ void __launch_bounds__(DENSE_THREADS) soft_cap_kernel(float* x, int cols, float cap) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * DENSE_THREADS + threadIdx.x;
  float& y = x[size_t(blockIdx.y) * cols + i];
  if (i < cols) y = __fmul_rn(cap, tanhf(__fdiv_rn(y, cap)));
}

struct Activate {
  const float* gate_up;                // [rows, 2 ffn], or without a gate [rows, ffn]
  const float *gate_bias, *up_bias;    // null: none
  __half* h;                           // [rows, ldh] out
  int ffn, ldh;
  bool gated;
  Epilogue activation;  // SILU_MUL or GELU_MUL
};

// h = activation(gate) · up, or activation(up). Grid: (ceil(ffn / DENSE_THREADS), rows)
static __global__ void __launch_bounds__(DENSE_THREADS) activate_kernel(const __grid_constant__ Activate p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * DENSE_THREADS + threadIdx.x;
  if (i >= p.ffn) return;
  const float* row = p.gate_up + size_t(blockIdx.y) * p.ffn * (p.gated ? 2 : 1);
  const float up = row[p.gated ? p.ffn + i : i], biased = p.up_bias ? __fadd_rn(up, p.up_bias[i]) : up;
  const float gate = p.gated ? (p.gate_bias ? __fadd_rn(row[i], p.gate_bias[i]) : row[i]) : biased;
  p.h[size_t(blockIdx.y) * p.ldh + i] = gated(gate, p.gated ? biased : 1.0f, p.activation);
}

}  // namespace pen
