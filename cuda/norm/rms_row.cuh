// RMSNorm of a row by a whole block: for the kernel of rms.cuh, and for linear layers that normalise their own input.
#pragma once

#include "../device/kernel.cuh"
#include "norm.h"

namespace pen {

// The same sum on every thread of the block: lanes, then warps, each in one order. `shared`: NORM_WARPS floats, aligned to 16
// bytes; two successive calls need different ones.
__device__ __forceinline__ float norm_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < NORM_THREADS / WARP; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(shared + w);
    total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, four.x), four.y), four.z), four.w);
  }
  return total;
}

__device__ __forceinline__ float add_squares(float4 x, float sum) {
  return __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmaf_rn(x.x, x.x, sum))));
}
__device__ __forceinline__ void move_by(float4& x, const float4& branch, float scale, const float4& weight) {
  x.x = __fadd_rn(x.x, __fmul_rn(__fmul_rn(branch.x, scale), weight.x));
  x.y = __fadd_rn(x.y, __fmul_rn(__fmul_rn(branch.y, scale), weight.y));
  x.z = __fadd_rn(x.z, __fmul_rn(__fmul_rn(branch.z, scale), weight.z));
  x.w = __fadd_rn(x.w, __fmul_rn(__fmul_rn(branch.w, scale), weight.w));
}

// Four columns a thread and piece: PIECES · 1024 columns.
template <int PIECES>
struct NormWeights {
  float4 own[PIECES], branch[PIECES];
  // Static: may be read before a kernel waits.
  __device__ __forceinline__ explicit NormWeights(const Norm& p) {
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
      const int i = (k * NORM_THREADS + threadIdx.x) * 4;
      own[k] = branch[k] = float4{};
      if (i >= p.hidden) continue;
      own[k] = *reinterpret_cast<const float4*>(p.weight + i);
      if (p.branch) branch[k] = *reinterpret_cast<const float4*>(p.branch_weight + i);
    }
  }
};

__device__ __forceinline__ float norm_scale(const Norm& p, float squares, float* sums) {
  return rsqrtf(__fdividef(norm_sum(squares, sums), float(p.hidden)) + p.eps);
}

// Receives a normalised row, column by column.
struct PlainRow {
  __half* h;
  // Columns i to i + 3, i a multiple of 4.
  __device__ __forceinline__ void put(int i, uint32_t low, uint32_t high) const {
    *reinterpret_cast<uint2*>(h + i) = make_uint2(low, high);
  }
};

template <class Row>
__device__ __forceinline__ void write_normed(const float4& x, const float4& weight, float inverse, const Row& to, int i) {
  const __half2 low = __floats2half2_rn(__fmul_rn(__fmul_rn(x.x, inverse), weight.x), __fmul_rn(__fmul_rn(x.y, inverse), weight.y));
  const __half2 high = __floats2half2_rn(__fmul_rn(__fmul_rn(x.z, inverse), weight.z), __fmul_rn(__fmul_rn(x.w, inverse), weight.w));
  to.put(i, half2_bits(low), half2_bits(high));
}

// One row by a whole block of NORM_THREADS, at most PIECES · 1024 columns. The row's bits depend neither on the calling kernel nor on
// PIECES. `sums`: 2 NORM_WARPS floats.
template <int PIECES, class Row>
__device__ __forceinline__ void norm_row(const Norm& p, const NormWeights<PIECES>& weights, int index, const Row& to, float* x_out,
                                         float* sums) {
  const size_t row = size_t(index) * p.hidden;
  float4 x[PIECES], branch[PIECES];
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    const int i = (k * NORM_THREADS + threadIdx.x) * 4;
    x[k] = branch[k] = float4{};
    if (i >= p.hidden) continue;
    x[k] = __ldcg(reinterpret_cast<const float4*>(p.x + row + i));
    if (p.branch) branch[k] = __ldcg(reinterpret_cast<const float4*>(p.branch + row + i));
  }
  if (p.branch) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PIECES; k++) sum = add_squares(branch[k], sum);
    const float scale = norm_scale(p, sum, sums);
#pragma unroll
    for (int k = 0; k < PIECES; k++) move_by(x[k], branch[k], scale, weights.branch[k]);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < PIECES; k++) sum = add_squares(x[k], sum);
  const float inverse = norm_scale(p, sum, sums + NORM_WARPS);
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    const int i = (k * NORM_THREADS + threadIdx.x) * 4;
    if (i >= p.hidden) continue;
    write_normed(x[k], weights.own[k], inverse, to, i);
    if (x_out) *reinterpret_cast<float4*>(x_out + row + i) = x[k];
  }
}

// The same for rows of any width: the row is read again in each pass.
__device__ __forceinline__ void norm_wide_row(const Norm& p, int index, const PlainRow& to, float* x_out, float* sums) {
  const size_t row = size_t(index) * p.hidden;
  float scale = 0;
  const auto four = [](const float* at) -> const float4& { return *reinterpret_cast<const float4*>(at); };
  const auto moved = [&](int i) {
    float4 x = four(p.x + row + i);
    if (p.branch) move_by(x, four(p.branch + row + i), scale, four(p.branch_weight + i));
    return x;
  };
  if (p.branch) {
    float sum = 0;
    for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) sum = add_squares(four(p.branch + row + i), sum);
    scale = norm_scale(p, sum, sums);
  }
  float sum = 0;
  for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) sum = add_squares(moved(i), sum);
  const float inverse = norm_scale(p, sum, sums + NORM_WARPS);
  for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) {
    const float4 x = moved(i);
    write_normed(x, four(p.weight + i), inverse, to, i);
    if (x_out) *reinterpret_cast<float4*>(x_out + row + i) = x;
  }
}

}  // namespace pen
