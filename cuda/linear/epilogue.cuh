// Epilogues: activations and conversions of a product's sums before they are written. Shared by all kernels of linear layers and by
// elementwise ops.
#pragma once

#include "../device/kernel.cuh"
#include "linear.h"

namespace pen {

// x · sigmoid(z), the form of both silu and gelu. Kernels whose epilogue is a parameter choose z, so they need no branch per sum.
__device__ __forceinline__ float times_sigmoid(float x, float z) { return __fdividef(x, 1.0f + __expf(-z)); }
__device__ __forceinline__ float silu(float x) { return times_sigmoid(x, x); }
// gelu's tanh approximation (Hendrycks and Gimpel 2016), 0.5 x (1 + tanh(u)), equals x · sigmoid(2 u). This is 2 u.
__device__ __forceinline__ float gelu_argument(float x) { return x * __fmaf_rn(0.07135481627260025f * x, x, 1.5957691216057308f); }
__device__ __forceinline__ float gelu(float x) { return times_sigmoid(x, gelu_argument(x)); }
__device__ __forceinline__ __half gated(float gate, float up, Epilogue epilogue) {
  const float z = epilogue == Epilogue::SILU_MUL ? gate : gelu_argument(gate);
  const float y = __fmul_rn(times_sigmoid(gate, z), up);
  // Clamps: a value beyond float16's range must not become infinite. Activations of real models stay far below it. A NaN stays NaN.
  return __float2half_rn(y != y ? y : fminf(fmaxf(y, -65504.0f), 65504.0f));
}

// base + the sum of the slices, where value(s) is that of slice `s`: in ascending order, or in halves (Slicing).
template <class Value>
__device__ __forceinline__ float sum_up(float base, bool halves, Value value) {
  float y[SLICES], total = 0.0f;
#pragma unroll
  for (int s = 0; s < SLICES; s++) y[s] = value(s);
#pragma unroll
  for (int s = 0; s < HALF; s++) total = __fadd_rn(total, y[s]);
  base = halves ? __fadd_rn(base, total) : base;
  total = halves ? 0.0f : total;
#pragma unroll
  for (int s = HALF; s < SLICES; s++) total = __fadd_rn(total, y[s]);
  return __fadd_rn(base, total);
}

}  // namespace pen
