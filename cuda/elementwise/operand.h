// Rows that elementwise ops and norms work on.
#pragma once

#include <cuda_fp16.h>

namespace pen {

// Rows of float32 or float16 elements, cut into heads. Element i of head h of row r has index r · ld + h · stride + i.
struct Operand {
  float* x = nullptr;
  __half* half = nullptr;
  size_t ld = 0;
  int stride = 0;
};

}  // namespace pen
