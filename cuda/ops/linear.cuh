// y = W · x for up to 64 tokens: weights are the rows (M) of the tensor-core product and tokens its columns (N), so that one token
// and sixty-four take the same instructions in the same order.
//
// The numeric definition, which linear_prefill.cuh shares: the columns are cut into SLICES slices by a rule that knows the matrix
// only; a slice is a chain of m16n8k16 products in ascending order from zero, float32 accumulators; the slices' sums are added in
// ascending order from zero. So an output does not depend on how many tokens there are or which kernel computed it.
//
// Here each of a block's eight warps takes one slice of the same row tiles and streams it once; the first records are requested
// before the kernel waits for its predecessor. Bound by the memory that holds the weights up to a batch of about 16 (4-bit).
#pragma once

#include "../quant/format.cuh"

namespace pen {

constexpr int SLICES = 8;
// First chunk of slice `s` in a matrix of `chunks` chunks.
__host__ __device__ constexpr int slice_begin(int s, int chunks) { return s * chunks / SLICES; }

enum class Epilogue : int {
  STORE,     // out[n][row] = y
  ADD,       // out[n][row] += y: the residual stream
  SILU_MUL,  // out16[n][row / 2] = silu(gate) · up, for matrices whose tiles hold both (Placement)
  GELU_MUL,
};

constexpr int MAX_SEGMENTS = 3;
struct Linear {
  // Matrices that read the same x, one after another in the output's columns.
  Matrix w[MAX_SEGMENTS];
  int out_offset[MAX_SEGMENTS];
  int num_segments;
  const __half* x;  // [num_tokens, ldx], columns past the matrix's are zero up to a multiple of 64
  int ldx, num_tokens;
  float* out;      // [num_tokens, ldo]
  __half* out16;   // [num_tokens, ldo]
  int ldo;
  Epilogue epilogue;
};

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
// tanh approximation (Hendrycks and Gimpel 2016)
__device__ __forceinline__ float gelu(float x) {
  const float inner = 0.7978845608028654f * __fmaf_rn(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanhf(inner));
}
__device__ __forceinline__ __half gated(float gate, float up, Epilogue epilogue) {
  const float y = __fmul_rn(epilogue == Epilogue::SILU_MUL ? silu(gate) : gelu(gate), up);
  // The largest activations of real models stay far below; what does not fit must not become infinite.
  return __float2half_rn(fminf(fmaxf(y, -65504.0f), 65504.0f));
}

// Records of a row tile that a lane holds ahead: about 32 registers, and two where that leaves room for the accumulators.
__host__ __device__ constexpr int prefetch_depth(int words, int mt) {
  return words * mt <= 8 ? 4 : words * mt <= 12 ? 3 : words * mt <= 32 ? 2 : 1;
}

// One slice of MT row tiles times NT column tiles.
template <class Format, int MT, int NT>
__device__ __forceinline__ void multiply_slice(float (&acc)[MT][NT][4], const Matrix& w, int tile, int begin, int end, const Linear& p,
                                               int first_token, int lane) {
  constexpr int DEPTH = prefetch_depth(Format::words, MT);
  const int chunks = w.chunks(), tiles = w.tiles();
  const uint8_t* rows[MT];
#pragma unroll
  for (int m = 0; m < MT; m++) rows[m] = w.data + size_t(min(tile + m, tiles - 1)) * chunks * Format::record_bytes;
  typename Format::Raw raw[DEPTH][MT];
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    if (begin + d < end) {
#pragma unroll
      for (int m = 0; m < MT; m++) raw[d][m].load(rows[m] + size_t(begin + d) * Format::record_bytes, lane);
    }
  }
  wait_for_previous();
  const __half* x[NT];
#pragma unroll
  for (int n = 0; n < NT; n++) {
    const int token = first_token + 8 * n + lane / 4;
    x[n] = token < p.num_tokens ? p.x + size_t(token) * p.ldx + 2 * (lane % 4) : nullptr;
  }
  for (int base = begin; base < end; base += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const int chunk = base + d;
      if (chunk >= end) break;
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        uint32_t b[NT][2];
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const __half* at = x[n] + chunk * CHUNK + 16 * s;
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
      if (chunk + DEPTH < end) {
#pragma unroll
        for (int m = 0; m < MT; m++) raw[d][m].load(rows[m] + size_t(chunk + DEPTH) * Format::record_bytes, lane);
      }
    }
  }
}

// Grid: (groups of MT row tiles of all segments, groups of NT · 8 tokens).
template <int MT, int NT>
__global__ void __launch_bounds__(SLICES* WARP) linear_kernel(const __grid_constant__ Linear p) {
  // A column's stride of 20 floats keeps the fragments' stores free of bank conflicts.
  constexpr int STRIDE = TILE_ROWS + 4;
  __shared__ float partial[SLICES][NT * 8][STRIDE];
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  int group = blockIdx.x, segment = 0;
  while (segment + 1 < p.num_segments && group >= ceil_div(p.w[segment].tiles(), MT)) group -= ceil_div(p.w[segment++].tiles(), MT);
  const Matrix& w = p.w[segment];
  const int tile = group * MT, chunks = w.chunks(), first_token = blockIdx.y * NT * 8;
  float acc[MT][NT][4] = {};
  with_format(w.format, [&](auto format) {
    multiply_slice<decltype(format), MT, NT>(acc, w, tile, slice_begin(warp, chunks), slice_begin(warp + 1, chunks), p, first_token, lane);
  });
#pragma unroll
  for (int m = 0; m < MT; m++) {
    if (m > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; n++) {
      const int row = lane / 4, token = 8 * n + 2 * (lane % 4);
      partial[warp][token][row] = acc[m][n][0];
      partial[warp][token + 1][row] = acc[m][n][1];
      partial[warp][token][row + 8] = acc[m][n][2];
      partial[warp][token + 1][row + 8] = acc[m][n][3];
    }
    __syncthreads();
    const bool glu = p.epilogue == Epilogue::SILU_MUL || p.epilogue == Epilogue::GELU_MUL;
    const int per_token = glu ? 8 : TILE_ROWS;
    for (int i = threadIdx.x; i < NT * 8 * per_token; i += SLICES * WARP) {
      const int token = i / per_token, row = i % per_token;
      if (first_token + token >= p.num_tokens) continue;
      const auto sum = [&](int r) {
        float total = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[s][token][r]);
        return total;
      };
      const size_t out = size_t(first_token + token) * p.ldo + p.out_offset[segment];
      if (glu) {
        const int column = (tile + m) * 8 + row;
        if (2 * column < w.rows) p.out16[out + column] = gated(sum(row), sum(row + 8), p.epilogue);
      } else {
        const int column = (tile + m) * TILE_ROWS + row;
        if (column >= w.rows) continue;
        float& y = p.out[out + column];
        y = p.epilogue == Epilogue::ADD ? __fadd_rn(y, sum(row)) : sum(row);
      }
    }
  }
}

}  // namespace pen
