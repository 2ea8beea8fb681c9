// Reads and writes elements of rows of either type.
#pragma once

#include "activation.cuh"
#include "operand.h"

namespace pen {

__device__ __forceinline__ float read(const Operand& x, size_t row, int head, int i) {
  const size_t at = row * x.ld + size_t(head) * x.stride + i;
  return x.half ? __half2float(x.half[at]) : x.x[at];
}
__device__ __forceinline__ void write(const Operand& x, size_t row, int head, int i, float y) {
  const size_t at = row * x.ld + size_t(head) * x.stride + i;
  if (x.half) {
    x.half[at] = clamped_half(y);
  } else {
    x.x[at] = y;
  }
}

}  // namespace pen
