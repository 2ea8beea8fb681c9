// Activations of single elements in float32. All of them keep NaN.
#pragma once

#include "../linear/epilogue.cuh"
#include "activation.h"

namespace pen {

// `params` of Activation::XIELU: alpha of negative and of positive inputs, beta, epsilon. The other activations take none.
__device__ __forceinline__ float activation(Activation kind, float x, const float* params) {
  switch (kind) {
    case Activation::GELU: return gelu(x);
    case Activation::GELU_ERF: return __fmul_rn(0.5f * x, __fadd_rn(1.0f, erff(x * 0.70710678118654752f)));
    case Activation::GELU_QUICK: return times_sigmoid(x, 1.702f * x);
    // fmaxf alone would turn NaN into 0.
    case Activation::RELU: return __fadd_rn(fmaxf(x, 0.0f), __fmul_rn(0.0f, x));
    case Activation::RELU_SQUARED: return __fmaf_rn(fmaxf(x, 0.0f), fmaxf(x, 0.0f), __fmul_rn(0.0f, x));
    case Activation::XIELU: {
      const float linear = __fmul_rn(params[2], x);
      if (x > 0.0f) return __fmaf_rn(__fmul_rn(params[1], x), x, linear);
      return __fmaf_rn(__fsub_rn(expm1f(fminf(x, params[3])), x), params[0], linear);
    }
    default: return silu(x);
  }
}

// activation(gate) · up, with the product rounded.
__device__ __forceinline__ float gated(Activation kind, float gate, float up, const float* params) {
  if (kind == Activation::SWIGLU_CLAMPED) {
    const float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return __fmul_rn(__fdividef(g, 1.0f + __expf(-1.702f * g)), __fadd_rn(u, 1.0f));
  }
  return __fmul_rn(activation(kind, gate, params), up);
}

// Rounds to float16. A value beyond the range becomes the largest finite one instead of infinity. A NaN stays NaN.
__device__ __forceinline__ __half clamped_half(float x) {
  return __float2half_rn(x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

}  // namespace pen
