// The kernels of mix.h.
#pragma once

#include "../device/kernel.cuh"
#include "mix.h"

namespace pen {

constexpr int MIX_THREADS = 256;

// Grid: (rows, parts).
__global__ void __launch_bounds__(MIX_THREADS) mix_kernel(const __grid_constant__ Mix p, const __grid_constant__ MixTerms terms) {
  let_next_start();
  const size_t row = blockIdx.x;
  const int part = blockIdx.y;
  const size_t at = row * p.parts + part;
  const uint32_t begin = at == 0 ? 0 : terms.ends[at - 1], end = terms.ends[at];
  wait_for_previous();
  float* const to = p.to + row * p.ld_to + (p.interleaved ? part : part * p.len);
  const int stride = p.interleaved ? p.parts : 1;
  for (int i = threadIdx.x; i < p.len; i += MIX_THREADS) {
    float sum = p.add ? to[i * stride] : 0.0f;
    for (uint32_t t = begin; t < end; ++t) {
      sum = __fadd_rn(sum, __fmul_rn(terms.weights[t], p.from[static_cast<size_t>(terms.rows[t]) * p.ld_from + i]));
    }
    to[i * stride] = sum;
  }
}

// Grid: (rows).
__global__ void __launch_bounds__(MIX_THREADS)
    patches_kernel(const __grid_constant__ Patches p, const uint8_t* __restrict__ pixels, const pen_patch* __restrict__ patches) {
  let_next_start();
  const size_t row = blockIdx.x;
  const pen_patch patch = patches[row];
  wait_for_previous();
  const int square = p.size * p.size;
  for (int i = threadIdx.x; i < 3 * square; i += MIX_THREADS) {
    const int colour = i / square, y = i % square / p.size, x = i % p.size;
    const float pixel = __fdiv_rn(static_cast<float>(pixels[patch.first + static_cast<size_t>(y) * patch.line + 3 * x + colour]), 255.0f);
    const float value = __fdiv_rn(__fsub_rn(pixel, p.mean[colour]), p.deviation[colour]);
    if (p.floats != nullptr) p.floats[row * p.ld + i] = value; else p.out[row * p.ld + i] = __float2half_rn(value);
  }
}

}  // namespace pen
