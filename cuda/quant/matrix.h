// A matrix in device memory, as format.cuh lays it out.
#pragma once

#include "../device/error.h"

namespace pen {

// A record: 16 rows × 64 columns.
constexpr int TILE_ROWS = 16;
constexpr int CHUNK = 64;
constexpr int STEPS = CHUNK / 16;  // tensor-core products per record

struct Matrix {
  const uint8_t* data = nullptr;
  int rows = 0, cols = 0;
  int format = 0, record_bytes = 0;
  __host__ __device__ int tiles() const { return ceil_div(rows, TILE_ROWS); }
  __host__ __device__ int chunks() const { return ceil_div(cols, CHUNK); }
  size_t bytes() const { return size_t(tiles()) * chunks() * record_bytes; }
};

}  // namespace pen
