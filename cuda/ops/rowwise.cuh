// Ops on rows of the residual stream: embedding and norms. Float32 throughout; a
// row is summed by one block in one fixed order.
#pragma once

#include "linear.cuh"

namespace pen {

constexpr int ROW_THREADS = 256;

// x[token] = embedding of its id, scaled, plus that of its position where positions are learned. A warp a token and eight chunks of columns.
struct Embed {
  Matrix table;
  const int32_t* inputs;  // [num_tokens] an id, or -1 - slot
  const int32_t* last;    // [slots] what each slot sampled last
  float* x;               // [num_tokens, hidden]
  int num_tokens;
  float scale;
  Matrix positions;          // without data: not learned
  const uint32_t* position;  // [num_tokens]
};

// The lane's elements of a row's chunk: put(column, value).
template <class Put>
__device__ __forceinline__ void read_row(const Matrix& table, int id, int chunk, int lane, Put put) {
  const int row = id % TILE_ROWS;
  with_format(table.format, [&](auto format) {
    typename decltype(format)::Raw raw;
    const uint8_t* tile = table.data + size_t(id / TILE_ROWS) * table.chunks() * table.record_bytes;
    raw.load(tile + size_t(chunk) * table.record_bytes, (row % 8) * 4 + lane % 4);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t a[4];
      raw.fragment(s, a);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float2 w = __half22float2(bits_half2(row < 8 ? a[2 * h] : a[2 * h + 1]));
        const int column = chunk * CHUNK + 16 * s + 2 * (lane % 4) + 8 * h;
        if (column < table.cols) put(column, w.x);
        if (column + 1 < table.cols) put(column + 1, w.y);
      }
    }
  });
}

__global__ void __launch_bounds__(ROW_THREADS) embed_kernel(const __grid_constant__ Embed p) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.y, lane = threadIdx.x % WARP;
  const int input = p.inputs[token];
  int id = input >= 0 ? input : p.last[-1 - input];
  if (id < 0 || id >= p.table.rows) id = 0;  // a slot that failed: its row's result is thrown away
  const int chunk = (blockIdx.x * ROW_THREADS + threadIdx.x) / 4;
  if (chunk >= p.table.chunks()) return;
  float* x = p.x + size_t(token) * p.table.cols;
  read_row(p.table, id, chunk, lane, [&](int column, float w) { x[column] = w * p.scale; });
  if (!p.positions.data) return;
  read_row(p.positions, int(p.position[token]), chunk, lane, [&](int column, float w) { x[column] = __fadd_rn(x[column], w); });
}

// Rows of `norm`, one a block; `gather` names the row of each block (negative: none), or is null.
__global__ void __launch_bounds__(NORM_THREADS) norm_kernel(const __grid_constant__ Norm norm, const int32_t* gather, __half* h, int ldh) {
  __shared__ __align__(16) float sums[2 * SLICES];
  let_next_start();
  constexpr int PIECES = 4;
  const NormWeights<PIECES> weights(norm);
  const int row = gather ? gather[blockIdx.x] : int(blockIdx.x);
  wait_for_previous();
  if (row < 0) return;
  h += size_t(blockIdx.x) * ldh;
  if (norm.hidden <= PIECES * NORM_THREADS * 4) return norm_row(norm, weights, row, PlainRow{h}, norm.x_out, sums);
  norm_wide_row(norm, row, PlainRow{h}, norm.x_out, sums);
}

}  // namespace pen
