// y = W · x for many tokens, on any GPU with float16 tensor cores: the numeric definition of linear.h in tiles of 128 rows × 128 tokens.
// Each warp dequantises two row tiles in registers, straight from the records. Activations come through a ring in shared memory. The sums
// of the slices are kept in a second set of registers.
#pragma once

#include "../quant/format.cuh"
#include "write_sums.cuh"

namespace pen {

constexpr int PREFILL_ROW_TILES = 8, PREFILL_TOKENS = 128, PREFILL_STAGES = 3;
constexpr int PREFILL_THREADS = 256;

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* shared) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// Copies one K tile of x: [TOKENS][64] halves. The eight 16-byte pieces of a row are permuted by the row's number, so that neither the
// copies nor ldmatrix have bank conflicts (the 128-byte swizzle of Hopper's matrix instructions).
template <int TOKENS, int THREADS>
__device__ __forceinline__ void stage_activations(__half* stage, const Linear& p, int first_token, int k_tile) {
#pragma unroll
  for (int i = threadIdx.x; i < TOKENS * 8; i += THREADS) {
    const int token = i / 8, piece = i % 8;
    const bool valid = first_token + token < p.num_tokens;
    const __half* from = p.x + size_t(valid ? first_token + token : 0) * p.ldx + k_tile * K_TILE + piece * 8;
    copy_async(shared_of(stage + token * K_TILE + (piece ^ (token % 8)) * 8), from, valid);
  }
}

template <class Format>
__device__ __forceinline__ void multiply_tiles(const Linear& p, int segment, int group, int first_token,
                                               __half (&stages)[PREFILL_STAGES][PREFILL_TOKENS * K_TILE]) {
  constexpr int MT = 2, NT = 8;
  const Matrix& w = p.w[segment];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int tile = group * PREFILL_ROW_TILES + (warp / 2) * MT, column = (warp % 2) * NT * 8;
  const int k_tiles = w.k_tiles(), tiles = w.tiles();
  const uint8_t* rows[MT];
  typename Format::Raw raw[MT];
#pragma unroll
  for (int m = 0; m < MT; m++) {
    rows[m] = w.data + size_t(min(tile + m, tiles - 1)) * k_tiles * Format::record_bytes;
    raw[m].load(rows[m], lane);
  }
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < PREFILL_STAGES - 1; s++) {
    if (s < k_tiles) stage_activations<PREFILL_TOKENS, PREFILL_THREADS>(stages[s], p, first_token, s);
    copy_commit();
  }
  float acc[MT][NT][4] = {}, total[MT][NT][4] = {};
  const Slicing slicing = p.slicing;
  const int middle = slicing.halves ? slicing.begin(HALF, k_tiles) : 0;  // the last K tile of the first half, counted from 1
  const auto write = [&](bool is_second_half) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
      if (tile + m < tiles) write_sums<NT>(p, segment, tile + m, first_token + column, lane, total[m], adds_sums(p, is_second_half));
    }
  };
  int slice = 1;
  while (slice < SLICES && slicing.begin(slice, k_tiles) == 0) slice++;
  for (int k_tile = 0; k_tile < k_tiles; k_tile++) {
    copy_wait<PREFILL_STAGES - 2>();
    __syncthreads();
    const int ahead = k_tile + PREFILL_STAGES - 1;
    if (ahead < k_tiles) stage_activations<PREFILL_TOKENS, PREFILL_THREADS>(stages[ahead % PREFILL_STAGES], p, first_token, ahead);
    copy_commit();
    const __half* stage = stages[k_tile % PREFILL_STAGES];
    uint32_t a[STEPS][MT][4];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
      for (int m = 0; m < MT; m++) raw[m].fragment(s, a[s][m]);
    }
    if (k_tile + 1 < k_tiles) {
#pragma unroll
      for (int m = 0; m < MT; m++) raw[m].load(rows[m] + size_t(k_tile + 1) * Format::record_bytes, lane);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        // Four 8 × 8 matrices: 32 columns of eight tokens.
        uint32_t b[4];
        const int token = column + 8 * n + lane % 8, piece = 4 * half + lane / 8;
        load_matrices(b, stage + token * K_TILE + (piece ^ (token % 8)) * 8);
#pragma unroll
        for (int s = 0; s < 2; s++) {
          const uint32_t pair[2] = {b[2 * s], b[2 * s + 1]};
#pragma unroll
          for (int m = 0; m < MT; m++) mma(acc[m][n], a[2 * half + s][m], pair);
        }
      }
    }
    if (k_tile + 1 == slicing.begin(slice, k_tiles)) {
      while (slice < SLICES && slicing.begin(slice, k_tiles) <= k_tile + 1) slice++;
#pragma unroll
      for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            total[m][n][i] = __fadd_rn(total[m][n][i], acc[m][n][i]);
            acc[m][n][i] = 0;
          }
        }
      }
      if (k_tile + 1 == middle) {
        write(false);
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
          for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) total[m][n][i] = 0;
          }
        }
      }
    }
  }
  write(middle > 0);
}

// Grid: (groups of 128 tokens, groups of eight row tiles of all segments). Neighbours in x share weights in L2.
__global__ void __launch_bounds__(PREFILL_THREADS) linear_prefill_kernel(const __grid_constant__ Linear p) {
  __shared__ __align__(1024) __half stages[PREFILL_STAGES][PREFILL_TOKENS * K_TILE];
  let_next_start();
  int group = blockIdx.y, segment = 0;
  const auto groups = [&](int i) { return ceil_div(p.w[i].tiles(), PREFILL_ROW_TILES); };
  while (segment + 1 < p.num_segments && group >= groups(segment)) group -= groups(segment++);
  with_format(p.w[segment].format, [&](auto format) {
    multiply_tiles<decltype(format)>(p, segment, group, blockIdx.x * PREFILL_TOKENS, stages);
  });
}

}  // namespace pen
