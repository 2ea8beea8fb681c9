// RMSNorm of rows by a whole block, for the kernel of rms.cuh and for linear layers that normalise their own input.
#pragma once

#include "../device/kernel.cuh"
#include "norm.h"

namespace pen {

// Sums several numbers over the block, and gives every thread the same results: lanes, then warps, each in a fixed order. `shared`: ROWS ·
// NORM_WARPS floats, aligned to 16 bytes. Two successive calls need different memory.
template <int ROWS>
__device__ __forceinline__ void norm_sums(float (&x)[ROWS], float* shared) {
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    x[r] = warp_sum(x[r]);
    if (threadIdx.x % WARP == 0) shared[r * NORM_WARPS + threadIdx.x / WARP] = x[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    x[r] = 0;
#pragma unroll
    for (int w = 0; w < NORM_WARPS; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(shared + r * NORM_WARPS + w);
      x[r] = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(x[r], four.x), four.y), four.z), four.w);
    }
  }
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

// The norm's weights for a thread's columns: four per piece, PIECES · 1024 for the block.
template <int PIECES>
struct NormWeights {
  float4 own[PIECES], branch[PIECES];
  // Weights never change, so they may be read before a kernel's wait.
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

// Turns the rows' sums of squares into the factors of the rows.
template <int ROWS>
__device__ __forceinline__ void norm_scales(const Norm& p, float (&squares)[ROWS], float* sums) {
  norm_sums(squares, sums);
#pragma unroll
  for (int r = 0; r < ROWS; r++) squares[r] = rsqrtf(__fdividef(squares[r], float(p.hidden)) + p.eps);
}
__device__ __forceinline__ float norm_scale(const Norm& p, float squares, float* sums) {
  float all[1] = {squares};
  norm_scales(p, all, sums);
  return all[0];
}

// Receives a normalised row, column by column.
struct PlainRow {
  __half* h;
  // Stores columns i to i + 3. i is a multiple of 4.
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

// Normalises ROWS rows, starting at `first`, by a whole block of NORM_THREADS. Rows have at most PIECES · 1024 columns. Rows beyond `last`
// repeat it. A row's bits depend neither on the calling kernel nor on ROWS and PIECES. weights(): NormWeights. to(row): where the row goes.
// `sums`: 2 ROWS · NORM_WARPS floats.
template <int ROWS, int PIECES, class Weights, class To>
__device__ __forceinline__ void norm_some(const Norm& p, Weights weights, int first, int last, To to, float* x_out, float* sums) {
  float4 x[ROWS][PIECES], branch[ROWS][PIECES];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const size_t row = size_t(min(first + r, last)) * p.hidden;
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
      const int i = (k * NORM_THREADS + threadIdx.x) * 4;
      x[r][k] = branch[r][k] = float4{};
      if (i >= p.hidden) continue;
      x[r][k] = __ldcg(reinterpret_cast<const float4*>(p.x + row + i));
      if (p.branch) branch[r][k] = __ldcg(reinterpret_cast<const float4*>(p.branch + row + i));
    }
  }
  const auto squares = [&](const float4 (&of)[ROWS][PIECES], float (&sum)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      sum[r] = 0;
#pragma unroll
      for (int k = 0; k < PIECES; k++) sum[r] = add_squares(of[r][k], sum[r]);
    }
  };
  if (p.branch) {
    float scale[ROWS];
    squares(branch, scale);
    norm_scales(p, scale, sums);
    const NormWeights<PIECES> given = weights();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int k = 0; k < PIECES; k++) move_by(x[r][k], branch[r][k], scale[r], given.branch[k]);
    }
  }
  float inverse[ROWS];
  squares(x, inverse);
  norm_scales(p, inverse, sums + ROWS * NORM_WARPS);
  const NormWeights<PIECES> given = weights();
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int row = min(first + r, last);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
      const int i = (k * NORM_THREADS + threadIdx.x) * 4;
      if (i >= p.hidden) continue;
      write_normed(x[r][k], given.own[k], inverse[r], to(row), i);
      if (x_out) *reinterpret_cast<float4*>(x_out + size_t(row) * p.hidden + i) = x[r][k];
    }
  }
}

// Normalises a row of any width. The row is read again in each pass.
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
