// The kernel of repack.h. Runs once per piece of a tensor, while a model is loaded.
#pragma once

#include "blocks_book.cuh"
#include "repack.h"

namespace pen {

// The elements of one record, read through a decoder.
template <class Block, int BLOCK_SIZE, int BLOCK_BYTES, int OFFSET>
struct RecordSource {
  const Repack& p;
  int tile, k_tile;

  __device__ bool owns(int half) const { return p.placement == Placement::WHOLE || (p.placement == Placement::LOWER_HALF) == (half == 1); }
  __device__ const uint8_t* block(int row, int column, int& i) const {
    const int r = p.placement == Placement::WHOLE ? tile * TILE_ROWS + row : tile * 8 + row % 8;
    const int c = k_tile * K_TILE + column;
    if (r >= p.rows || c >= p.cols) return nullptr;
    i = c % BLOCK_SIZE;
    return p.blocks + (size_t(r - p.first_row) * (p.cols / BLOCK_SIZE) + c / BLOCK_SIZE) * BLOCK_BYTES;
  }
  __device__ uint32_t code(int row, int column) const {
    int i = 0;
    const uint8_t* b = block(row, column, i);
    return b ? Block::code(b, i) : OFFSET;
  }
  __device__ float scale(int row, int column) const {
    int i = 0;
    const uint8_t* b = block(row, column, i);
    return b ? fitting(Block::scale(b, i)) : 0.0f;
  }
  __device__ float min(int row, int column) const {
    int i = 0;
    const uint8_t* b = block(row, column, i);
    return b ? fitting(Block::min(b, i)) : 0.0f;
  }
  // A scale of 16 columns in two parts: amplitude · (2 step + 1).
  __device__ float amplitude(int row) const {
    int i = 0;
    const uint8_t* b = block(row, 0, i);
    return b ? fitting(Block::amplitude(b)) : 0.0f;
  }
  __device__ uint32_t step(int row, int column) const {
    int i = 0;
    const uint8_t* b = block(row, column, i);
    return b ? Block::step(b, i) : 0;
  }
  __device__ float value(int row, int column) const {
    int i = 0;
    const uint8_t* b = block(row, column, i);
    return b ? fitting(Block::value(b, i)) : 0.0f;
  }
  __device__ float fitting(float x) const {
    if (fabsf(x) > 65504.0f && isfinite(x)) *p.overflow = 1;
    return x;
  }
};

template <class Block, class Format, int BLOCK_SIZE, int BLOCK_BYTES>
__global__ void repack_kernel(Repack p) {
  const int k_tiles = ceil_div(p.cols, K_TILE);
  const int tile_rows = p.placement == Placement::WHOLE ? TILE_ROWS : 8;
  const int first_tile = p.first_row / tile_rows, num_tiles = ceil_div(p.num_rows, tile_rows);
  const int lane = threadIdx.x % WARP;
  const size_t warps = size_t(gridDim.x) * blockDim.x / WARP;
  for (size_t w = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP; w < size_t(num_tiles) * k_tiles; w += warps) {
    const int tile = first_tile + int(w / k_tiles), k_tile = int(w % k_tiles);
    uint8_t* record = p.records + (size_t(tile) * k_tiles + k_tile) * Format::record_bytes;
    if constexpr (Format::id == FORMAT_H16) {
      Format::pack(record, lane, RecordSource<Block, BLOCK_SIZE, BLOCK_BYTES, 0>{p, tile, k_tile});
    } else {
      Format::pack(record, lane, RecordSource<Block, BLOCK_SIZE, BLOCK_BYTES, Format::offset>{p, tile, k_tile});
    }
  }
}

}  // namespace pen
