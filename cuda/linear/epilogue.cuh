// What happens to the sums of a product before they are written, shared by every kernel of linear layers and by elementwise ops.
#pragma once

#include "../device/kernel.cuh"
#include "linear.h"

namespace pen {

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
// tanh approximation (Hendrycks and Gimpel 2016)
__device__ __forceinline__ float gelu(float x) {
  const float inner = 0.7978845608028654f * __fmaf_rn(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanhf(inner));
}
__device__ __forceinline__ __half gated(float gate, float up, Epilogue epilogue) {
  const float y = __fmul_rn(epilogue == Epilogue::SILU_MUL ? silu(gate) : gelu(gate), up);
  // Clamped: a value past float16's range must not become infinite. Activations of real models stay far below it. A NaN stays.
  return __float2half_rn(y != y ? y : fminf(fmaxf(y, -65504.0f), 65504.0f));
}

}  // namespace pen
