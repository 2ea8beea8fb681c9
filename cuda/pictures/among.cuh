// The kernel of among.h: FlashAttention-2 (Dao 2023) over rows that lie one after another.
#pragma once

#include "../attention/tile.cuh"
#include "among.h"

namespace pen {

// Starts to copy `count` rows of one head, from row `first` on, into a tile of `rows` rows. Elements beyond the head and rows beyond the
// count become zero.
template <int D>
__device__ __forceinline__ void copy_rows(uint32_t to, const __half* from, int ld, int first, int count, int rows, int dim) {
  constexpr int VECTORS = Tile<D>::VECTORS;
  for (int i = static_cast<int>(threadIdx.x); i < rows * VECTORS; i += static_cast<int>(blockDim.x)) {
    const int row = i / VECTORS, vector = i % VECTORS;
    const bool real = row < count && vector * 8 < dim;
    copy_async(to + Tile<D>::at(row, vector), real ? from + static_cast<size_t>(first + row) * ld + vector * 8 : from, real);
  }
}

// A warp's M tiles of sixteen rows.
template <int D, int M>
struct AmongRows {
  static constexpr bool KEPT = D <= 80;  // queries stay in registers; otherwise they are read from shared memory again and again
  uint32_t queries[KEPT ? M : 1][KEPT ? D / 16 : 1][4];
  uint32_t address;  // of the warp's queries
  float o[M][D / 8][4];
  float sums[M][4];  // columns of equal sums
  float maximum[M][2];

  __device__ __forceinline__ void read_query(uint32_t (&a)[4], int m, int k, int lane) const {
    load_matrices(a, address + Tile<D>::at(m * 16 + lane % 16, 2 * k + lane / 16));
  }
  __device__ __forceinline__ void begin(uint32_t at, int lane) {
    address = at;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      if constexpr (KEPT) {
#pragma unroll
        for (int k = 0; k < D / 16; ++k) read_query(queries[m][k], m, k, lane);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][i] = 0.0f;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0.0f;
      }
      maximum[m][0] = maximum[m][1] = MASKED;
    }
  }
  __device__ __forceinline__ void scores(float (&s)[M][AMONG_KEYS / 8][4], uint32_t keys, int lane) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < AMONG_KEYS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0.0f;
      }
    }
    const int row = lane / 16 * 8 + lane % 8, vector = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        if constexpr (KEPT) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = queries[m][k][i];
        } else {
          read_query(a[m], m, k, lane);
        }
      }
#pragma unroll
      for (int n = 0; n < AMONG_KEYS / 8; n += 2) {
        uint32_t r[4];
        load_matrices(r, keys + Tile<D>::at(n * 8 + row, 2 * k + vector));
        const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
#pragma unroll
        for (int m = 0; m < M; ++m) mma(s[m][n], a[m], low), mma(s[m][n + 1], a[m], high);
      }
    }
  }
  // Turns the scores of one row tile into probabilities, of which `keys` are real, and scales what was summed before.
  __device__ __forceinline__ void probabilities(uint32_t (&p)[AMONG_KEYS / 16][4], float (&s)[AMONG_KEYS / 8][4], int m, int keys, float c,
                                                int lane) {
    const Span span[2] = {{0, keys}, {0, keys}};
    float largest[2], factor[2], minus[2];
    mask_scores(largest, s, span, 0, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float before = maximum[m][h], now = fmaxf(before, largest[h]);
      factor[h] = exp2_fast(__fmul_rn(c, __fsub_rn(before, now)));
      minus[h] = -__fmul_rn(c, now);
      maximum[m][h] = now;
    }
#pragma unroll
    for (int n = 0; n < AMONG_KEYS / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float x = exp2_fast(__fmaf_rn(s[n][2 * h], c, minus[h])), y = exp2_fast(__fmaf_rn(s[n][2 * h + 1], c, minus[h]));
        p[n / 2][n % 2 * 2 + h] = half2_bits(__floats2half2_rn(x, y));
      }
    }
    // Most tiles change no maximum, and a factor of 1 changes no bit.
    if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[m][i] = __fmul_rn(sums[m][i], factor[i / 2]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][n][i] = __fmul_rn(o[m][n][i], factor[i / 2]);
    }
  }
  __device__ __forceinline__ void add_values(const uint32_t (&p)[M][AMONG_KEYS / 16][4], uint32_t values, int lane) {
    const uint32_t ones[2] = {0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (int k = 0; k < AMONG_KEYS / 16; ++k) {
#pragma unroll
      for (int m = 0; m < M; ++m) mma(sums[m], p[m][k], ones);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        uint32_t r[4];
        load_matrices_transposed(r, values + Tile<D>::at(k * 16 + lane % 16, n + lane / 16));
        const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
#pragma unroll
        for (int m = 0; m < M; ++m) mma(o[m][n], p[m][k], low), mma(o[m][n + 1], p[m][k], high);
      }
    }
  }
  // Writes the results of the warp's rows, of which `count` are real. `out` is the head's first row.
  __device__ __forceinline__ void write(__half* out, int ld, int value_dim, int count, int lane) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m * 16 + h * 8 + lane / 4;
        if (row >= count) continue;
        const float inverse = inverse_sum(sums[m][2 * h]);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          const int dim = n * 8 + lane % 4 * 2;
          if (dim >= value_dim) continue;
          *reinterpret_cast<__half2*>(out + static_cast<size_t>(row) * ld + dim) = finished(o[m][n][2 * h], o[m][n][2 * h + 1], inverse);
        }
      }
    }
  }
};

// Grid: (tiles, num_heads). Block: WARPS warps of 16 M rows. Shared memory: the queries, then AMONG_STAGES tiles of K, each with its V.
template <int D, int M, int WARPS>
__global__ void __launch_bounds__(WARPS* WARP, D <= 96 ? 2 : 1)
    among_kernel(const __grid_constant__ Among p, const AmongTile* __restrict__ tiles) {
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  constexpr int ROWS_OF_BLOCK = WARPS * 16 * M, ROW_BYTES = Tile<D>::STRIDE * 16, TILE = AMONG_KEYS * ROW_BYTES;
  const int head = blockIdx.y, kv_head = head / (p.num_heads / p.num_kv_heads);
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const AmongTile tile = tiles[blockIdx.x];
  const uint32_t queries = shared_of(shared), ring = queries + ROWS_OF_BLOCK * ROW_BYTES;
  const __half *const k = p.k + kv_head * p.stride, *const v = p.v + kv_head * p.value_stride;
  const int count = ceil_div(tile.keys, AMONG_KEYS);
  const auto keys_at = [&](int i) { return ring + i % AMONG_STAGES * 2 * TILE; };
  const auto fetch = [&](int i) {
    if (i < count) {
      const int first = tile.first_key + i * AMONG_KEYS, left = tile.keys - i * AMONG_KEYS;
      copy_rows<D>(keys_at(i), k, p.ld_k, first, left, AMONG_KEYS, p.dim);
      copy_rows<D>(keys_at(i) + TILE, v, p.ld_v, first, left, AMONG_KEYS, p.value_dim);
    }
    copy_commit();
  };
  wait_for_previous();
  copy_rows<D>(queries, p.q + head * p.stride, p.ld_q, tile.first, tile.rows, ROWS_OF_BLOCK, p.dim);
  copy_commit();
  fetch(0);
  copies_wait(1);
  __syncthreads();

  AmongRows<D, M> rows;
  rows.begin(queries + warp * 16 * M * ROW_BYTES, lane);
  const float c = held(__fmul_rn(p.scale, LOG2_E));
  for (int i = 0; i < count; ++i) {
    fetch(i + 1);
    copies_wait(1);
    __syncthreads();
    float s[M][AMONG_KEYS / 8][4];
    uint32_t probabilities[M][AMONG_KEYS / 16][4];
    rows.scores(s, keys_at(i), lane);
#pragma unroll
    for (int m = 0; m < M; ++m) rows.probabilities(probabilities[m], s[m], m, tile.keys - i * AMONG_KEYS, c, lane);
    rows.add_values(probabilities, keys_at(i) + TILE, lane);
    __syncthreads();
  }
  copies_wait(0);
  const int first = warp * 16 * M;
  rows.write(p.out + static_cast<size_t>(tile.first + first) * p.ld_out + head * p.value_dim, p.ld_out, p.value_dim, tile.rows - first,
             lane);
}

}  // namespace pen
