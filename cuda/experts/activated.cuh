// Bias and activation after the products of gate and up, for every kernel that computes them.
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

}  // namespace pen
