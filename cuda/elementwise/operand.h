// Rows that elementwise ops and norms work on.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

namespace pen {

// Rows of float32 or float16 elements, cut into heads. Element i of head h of row r has index r · ld + h · stride + i.
struct Operand {
  float* x = nullptr;
  __half* half = nullptr;
  size_t ld = 0;
  int stride = 0;
};

// Whether four elements at a multiple of four may be read at once, in every row and head.
inline bool in_fours(const void* from, size_t bytes) { return reinterpret_cast<uintptr_t>(from) % (4 * bytes) == 0; }
inline bool in_fours(const Operand& x) {
  const bool aligned = x.half ? in_fours(x.half, sizeof(__half)) : in_fours(x.x, sizeof(float));
  return aligned && x.ld % 4 == 0 && x.stride % 4 == 0;
}

}  // namespace pen
