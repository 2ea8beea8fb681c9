// Rows that elementwise ops and norms work on.
#pragma once

#include <cuda_fp16.h>

namespace pen {

// Rows of float32 or float16 elements, cut into heads: element i of head h of row r lies at r · ld + h · stride + i from the first.
struct Operand {
  float* x = nullptr;
  __half* half = nullptr;
  size_t ld = 0;
  int stride = 0;
};

}  // namespace pen
