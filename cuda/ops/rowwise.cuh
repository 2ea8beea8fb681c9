// Ops on rows of the residual stream: embedding, norms, the gate of a layer whose halves are separate matrices. Float32 throughout; a
// row is summed by one block in one fixed order.
#pragma once

#include "linear.cuh"

namespace pen {

constexpr int ROW_THREADS = 256;

// x[token] = embedding of its id. A warp a token and eight chunks of columns.
struct Embed {
  Matrix table;
  const int32_t* inputs;  // [num_tokens] an id, or -1 - slot
  const int32_t* last;    // [slots] what each slot sampled last
  float* x;               // [num_tokens, hidden]
  int num_tokens;
  float scale;
};

__global__ void __launch_bounds__(ROW_THREADS) embed_kernel(const __grid_constant__ Embed p) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.y, lane = threadIdx.x % WARP;
  const int input = p.inputs[token];
  int id = input >= 0 ? input : p.last[-1 - input];
  if (id < 0 || id >= p.table.rows) id = 0;  // a slot that failed: its row's result is thrown away
  const int chunk = (blockIdx.x * ROW_THREADS + threadIdx.x) / 4, row = id % TILE_ROWS;
  if (chunk >= p.table.chunks()) return;
  with_format(p.table.format, [&](auto format) {
    typename decltype(format)::Raw raw;
    const uint8_t* tile = p.table.data + size_t(id / TILE_ROWS) * p.table.chunks() * p.table.record_bytes;
    raw.load(tile + size_t(chunk) * p.table.record_bytes, (row % 8) * 4 + lane % 4);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t a[4];
      raw.fragment(s, a);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float2 w = __half22float2(bits_half2(row < 8 ? a[2 * h] : a[2 * h + 1]));
        const int column = chunk * CHUNK + 16 * s + 2 * (lane % 4) + 8 * h;
        float* x = p.x + size_t(token) * p.table.cols + column;
        if (column < p.table.cols) x[0] = w.x * p.scale;
        if (column + 1 < p.table.cols) x[1] = w.y * p.scale;
      }
    }
  });
}

// The same sum on every thread of the block: lanes, then warps, each in one order.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < ROW_THREADS / WARP; w++) total = __fadd_rn(total, shared[w]);
  __syncthreads();
  return total;
}

// h = norm(x) · weight, in float16 for a linear layer. With `branch`: x += norm(branch) · branch_weight first (architectures that
// normalise a branch's output).
struct Norm {
  float* x;             // [rows, hidden]
  const float* branch;  // [rows, hidden] or null
  const float* branch_weight;
  const float* weight;  // [hidden]; null: no second norm, h is not written
  __half* h;            // [num_rows, ldh]
  const int32_t* gather;  // [num_rows] which row of x; null: all in order; negative: none
  int num_rows, hidden, ldh;
  float eps;
};

__device__ __forceinline__ float inverse_rms(const float* row, int hidden, float eps, float* shared) {
  float sum = 0;
  for (int i = threadIdx.x; i < hidden; i += ROW_THREADS) sum = __fmaf_rn(row[i], row[i], sum);
  return rsqrtf(block_sum(sum, shared) / float(hidden) + eps);
}

__global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const __grid_constant__ Norm p) {
  __shared__ float shared[ROW_THREADS / WARP];
  let_next_start();
  wait_for_previous();
  const int row = p.gather ? p.gather[blockIdx.x] : int(blockIdx.x);
  if (row < 0) return;
  float* x = p.x + size_t(row) * p.hidden;
  if (p.branch) {
    const float* branch = p.branch + size_t(row) * p.hidden;
    const float scale = inverse_rms(branch, p.hidden, p.eps, shared);
    for (int i = threadIdx.x; i < p.hidden; i += ROW_THREADS) x[i] = __fadd_rn(x[i], __fmul_rn(__fmul_rn(branch[i], scale), p.branch_weight[i]));
  }
  if (!p.weight) return;
  // each thread reads back only what it wrote itself
  const float scale = inverse_rms(x, p.hidden, p.eps, shared);
  __half* h = p.h + size_t(blockIdx.x) * p.ldh;
  for (int i = threadIdx.x; i < p.hidden; i += ROW_THREADS) h[i] = __float2half_rn(__fmul_rn(__fmul_rn(x[i], scale), p.weight[i]));
}

// h = activation(gate) · up where the two are separate matrices: gate_up [num_tokens, 2 ffn].
__global__ void __launch_bounds__(ROW_THREADS) glu_kernel(const float* gate_up, __half* h, int ffn, int ldh, Epilogue activation) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
  const float* row = gate_up + size_t(blockIdx.y) * 2 * ffn;
  if (i < ffn) h[size_t(blockIdx.y) * ldh + i] = gated(row[i], row[ffn + i], activation);
}

}  // namespace pen
