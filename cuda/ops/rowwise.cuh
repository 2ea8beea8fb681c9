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

// Rows of `norm`, one a block; `gather` names the row of each block (negative: none), or is null.
__global__ void __launch_bounds__(NORM_THREADS) norm_kernel(const __grid_constant__ Norm norm, const int32_t* gather, __half* h, int ldh) {
  __shared__ float sums[2 * SLICES];
  let_next_start();
  constexpr int PIECES = 4;
  const NormWeights<PIECES> weights(norm);
  const int row = gather ? gather[blockIdx.x] : int(blockIdx.x);
  wait_for_previous();
  if (row < 0) return;
  h += size_t(blockIdx.x) * ldh;
  if (norm.hidden <= PIECES * NORM_THREADS * 4) return norm_row(norm, weights, row, h, norm.x_out, sums);
  norm_wide_row(norm, row, h, norm.x_out, sums);
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
