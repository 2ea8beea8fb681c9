// y = W · x for up to 64 tokens. Each of a block's eight warps takes one slice of the same row tiles and streams it once. The first records
// are requested before the kernel waits for its predecessor. Up to a batch of about 16 (4-bit weights), the kernel takes the time of
// reading the weights from memory.
#pragma once

#include "../quant/format.cuh"
#include "epilogue.cuh"

namespace pen {

// Records of a row tile that a lane holds ahead of its products.
__host__ __device__ constexpr int prefetch_depth(int words, int mt) {
  return words * mt <= 8 ? 4 : words * mt <= 12 ? 3 : words * mt <= 32 ? 2 : 1;
}

// Shared memory of a block.
template <int MT, int NT>
struct LinearShared {
  // A column's stride of 20 floats keeps the fragments' stores free of bank conflicts.
  static constexpr int STRIDE = TILE_ROWS + 4;
  static constexpr size_t bytes = size_t(SLICES) * NT * 8 * STRIDE * 4;
};

// One slice of MT row tiles times NT column tiles.
template <class Format, int MT, int NT, class Ready>
__device__ __forceinline__ void multiply_slice(float (&acc)[MT][NT][4], const Matrix& w, int tile, int warp, int lane, Ready ready,
                                               Slicing slicing = {}) {
  constexpr int DEPTH = prefetch_depth(Format::words, MT);
  const int k_tiles = w.k_tiles(), tiles = w.tiles(), begin = slicing.begin(warp, k_tiles), end = slicing.begin(warp + 1, k_tiles);
  const uint8_t* rows[MT];
#pragma unroll
  for (int m = 0; m < MT; m++) rows[m] = w.data + size_t(min(tile + m, tiles - 1)) * k_tiles * Format::record_bytes;
  typename Format::Raw raw[DEPTH][MT];
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (begin + d < end) {
#pragma unroll
      for (int m = 0; m < MT; m++) raw[d][m].load(rows[m] + size_t(begin + d) * Format::record_bytes, lane);
    }
  }
  // ready() waits for the preceding kernels and returns the lane's columns of x. Null: no token.
  const __half* x[NT];
  ready(x);
  for (int base = begin; base < end; base += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int k_tile = base + d;
      if (k_tile >= end) break;
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        uint32_t b[NT][2];
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const __half* at = x[n] + k_tile * K_TILE + 16 * s;
          b[n][0] = x[n] ? *reinterpret_cast<const uint32_t*>(at) : 0;
          b[n][1] = x[n] ? *reinterpret_cast<const uint32_t*>(at + 8) : 0;
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
          uint32_t a[4];
          raw[d][m].fragment(s, a);
#pragma unroll
          for (int n = 0; n < NT; n++) mma(acc[m][n], a, b[n]);
        }
      }
      if (k_tile + DEPTH < end) {
#pragma unroll
        for (int m = 0; m < MT; m++) raw[d][m].load(rows[m] + size_t(k_tile + DEPTH) * Format::record_bytes, lane);
      }
    }
  }
}

// Where a block's outputs go.
struct Output {
  float* out;
  __half* out16;
  int offset, ldo;  // first column, and columns per row
  int rows;         // rows of the matrix
  Epilogue epilogue;
  bool glu;  // SILU_MUL or GELU_MUL
  bool halves;  // as in Slicing
};

// Puts the warp's sums of a row tile × NT · 8 columns of the product into its part of `partial`, which has the shape
// [SLICES][NT · 8][STRIDE].
template <int NT, class Partial>
__device__ __forceinline__ void share_sums(const float (&acc)[NT][4], Partial partial) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const int row = lane / 4, column = 8 * n + 2 * (lane % 4);
    partial[warp][column][row] = acc[n][0];
    partial[warp][column + 1][row] = acc[n][1];
    partial[warp][column][row + 8] = acc[n][2];
    partial[warp][column + 1][row + 8] = acc[n][3];
  }
}

// base + the slices' sums of one element of the product.
template <class Partial>
__device__ __forceinline__ float sum_of_slices(Partial partial, int column, int row, float base = 0.0f, bool halves = false) {
  return sum_up(base, halves, [&](int s) { return partial[s][column][row]; });
}

// Adds up the slices' sums of MT row tiles × NT · 8 columns of the product and applies the epilogue. `partial`: shared memory of
// LinearShared<MT, NT>. row_of(column, row) tells whether a column of the product has an output row, and which one. ADDS: Epilogue::ADD may
// occur.
template <int MT, int NT, bool ADDS, class RowOf>
__device__ __forceinline__ void finish_tiles(const Output& p, const float (&acc)[MT][NT][4],
                                             float (*partial)[NT * 8][LinearShared<MT, NT>::STRIDE], int tile, RowOf row_of) {
  const int log_rows = p.glu ? 3 : 4;  // of the outputs per tile
#pragma unroll
  for (int m = 0; m < MT; m++) {
    if (m > 0) __syncthreads();
    share_sums(acc[m], partial);
    __syncthreads();
    for (int i = threadIdx.x; i < NT * 8 << log_rows; i += SLICES * WARP) {
      const int column = i >> log_rows, row = i & ((1 << log_rows) - 1);
      int to;
      if (!row_of(column, to)) continue;
      const size_t at = size_t(to) * p.ldo + p.offset;
      if (p.glu) {
        const int own = (tile + m) * 8 + row;
        if (2 * own >= p.rows) continue;
        p.out16[at + own] = gated(sum_of_slices(partial, column, row), sum_of_slices(partial, column, row + 8), p.epilogue);
      } else {
        const int own = (tile + m) * TILE_ROWS + row;
        if (own >= p.rows) continue;
        float& y = p.out[at + own];
        y = sum_of_slices(partial, column, row, ADDS && p.epilogue == Epilogue::ADD ? y : 0.0f, p.halves);
      }
    }
  }
}

// Grid: (groups of MT row tiles of all segments, groups of NT · 8 tokens).
template <int MT, int NT>
__global__ void __launch_bounds__(SLICES* WARP, MT * NT == 2 ? 2 : 1) linear_kernel(const __grid_constant__ Linear p) {
  using Shared = LinearShared<MT, NT>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* partial = reinterpret_cast<float(*)[NT * 8][Shared::STRIDE]>(shared);
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int group = blockIdx.x, segment = 0;
  while (segment + 1 < p.num_segments && group >= ceil_div(p.w[segment].tiles(), MT)) group -= ceil_div(p.w[segment++].tiles(), MT);
  const Matrix& w = p.w[segment];
  const int tile = group * MT, first_token = blockIdx.y * NT * 8, num_tokens = held(p.num_tokens), ldo = held(p.ldo);
  const int rows = held(w.rows), offset = held(p.out_offset[segment]);
  float* const out = held(p.out);
  __half* const out16 = held(p.out16);
  const Epilogue epilogue = Epilogue(held(int(p.epilogue)));
  const bool glu = is_gated(epilogue);
  const __half* const given = held(p.x);
  const int ldx = held(p.ldx);
  const auto ready = [&](const __half* (&x)[NT]) {
    wait_for_previous();
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const int token = first_token + 8 * n + lane / 4;
      x[n] = token < num_tokens ? given + size_t(token) * ldx + 2 * (lane % 4) : nullptr;
    }
  };
  float acc[MT][NT][4] = {};
  const Slicing slicing = p.slicing;
  with_format(w.format, [&](auto format) { multiply_slice<decltype(format), MT, NT>(acc, w, tile, warp, lane, ready, slicing); });
  const Output output{out, out16, offset, ldo, rows, epilogue, glu, slicing.halves};
  finish_tiles<MT, NT, true>(output, acc, partial, tile, [&](int column, int& row) {
    row = first_token + column;
    return row < num_tokens;
  });
}

}  // namespace pen
