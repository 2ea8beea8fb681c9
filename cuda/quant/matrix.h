// A matrix in device memory, in the layout of format.cuh. Compiled by a host's compiler, too.
#pragma once

#include "../device/numbers.h"

namespace pen {

// A record: 16 rows × 64 columns.
constexpr int TILE_ROWS = 16;
constexpr int K_TILE = 64;
constexpr int STEPS = K_TILE / 16;  // tensor-core products per record

enum FormatId : int {
  FORMAT_H16, FORMAT_Q4, FORMAT_Q4_MIN, FORMAT_Q5, FORMAT_Q5_MIN, FORMAT_Q8, FORMAT_Q2_MIN, FORMAT_Q3, FORMAT_Q6,
  FORMAT_Q2, FORMAT_IQ1, FORMAT_IQ2, FORMAT_IQ3_XXS, FORMAT_IQ3_S, FORMAT_IQ4, FORMAT_MXFP4, FORMAT_NVFP4
};

struct Matrix {
  const uint8_t* data = nullptr;
  int rows = 0, cols = 0;
  int format = 0, record_bytes = 0;
  PEN_ANYWHERE int tiles() const { return ceil_div(rows, TILE_ROWS); }
  PEN_ANYWHERE int k_tiles() const { return ceil_div(cols, K_TILE); }
  size_t bytes() const { return size_t(tiles()) * k_tiles() * record_bytes; }
};

}  // namespace pen
