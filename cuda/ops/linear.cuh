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

// h = norm(x) · weight in float16, the input of a linear layer. With `branch`: x is first moved on by norm(branch) · branch_weight
// (architectures that normalise a branch's output), and x_out receives it.
struct Norm {
  const float* x;       // [rows, hidden], hidden a multiple of 4
  const float* branch;  // [rows, hidden] or null
  const float* branch_weight;
  float* x_out;         // [rows, hidden], not x; null: x + branch is not needed any more
  const float* weight;  // [hidden]
  int hidden;
  float eps;
};

constexpr int MAX_SEGMENTS = 3;
struct Linear {
  // Matrices that read the same x, one after another in the output's columns.
  Matrix w[MAX_SEGMENTS];
  int out_offset[MAX_SEGMENTS];
  int num_segments;
  const __half* x;  // [num_tokens, ldx], columns past the matrix's are zero up to a multiple of 64
  int ldx, num_tokens;
  // Where norm.x is not null, x is norm's output instead, computed by every block for itself: only where takes_norm() says so.
  Norm norm;
  float* out;      // [num_tokens, ldo]
  __half* out16;   // [num_tokens, ldo]
  int ldo;
  Epilogue epilogue;
  // Where blocks that share a tile leave their sums: nothing that outlives the kernel. Without it they do not share.
  float* slabs;
  size_t slab_bytes;
  uint32_t* arrivals;  // [MAX_SHARED_TILES] zeros before and after
};
constexpr int MAX_SHARED_TILES = 1024;

constexpr int NORM_THREADS = SLICES * WARP;

// The same sum on every thread of the block: lanes, then warps, each in one order. `shared`: SLICES floats, aligned to 16 bytes, which
// the next call but one may use again.
__device__ __forceinline__ float block_sum(float x, float* shared) {
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
  return rsqrtf(__fdividef(block_sum(squares, sums), float(p.hidden)) + p.eps);
}

// Where a normalised row goes: column by column.
struct PlainRow {
  __half* h;
  // Columns i to i + 3, i a multiple of 4.
  __device__ __forceinline__ void put(int i, uint32_t low, uint32_t high) const { *reinterpret_cast<uint2*>(h + i) = make_uint2(low, high); }
};

template <class Row>
__device__ __forceinline__ void write_normed(const float4& x, const float4& weight, float inverse, const Row& to, int i) {
  const __half2 low = __floats2half2_rn(__fmul_rn(__fmul_rn(x.x, inverse), weight.x), __fmul_rn(__fmul_rn(x.y, inverse), weight.y));
  const __half2 high = __floats2half2_rn(__fmul_rn(__fmul_rn(x.z, inverse), weight.z), __fmul_rn(__fmul_rn(x.w, inverse), weight.w));
  to.put(i, half2_bits(low), half2_bits(high));
}

// One row by a whole block of NORM_THREADS, at most PIECES · 1024 columns. Its bits do not depend on which kernel calls it, nor on
// PIECES. `sums`: 2 SLICES floats.
template <int PIECES, class Row>
__device__ __forceinline__ void norm_row(const Norm& p, const NormWeights<PIECES>& weights, int index, const Row& to, float* x_out, float* sums) {
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
  const float inverse = norm_scale(p, sum, sums + SLICES);
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    const int i = (k * NORM_THREADS + threadIdx.x) * 4;
    if (i >= p.hidden) continue;
    write_normed(x[k], weights.own[k], inverse, to, i);
    if (x_out) *reinterpret_cast<float4*>(x_out + row + i) = x[k];
  }
}

// The same for rows of any width, read once more for each step.
__device__ __forceinline__ void norm_wide_row(const Norm& p, int index, const PlainRow& to, float* x_out, float* sums) {
  const size_t row = size_t(index) * p.hidden;
  float scale = 0;
  const auto moved = [&](int i) {
    float4 x = *reinterpret_cast<const float4*>(p.x + row + i);
    if (p.branch) move_by(x, *reinterpret_cast<const float4*>(p.branch + row + i), scale, *reinterpret_cast<const float4*>(p.branch_weight + i));
    return x;
  };
  if (p.branch) {
    float sum = 0;
    for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) sum = add_squares(*reinterpret_cast<const float4*>(p.branch + row + i), sum);
    scale = norm_scale(p, sum, sums);
  }
  float sum = 0;
  for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) sum = add_squares(moved(i), sum);
  const float inverse = norm_scale(p, sum, sums + SLICES);
  for (int i = threadIdx.x * 4; i < p.hidden; i += NORM_THREADS * 4) {
    const float4 x = moved(i);
    write_normed(x, *reinterpret_cast<const float4*>(p.weight + i), inverse, to, i);
    if (x_out) *reinterpret_cast<float4*>(x_out + row + i) = x;
  }
}

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
__device__ __forceinline__ void multiply_slice(float (&acc)[MT][NT][4], const Matrix& w, int tile, int warp, int lane, Ready ready) {
  constexpr int DEPTH = prefetch_depth(Format::words, MT);
  const int chunks = w.chunks(), tiles = w.tiles(), begin = slice_begin(warp, chunks), end = slice_begin(warp + 1, chunks);
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
  // Waits for the kernels before this one and gives the lane's columns of x: null where there is no token.
  const __half* x[NT];
  ready(x);
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
  const bool glu = epilogue == Epilogue::SILU_MUL || epilogue == Epilogue::GELU_MUL;
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
  with_format(w.format, [&](auto format) { multiply_slice<decltype(format), MT, NT>(acc, w, tile, warp, lane, ready); });
  const int log_rows = glu ? 3 : 4;  // of a tile's outputs
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
    for (int i = threadIdx.x; i < NT * 8 << log_rows; i += SLICES * WARP) {
      const int token = i >> log_rows, row = i & ((1 << log_rows) - 1);
      if (first_token + token >= num_tokens) continue;
      const auto sum = [&](int r) {
        float total = 0;
#pragma unroll
        for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[s][token][r]);
        return total;
      };
      const size_t at = size_t(first_token + token) * ldo + offset;
      if (glu) {
        const int column = (tile + m) * 8 + row;
        if (2 * column < rows) out16[at + column] = gated(sum(row), sum(row + 8), epilogue);
      } else {
        const int column = (tile + m) * TILE_ROWS + row;
        if (column >= rows) continue;
        float& y = out[at + column];
        y = epilogue == Epilogue::ADD ? __fadd_rn(y, sum(row)) : sum(row);
      }
    }
  }
}

}  // namespace pen
