// The kernel of embedding.h.
#pragma once

#include "../quant/format.cuh"
#include "embedding.h"

namespace pen {

constexpr int EMBED_THREADS = 256;

// Passes the lane's elements of one K tile of a row to put(column, value).
template <class Put>
__device__ __forceinline__ void read_row(const Matrix& table, int id, int k_tile, int lane, Put put) {
  const int row = id % TILE_ROWS;
  with_format(table.format, [&](auto format) {
    typename decltype(format)::Raw raw;
    const uint8_t* tile = table.data + size_t(id / TILE_ROWS) * table.k_tiles() * table.record_bytes;
    raw.load(tile + size_t(k_tile) * table.record_bytes, (row % 8) * 4 + lane % 4);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t a[4];
      raw.fragment(s, a);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float2 w = __half22float2(bits_half2(row < 8 ? a[2 * h] : a[2 * h + 1]));
        const int column = k_tile * K_TILE + 16 * s + 2 * (lane % 4) + 8 * h;
        if (column < table.cols) put(column, w.x);
        if (column + 1 < table.cols) put(column + 1, w.y);
      }
    }
  });
}

// Grid: (ceil(4 · K tiles / EMBED_THREADS), tokens): four lanes per K tile of columns.
__global__ void __launch_bounds__(EMBED_THREADS) embed_kernel(const __grid_constant__ Embed p) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.y, lane = threadIdx.x % WARP;
  const int input = p.inputs[token];
  const bool is_given = input <= FIRST_EMBEDDING && !p.pads_embeddings;
  int id = id_of(input, p.last);
  if (id < 0 || id >= p.table.rows) id = 0;
  const int k_tile = (blockIdx.x * EMBED_THREADS + threadIdx.x) / 4;
  if (k_tile >= p.table.k_tiles()) return;
  float* x = p.x + size_t(token) * p.table.cols;
  if (!is_given) {
    read_row(p.table, id, k_tile, lane, [&](int column, float w) {
      const float y = w * p.scale;
      x[column] = p.types ? __fadd_rn(y, p.types[size_t(p.token_type[token]) * p.table.cols + column]) : y;
    });
  }
  if (!p.positions.data) return;
  read_row(p.positions, int(p.position[token]), k_tile, lane, [&](int column, float w) { x[column] = __fadd_rn(x[column], w); });
}

// Grid: (ceil(hidden / EMBED_THREADS), tokens).
__global__ void __launch_bounds__(EMBED_THREADS) add_slice_kernel(const __grid_constant__ AddSlice p, const int32_t* inputs) {
  let_next_start();
  wait_for_previous();
  const size_t token = blockIdx.y;
  const int i = blockIdx.x * EMBED_THREADS + threadIdx.x;
  if (i >= p.hidden || inputs[token] > FIRST_EMBEDDING) return;
  float& x = p.x[token * p.hidden + i];
  x = __fadd_rn(x, p.slices[token * p.stride + i]);
}

}  // namespace pen
