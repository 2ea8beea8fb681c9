// A matrix in device memory, in the layout of format.cuh.
#pragma once

#include "../device/error.h"

namespace pen {

// A record: 16 rows × 64 columns.
constexpr int TILE_ROWS = 16;
constexpr int K_TILE = 64;
constexpr int STEPS = K_TILE / 16;  // tensor-core products per record

struct Matrix {
  const uint8_t* data = nullptr;
  int rows = 0, cols = 0;
  int format = 0, record_bytes = 0;
  __host__ __device__ int tiles() const { return ceil_div(rows, TILE_ROWS); }
  __host__ __device__ int k_tiles() const { return ceil_div(cols, K_TILE); }
  size_t bytes() const { return size_t(tiles()) * k_tiles() * record_bytes; }
};

}  // namespace pen
