// Uniform random numbers and the weight of a logit, bit for bit as the CPU's sampler computes them.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by seed and position alone.
#pragma once

#include "../device/kernel.cuh"

namespace pen {

struct Words4 {
  uint32_t x, y, z, w;
};

__host__ __device__ inline Words4 philox4x32(Words4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * counter.x;
    const uint64_t b = uint64_t(0xCD9E8D57u) * counter.z;
    counter = Words4{uint32_t(b >> 32) ^ counter.y ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter.w ^ key1, uint32_t(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// A number in [0, 1) with 53 random bits, for token number `index` generated under `seed`.
__host__ __device__ inline double uniform(uint64_t seed, uint32_t index) {
  const Words4 words = philox4x32(Words4{index, 0, 0, 0}, uint32_t(seed), uint32_t(seed >> 32));
  const uint64_t bits = (uint64_t(words.y) << 32 | words.x) >> 11;
  return double(bits) * (1.0 / 9007199254740992.0);
}

// e^x for x <= 0 as the CPU's sampler computes it, and 0 below -87. Each operation is rounded: a contraction would change bits.
__device__ __forceinline__ float exp_weight(float x) {
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
  const float clamped = x > -87.0f ? x : -87.0f;
  const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), ROUND);
  const float n = __fsub_rn(shifted, ROUND);
  const float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 355.0f / 512.0f)), __fmul_rn(n, -2.1219444e-4f));
  float p = 1.0f / 5040.0f;
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
  p = __fadd_rn(__fmul_rn(p, r), 0.5f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  p = __fadd_rn(__fmul_rn(p, r), 1.0f);
  const uint32_t exponent = (__float_as_uint(shifted) - __float_as_uint(ROUND) + 127u) << 23;
  const float value = __fmul_rn(p, __uint_as_float(exponent));
  return x > -87.0f ? value : 0.0f;
}

__device__ __forceinline__ float weight_of(float logit, float max, float temperature) {
  return exp_weight(__fdiv_rn(__fsub_rn(logit, max), temperature));
}

}  // namespace pen
