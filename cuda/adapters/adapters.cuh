// The kernels of adapters.h.
#pragma once

#include "../device/kernel.cuh"
#include "../elementwise/activation.cuh"
#include "adapters.h"

namespace pen {

constexpr int CHANGE_THREADS = 256;
// Rows that share what is read of a matrix, if they have the same adapter.
constexpr int CHANGE_ROWS = 4;

// A row's adapter in a round.
struct RowChange {
  int place;
  float scale;
};

__device__ inline RowChange row_change(const AdaptedRows& rows, int round, int row, int num_rows) {
  if (row >= num_rows) return {-1, 0.0f};
  const int at = round * rows.stride + (rows.row_of ? rows.row_of[row] : row);
  return {rows.place[at], rows.scale[at]};
}

// The sum of the eight products of two groups of float16, added to `sum` in order.
__device__ inline float add_eight(float sum, const uint4& a, const uint4& x) {
  const __half2 *const p = reinterpret_cast<const __half2*>(&a), *const q = reinterpret_cast<const __half2*>(&x);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 u = __half22float2(p[i]), v = __half22float2(q[i]);
    sum = __fmaf_rn(u.x, v.x, sum);
    sum = __fmaf_rn(u.y, v.y, sum);
  }
  return sum;
}

// Whether row `j` of a group has the same adapter as row `i`, which comes first.
__device__ inline bool shares_row(const Change& p, int round, int first, int i, int j, int place) {
  return j >= i && row_change(p.rows, round, first + j, p.num_rows).place == place;
}

// Grid: (groups of CHANGE_ROWS rows, ranks, rounds · matrices). The warps of a block share the columns.
__global__ void __launch_bounds__(CHANGE_THREADS) shrink_kernel(const __grid_constant__ Change p) {
  __shared__ float parts[CHANGE_ROWS][CHANGE_THREADS / 32];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = blockIdx.y;
  const int round = blockIdx.z / p.num_matrices, matrix = blockIdx.z % p.num_matrices, first = blockIdx.x * CHANGE_ROWS;
  if (!p.changes[matrix]) return;
  bool done[CHANGE_ROWS] = {};
  // Rows of the same adapter read A together.
  for (int i = 0; i < CHANGE_ROWS; i++) {
    const RowChange lead = row_change(p.rows, round, first + i, p.num_rows);
    if (done[i] || lead.place < 0) continue;
    const LowRank of = p.changes[matrix][lead.place];
    float sum[CHANGE_ROWS] = {};
    bool shares[CHANGE_ROWS];
#pragma unroll
    for (int j = 0; j < CHANGE_ROWS; j++) {
      shares[j] = shares_row(p, round, first, i, j, lead.place);
      done[j] = done[j] || shares[j];
    }
    if (k >= of.rank) continue;
    const __half* const a = of.a + size_t(k) * p.cols;
    const __half* const x = p.x + size_t(first) * p.ldx;
    if (p.cols % 8 == 0) {
      for (int c = 8 * int(threadIdx.x); c < p.cols; c += 8 * CHANGE_THREADS) {
        const uint4 weights = *reinterpret_cast<const uint4*>(a + c);
#pragma unroll
        for (int j = 0; j < CHANGE_ROWS; j++) {
          if (shares[j]) sum[j] = add_eight(sum[j], weights, *reinterpret_cast<const uint4*>(x + size_t(j) * p.ldx + c));
        }
      }
    } else {
      for (int c = threadIdx.x; c < p.cols; c += CHANGE_THREADS) {
#pragma unroll
        for (int j = 0; j < CHANGE_ROWS; j++) {
          if (shares[j]) sum[j] = __fmaf_rn(__half2float(a[c]), __half2float(x[size_t(j) * p.ldx + c]), sum[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < CHANGE_ROWS; j++) {
      for (int apart = 16; apart > 0; apart /= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], apart);
      if (lane == 0) parts[j][warp] = sum[j];
    }
    __syncthreads();
    if (threadIdx.x < CHANGE_ROWS && shares_row(p, round, first, i, int(threadIdx.x), lead.place)) {
      const int j = threadIdx.x;
      float total = 0.0f;
      for (int w = 0; w < CHANGE_THREADS / 32; w++) total += parts[j][w];
      const size_t row = (size_t(round) * p.num_matrices + matrix) * p.num_rows + first + j;
      p.thin[row * p.ld_thin + k] = row_change(p.rows, round, first + j, p.num_rows).scale * of.scale * total;
    }
    __syncthreads();
  }
}

// What the adapters add to element `i` of a matrix in each of the rows from `first` on. Returns whether each row has a change.
__device__ inline void add_low_rank(const Change& p, int matrix, int i, int first, float (&sums)[CHANGE_ROWS], bool (&has)[CHANGE_ROWS]) {
  if (!p.changes[matrix]) return;
  for (int round = 0; round < p.rows.rounds; round++) {
#pragma unroll
    for (int j = 0; j < CHANGE_ROWS; j++) {
      const RowChange row = row_change(p.rows, round, first + j, p.num_rows);
      if (row.place < 0) continue;
      const LowRank of = p.changes[matrix][row.place];
      if (of.rank == 0) continue;
      has[j] = true;
      const __half* const b = of.b + size_t(i) * of.rank;
      const float* const thin = p.thin + ((size_t(round) * p.num_matrices + matrix) * p.num_rows + first + j) * p.ld_thin;
      float sum = 0.0f;
      if (of.rank % 8 == 0) {
        for (int k = 0; k < of.rank; k += 8) {
          const uint4 eight = *reinterpret_cast<const uint4*>(b + k);
          const __half2* const pairs = reinterpret_cast<const __half2*>(&eight);
#pragma unroll
          for (int l = 0; l < 4; l++) {
            const float2 w = __half22float2(pairs[l]);
            sum = __fmaf_rn(w.x, thin[k + 2 * l], sum);
            sum = __fmaf_rn(w.y, thin[k + 2 * l + 1], sum);
          }
        }
      } else {
        for (int k = 0; k < of.rank; k++) sum = __fmaf_rn(__half2float(b[k]), thin[k], sum);
      }
      sums[j] += sum;
    }
  }
}

// Grid: (groups of CHANGE_THREADS elements, groups of CHANGE_ROWS rows, matrices).
__global__ void __launch_bounds__(CHANGE_THREADS) expand_kernel(const __grid_constant__ Change p) {
  let_next_start();
  wait_for_previous();
  const int matrix = blockIdx.z, i = blockIdx.x * CHANGE_THREADS + threadIdx.x, first = blockIdx.y * CHANGE_ROWS;
  if (i >= p.num_outs[matrix]) return;
  float sums[CHANGE_ROWS] = {};
  bool has[CHANGE_ROWS] = {};
  add_low_rank(p, matrix, i, first, sums, has);
#pragma unroll
  for (int j = 0; j < CHANGE_ROWS; j++) {
    if (has[j]) p.out[size_t(first + j) * p.ldo + p.offset[matrix] + i] += sums[j];
  }
}

// Grid: (groups of CHANGE_THREADS elements, groups of CHANGE_ROWS rows).
__global__ void __launch_bounds__(CHANGE_THREADS) expand_gated_kernel(const __grid_constant__ GatedChange p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * CHANGE_THREADS + threadIdx.x, first = blockIdx.y * CHANGE_ROWS;
  if (i >= p.ffn) return;
  float gate[CHANGE_ROWS] = {}, up[CHANGE_ROWS] = {};
  bool has[CHANGE_ROWS] = {};
  add_low_rank(p.change, 0, i, first, gate, has);
  add_low_rank(p.change, 1, i, first, up, has);
  constexpr float NO_PARAMS[4] = {};
#pragma unroll
  for (int j = 0; j < CHANGE_ROWS; j++) {
    if (!has[j]) continue;
    const float* const tile = p.sums + size_t(first + j) * p.ld + i / 8 * 16 + i % 8;
    p.h[size_t(first + j) * p.ldh + i] = clamped_half(gated(p.activation, tile[0] + gate[j], tile[8] + up[j], NO_PARAMS));
  }
}

}  // namespace pen
