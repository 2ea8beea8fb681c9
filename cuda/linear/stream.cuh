// Streams weights for few rows: each warp of a team of eight streams one slice of the team's units (row tiles) through registers. Measured
// on an H200: this reads bursts of 5 to 60 MB at 2.3 to 4.1 TB/s. Bulk copies of one or two records into rings in shared memory reach 1.5
// to 2.3. Nothing is counted per record, which halves the instructions compared with a ring of asynchronous copies.
#pragma once

#include "../quant/format.cuh"
#include "epilogue.cuh"
#include "staged.cuh"

namespace pen {

// The slice of a warp. Each of a multiprocessor's four schedulers runs the warps w and w + 4. The order gives all schedulers the same
// amount of work.
__device__ __forceinline__ int slice_of(int warp) { return warp < SLICES / 2 ? warp : 3 * SLICES / 2 - 1 - warp; }

// A warp's slice of a matrix's rows.
struct Slice {
  int begin, length;  // in K tiles
  __device__ __forceinline__ Slice(int warp, int k_tiles, Slicing slicing = {})
      : begin(slicing.begin(slice_of(warp), k_tiles)), length(slicing.begin(slice_of(warp) + 1, k_tiles) - begin) {}
};

// PIECE: records in registers. While one is multiplied, it is replaced by that of the next piece.
template <class Format, int PIECE>
struct Stream {
  static constexpr int RECORD = Format::record_bytes;
  typename Format::Raw raw[PIECE];
  int lane, length;
  // The piece to request next.
  const uint8_t* next = nullptr;
  int count = 0, k_tile = 0, units = 0;

  __device__ __forceinline__ Stream(int lane, int length) : lane(lane), length(length) {}

  template <class At>
  __device__ __forceinline__ void advance(At at) {
    next += count * RECORD;
    if (k_tile == length) {
      k_tile = 0;
      if (--units > 0) next = at();
    }
    count = units > 0 ? min(PIECE, length - k_tile) : 0;
    k_tile += count;
  }
  __device__ __forceinline__ void load(int i) {
    if (i < count) raw[i].load(next + i * RECORD, lane);
  }
  // Requests the first piece of `units` units. Each call of at() returns where the warp's slice of another unit starts.
  template <class At>
  __device__ __forceinline__ void fill(int all, At at) {
    count = 0, k_tile = length, units = length > 0 ? all + 1 : 0;
    if (length > 0) advance(at);
#pragma unroll
    for (int i = 0; i < PIECE; i++) load(i);
  }
  // Multiplies the units that fill() has started. x_of() returns the lane's part of the next unit's x. finish(sums) takes that unit's sums.
  template <class At, class XOf, class Finish>
  __device__ __forceinline__ void multiply(int all, At at, XOf x_of, Finish finish) {
    float acc[4] = {};
    if (length == 0) {
      for (int i = 0; i < all; i++) finish(acc);
      return;
    }
    if (all == 0) return;
    uint32_t x = x_of();
#pragma unroll 1
    while (count > 0) {
      const int now = count;
      const bool last = k_tile == length;
      advance(at);
#pragma unroll
      for (int i = 0; i < PIECE; i++) {
        if (i < now) {
          uint32_t b[STEPS][2];
          load_x(b, x + i * K_TILE * 2);
#pragma unroll
          for (int s = 0; s < STEPS; s++) {
            uint32_t a[4];
            raw[i].fragment(s, a);
            mma(acc, a, b[s]);
          }
        }
        load(i);
      }
      x += now * K_TILE * 2;
      if (last) {
        finish(acc);
        acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
        if (count > 0) x = x_of();
      }
    }
  }

  __device__ __forceinline__ static void load_x(uint32_t (&b)[STEPS][2], uint32_t at) {
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[s][0]), "=r"(b[s][1]), "=r"(b[s + 1][0]), "=r"(b[s + 1][1])
                   : "r"(at + 8 * s));
    }
  }
};

// Copies a warp's columns of `rows` rows, given by row_at(i), to its buffer. The warp's lanes see them after the next __syncwarp().
template <class RowAt>
__device__ __forceinline__ void copy_rows(uint8_t* buffer, int stride, int rows, const Slice& slice, int lane, RowAt row_at) {
  constexpr int BATCH = 4;  // requested together
  const int pieces = slice.length * (K_TILE / 8), total = rows * pieces;
  const uint32_t inverse = slice.length > 0 ? (65536 + slice.length - 1) / slice.length : 0;  // exact for the small number of rows
  const auto row_of = [&](int i) { return int(uint32_t(i / (K_TILE / 8)) * inverse >> 16); };
#pragma unroll 1
  for (int base = lane; base < total; base += BATCH * WARP) {
    uint4 value[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const int i = min(base + k * WARP, total - 1), row = row_of(i);
      value[k] = __ldcg(reinterpret_cast<const uint4*>(row_at(row) + slice.begin * K_TILE + (i - row * pieces) * 8));
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const int i = base + k * WARP, row = row_of(i), column = (i - row * pieces) * 8;
      if (i >= total) break;
      const StagedRow to{reinterpret_cast<__half*>(buffer + row * stride)};
      to.put(column, value[k].x, value[k].y);
      to.put(column + 4, value[k].z, value[k].w);
    }
  }
}

// base + the sum of the slices of one row of a column.
__device__ __forceinline__ float sum_slices(const float* partial, int columns, int column, int row, float base = 0.0f,
                                            bool halves = false) {
  return sum_up(base, halves, [&](int s) { return partial[(s * columns + column) * PARTIAL_STRIDE + row]; });
}

// Stores the sums of a product for `count` columns. to(i) returns the place of column i.
template <class To>
__device__ __forceinline__ void store_sums(const float (&acc)[4], int lane, int count, To to) {
  const int row = lane / 4, n = 2 * (lane % 4);
  if (n < count) {
    float* const out = to(n);
    out[row] = acc[0], out[row + 8] = acc[2];
  }
  if (n + 1 < count) {
    float* const out = to(n + 1);
    out[row] = acc[1], out[row + 8] = acc[3];
  }
}

// First item of a share, if `count` items are divided into `shares` shares.
__device__ __forceinline__ int share_begin(int share, int count, int shares) {
  return int(unsigned(share) * unsigned(count) / unsigned(shares));
}

}  // namespace pen
