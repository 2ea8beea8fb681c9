// Decodes blocks of GGUF's tensor types as the file holds them (the layouts are ggml's). Each decoder returns a weight's code and its
// group's scale and minimum. src/model/dequant.rs is the exact float32 reference.
#pragma once

#include <cuda_bf16.h>

#include "format.cuh"

namespace pen {

__host__ __device__ __forceinline__ float half_at(const uint8_t* p) { return __half2float(__ushort_as_half(uint16_t(p[0] | p[1] << 8))); }
__host__ __device__ __forceinline__ uint32_t bits_of(uint32_t x, int from, int count) { return (x >> from) & ((1u << count) - 1); }

// The float with these bits, on the host and on the device.
__host__ __device__ __forceinline__ float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

struct BlockF32 {
  __host__ __device__ static float value(const uint8_t* b, int) { return float_of(b[0] | b[1] << 8 | b[2] << 16 | uint32_t(b[3]) << 24); }
};
struct BlockF16 {
  __host__ __device__ static float value(const uint8_t* b, int) { return half_at(b); }
};
struct BlockBF16 {
  __host__ __device__ static float value(const uint8_t* b, int) { return float_of(uint32_t(b[0] | b[1] << 8) << 16); }
};

// Nibble i of 32. The low nibbles are weights 0..16.
__host__ __device__ __forceinline__ uint32_t nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

struct BlockQ4_0 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 2, i); }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b); }
  __host__ __device__ static float min(const uint8_t*, int) { return 0; }
};
struct BlockQ4_1 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 4, i); }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b); }
  __host__ __device__ static float min(const uint8_t* b, int) { return half_at(b + 2); }
};
struct BlockQ5_0 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 6, i) | bits_of(b[2 + i / 8], i % 8, 1) << 4; }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b); }
  __host__ __device__ static float min(const uint8_t*, int) { return 0; }
};
struct BlockQ5_1 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 8, i) | bits_of(b[4 + i / 8], i % 8, 1) << 4; }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b); }
  __host__ __device__ static float min(const uint8_t* b, int) { return half_at(b + 2); }
};
struct BlockQ8_0 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return b[2 + i] ^ 128u; }  // two's complement to excess 128
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b); }
  __host__ __device__ static float min(const uint8_t*, int) { return 0; }
};

// Two-bit fields of Q2_K and Q3_K, and the high bits of Q6_K: 32 bytes hold weights i, i + 32, i + 64, i + 96.
__host__ __device__ __forceinline__ uint32_t two_bits(const uint8_t* q, int i) {
  return bits_of(q[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2);
}

struct BlockQ2_K {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return two_bits(b + 16, i); }
  __host__ __device__ static float scale(const uint8_t* b, int i) { return half_at(b + 80) * float(b[i / 16] & 15); }
  __host__ __device__ static float min(const uint8_t* b, int i) { return -half_at(b + 82) * float(b[i / 16] >> 4); }
};
struct BlockQ3_K {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return two_bits(b + 32, i) | bits_of(b[i % 32], i / 32, 1) << 2; }
  __host__ __device__ static float scale(const uint8_t* b, int i) {
    const int j = i / 16;
    const uint8_t* s = b + 96;
    const uint32_t low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return half_at(b + 108) * (float(low | bits_of(s[8 + j % 4], j / 4 * 2, 2) << 4) - 32.0f);
  }
  __host__ __device__ static float min(const uint8_t*, int) { return 0; }
};

// Six-bit scale and minimum of sub-block j. Twelve bytes hold those of eight sub-blocks.
__host__ __device__ __forceinline__ uint32_t k_scale(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
__host__ __device__ __forceinline__ uint32_t k_min(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
}
__host__ __device__ __forceinline__ uint32_t k_nibble(const uint8_t* q, int i) {
  const uint8_t byte = q[i / 64 * 32 + i % 32];
  return i / 32 % 2 == 0 ? byte & 15 : byte >> 4;
}

struct BlockQ4_K {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return k_nibble(b + 16, i); }
  __host__ __device__ static float scale(const uint8_t* b, int i) { return half_at(b) * float(k_scale(b + 4, i / 32)); }
  __host__ __device__ static float min(const uint8_t* b, int i) { return -half_at(b + 2) * float(k_min(b + 4, i / 32)); }
};
struct BlockQ5_K {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    return k_nibble(b + 48, i) | bits_of(b[16 + i % 32], i / 32, 1) << 4;
  }
  __host__ __device__ static float scale(const uint8_t* b, int i) { return half_at(b) * float(k_scale(b + 4, i / 32)); }
  __host__ __device__ static float min(const uint8_t* b, int i) { return -half_at(b + 2) * float(k_min(b + 4, i / 32)); }
};
struct BlockQ6_K {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint8_t byte = b[i / 128 * 64 + i % 64];
    return (i % 128 < 64 ? byte & 15u : byte >> 4) | two_bits(b + 128, i) << 4;
  }
  __host__ __device__ static float scale(const uint8_t* b, int i) { return half_at(b + 208) * float(int8_t(b[192 + i / 16])); }
  __host__ __device__ static float min(const uint8_t*, int) { return 0; }
};

}  // namespace pen
