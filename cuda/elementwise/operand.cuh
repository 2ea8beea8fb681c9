// Reads and writes elements of rows of either type, EACH at once, whose place is a multiple of EACH.
#pragma once

#include "activation.cuh"
#include "operand.h"

namespace pen {

template <int EACH>
__device__ __forceinline__ void read_floats(float (&to)[EACH], const float* from) {
  static_assert(EACH == 1 || EACH == 4);
  if constexpr (EACH == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else {
    to[0] = *from;
  }
}
template <int EACH>
__device__ __forceinline__ void write_halves(__half* to, const float (&from)[EACH]) {
  if constexpr (EACH == 4) {
    const __half2 low = __halves2half2(clamped_half(from[0]), clamped_half(from[1]));
    const __half2 high = __halves2half2(clamped_half(from[2]), clamped_half(from[3]));
    *reinterpret_cast<uint2*>(to) = make_uint2(half2_bits(low), half2_bits(high));
  } else {
    *to = clamped_half(from[0]);
  }
}

template <int EACH>
__device__ __forceinline__ void read(float (&to)[EACH], const Operand& x, size_t row, int head, int i) {
  const size_t at = row * x.ld + size_t(head) * x.stride + i;
  if (!x.half) return read_floats(to, x.x + at);
  if constexpr (EACH == 4) {
    const uint2 bits = *reinterpret_cast<const uint2*>(x.half + at);
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
  } else {
    to[0] = __half2float(x.half[at]);
  }
}
template <int EACH>
__device__ __forceinline__ void write(const Operand& x, size_t row, int head, int i, const float (&from)[EACH]) {
  const size_t at = row * x.ld + size_t(head) * x.stride + i;
  if (x.half) return write_halves(x.half + at, from);
  if constexpr (EACH == 4) {
    *reinterpret_cast<float4*>(x.x + at) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    x.x[at] = from[0];
  }
}

__device__ __forceinline__ float read(const Operand& x, size_t row, int head, int i) {
  float one[1];
  read(one, x, row, head, i);
  return one[0];
}
__device__ __forceinline__ void write(const Operand& x, size_t row, int head, int i, float y) {
  const float one[1] = {y};
  write(x, row, head, i, one);
}

}  // namespace pen
