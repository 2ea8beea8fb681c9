// What all kernels of experts do to the products of gate and up, and how they add up a row's experts.
#pragma once

#include "../elementwise/activation.cuh"
#include "experts.h"

namespace pen {

// Adds an expert's biases and applies the activation. The shared expert (negative) has no biases.
template <class P>
__device__ __forceinline__ __half activated(const P& p, int expert, int ffn, int i, float gate, float up) {
  if (p.gate_bias && expert >= 0) gate = __fadd_rn(gate, p.gate_bias[size_t(expert) * ffn + i]);
  if (p.up_bias && expert >= 0) up = __fadd_rn(up, p.up_bias[size_t(expert) * ffn + i]);
  return clamped_half(gated(p.activation, gate, up, p.params));
}

// The eighth of all experts' ids to which an expert belongs. 0 for none.
__device__ __forceinline__ int eighth_of(int expert, int num_experts) { return max(expert, 0) * SLICES / num_experts; }

// The sums of a row's experts over each eighth of the ids.
struct EighthSums {
  float sums[SLICES] = {};
  __device__ __forceinline__ void add(int eighth, float y) {
#pragma unroll
    for (int k = 0; k < SLICES; k++) sums[k] = k == eighth ? __fadd_rn(sums[k], y) : sums[k];
  }
  __device__ __forceinline__ float total() const {
    const auto pair = [&](int k) { return __fadd_rn(sums[k], sums[k + 1]); };
    return __fadd_rn(__fadd_rn(pair(0), pair(2)), __fadd_rn(pair(4), pair(6)));
  }
};

}  // namespace pen
