// The kernel of exchange.h.
#pragma once

#include "../device/kernel.cuh"
#include "exchange.h"

namespace pen {

constexpr int EXCHANGE_THREADS = 256;

// Grid: (ceil(width / EXCHANGE_THREADS), rows)
__global__ void __launch_bounds__(EXCHANGE_THREADS) exchange_kernel(const __grid_constant__ Exchange p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * EXCHANGE_THREADS + threadIdx.x;
  if (i >= p.width) return;
  const size_t at = size_t(blockIdx.y) * p.width + i;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    for (int part = half * p.half; part < min((half + 1) * p.half, p.num_parts); part++) {
      if (p.parts[part]) sums[half] = __fadd_rn(sums[half], p.parts[part][at]);
    }
  }
  for (int out = 0; out < p.num_outs; out++) {
    const float first = p.add ? __fadd_rn(p.outs[out][at], sums[0]) : sums[0];
    p.outs[out][at] = __fadd_rn(first, sums[1]);
  }
}

}  // namespace pen
