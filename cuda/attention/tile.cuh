// Functions that all attention kernels share: tiles in shared memory, scores, softmax, values, merging (see attention.h).
#pragma once

#include "../device/kernel.cuh"
#include "attention.h"

namespace pen {

constexpr float MASKED = -__builtin_huge_valf();
constexpr float LOG2_E = 1.4426950408889634f;

// A tile of K or V in shared memory: [KEYS, D] float16 as vectors of 16 bytes, placed so that the eight rows of an 8x8 matrix fall into
// different banks. If a row is a multiple of 128 bytes, its vectors are permuted by exclusive or. Otherwise a row has an odd number of
// vectors.
template <int D>
struct Tile : TileSize<D> {
  using TileSize<D>::STRIDE;
  __device__ static __forceinline__ uint32_t at(int row, int vector) {
    return static_cast<uint32_t>(row * STRIDE + (TileSize<D>::SWIZZLED ? vector ^ (row & 7) : vector)) * 16;
  }
};

// A tile of K or V in the layout of the tensor memory accelerator (sm_90): columns of 64 elements, [D / 64, KEYS, 64]. The vectors of each
// row of 128 bytes are permuted by exclusive or. The tile starts at a multiple of 1024 bytes.
template <int D>
struct BoxTile : BoxTileSize<D> {
  __device__ static __forceinline__ uint32_t at(int row, int vector) {
    return static_cast<uint32_t>(vector / 8 * KEYS * 8 + row * 8 + (vector % 8 ^ (row & 7))) * 16;
  }
};

// Waits until all but the newest `pending` groups of this thread's copies have arrived. More than 3 count as 3.
__device__ __forceinline__ void copies_wait(int pending) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (pending >= 3) {
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  } else if (pending == 2) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (pending == 1) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
#endif
}

// Stores 16 bytes in shared memory.
__device__ __forceinline__ void store_vector(uint32_t at, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ uint4 load_vector(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
  return x;
}
// Stores fragments of P of a tile, `stride` bytes apart, for the same lanes of another warp.
__device__ __forceinline__ void store_fragments(uint32_t at, int stride, const uint32_t (&p)[KEYS / 16][4]) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) store_vector(at + k * stride, make_uint4(p[k][0], p[k][1], p[k][2], p[k][3]));
}
__device__ __forceinline__ void load_fragments(uint32_t (&p)[KEYS / 16][4], uint32_t at, int stride) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) {
    const uint4 x = load_vector(at + k * stride);
    p[k][0] = x.x, p[k][1] = x.y, p[k][2] = x.z, p[k][3] = x.w;
  }
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// exp2, the only exponential in use. exp2(0) is exactly 1 and exp2(-inf) is exactly 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// One sequence's cache for one K/V head.
struct Pages {
  const uint32_t* table;  // [max_blocks]
  int context, block_size, head_dim, num_kv_heads, kv_head;

  __device__ Pages(const KvView& kv, const StepView& step, int seq, int context, int kv_head)
      : table(step.block_tables + static_cast<size_t>(seq) * step.max_blocks),
        context(context),
        block_size(kv.block_size),
        head_dim(kv.head_dim),
        num_kv_heads(kv.num_kv_heads),
        kv_head(kv_head) {}

  // Element offset of the row of position `key`, a multiple of PAGE_UNIT.
  __device__ __forceinline__ size_t row(int key) const {
    const int block = key / block_size;
    return ((static_cast<size_t>(table[block]) * num_kv_heads + kv_head) * block_size + (key - block * block_size)) * head_dim;
  }
};

// Where the two halves of a tile lie. A half beyond the context is neither looked up nor read.
struct TilePlace {
  size_t low, high;
  int num_keys;  // keys of the context, at most KEYS; 0 or less: none
  __device__ __forceinline__ void find(const Pages& pages, int tile) {
    num_keys = pages.context - tile * KEYS;
    low = num_keys > 0 ? pages.row(tile * KEYS) : 0;
    high = num_keys > PAGE_UNIT ? pages.row(tile * KEYS + PAGE_UNIT) : 0;
  }
};

// Starts to copy one tile from `pages` (all of K or of V) by `count` threads. Keys beyond the context and elements beyond head_dim become
// zero, because a masked probability of 0 must meet a finite value. The row of key `skip` is left unchanged.
template <int D>
__device__ __forceinline__ void copy_tile(uint32_t dst, const __half* pages, const TilePlace& place, int head_dim, int thread, int count,
                                          int skip = -1) {
  constexpr int VECTORS = Tile<D>::VECTORS;
#pragma unroll 8
  for (int i = thread; i < KEYS * VECTORS; i += count) {
    const int key = i / VECTORS, vector = i % VECTORS;
    const bool real = key < place.num_keys && vector * 8 < head_dim;
    const size_t row = key < PAGE_UNIT ? place.low + static_cast<uint32_t>(key * head_dim)
                                       : place.high + static_cast<uint32_t>((key - PAGE_UNIT) * head_dim);
    copy_async(dst + Tile<D>::at(key, vector), real ? pages + row + vector * 8 : pages, real, key != skip);
  }
}

// Loads the query fragments of rows g = lane / 4 and g + 8 (null: zeros) for all of head_dim.
template <int D>
__device__ __forceinline__ void load_query(uint32_t (&q)[D / 16][4], const __half* row0, const __half* row1, int head_dim, int lane) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int dim = k * 16 + (i / 2) * 8 + (lane % 4) * 2;
      const __half* row = i % 2 == 0 ? row0 : row1;
      q[k][i] = row != nullptr && dim < head_dim ? *reinterpret_cast<const uint32_t*>(row + dim) : 0u;
    }
  }
}

// s = q Kᵀ for 8 N keys of a tile, starting at key 8 `first`. `query(k, a)` returns the fragment of elements [16 k, 16 k + 16).
template <int D, class T = Tile<D>, int N, class Query>
__device__ __forceinline__ void tile_scores(float (&s)[N][4], Query query, uint32_t keys, int lane, int first = 0) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
  const int row = (lane / 16) * 8 + lane % 8, vector = lane / 8 % 2;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[4];
    query(k, a);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t r[4];
      load_matrices(r, keys + T::at((first + n) * 8 + row, 2 * k + vector));
      const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
      mma(s[n], a, low);
      mma(s[n + 1], a, high);
    }
  }
}

// Scales a product of q and k before the softmax.
struct ScoreScale {
  float c;      // as in the definition
  float inner;  // 2 log2(e) · scale / cap, 0: no cap
  __device__ __forceinline__ explicit ScoreScale(const Attention& p) : ScoreScale(p.scale, p.soft_cap) {}
  __device__ __forceinline__ ScoreScale(float scale, float soft_cap) {
    const bool capped = soft_cap > 0.0f;
    c = held(__fmul_rn(capped ? soft_cap : scale, LOG2_E));
    inner = held(capped ? __fmul_rn(__fdiv_rn(scale, soft_cap), 2.0f * LOG2_E) : 0.0f);
  }
  // tanh(y) as 1 − 2 / (1 + e^2y), which is off by about 1e-7.
  template <int N>
  __device__ __forceinline__ void cap(float (&s)[N][4]) const {
    if (inner == 0.0f) return;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(1.0f, exp2_fast(__fmul_rn(s[n][i], inner)))));
    }
  }
};

// The positions [begin, end) that a row sees. {0, 0} means none.
struct Span {
  int begin, end;
};
// EXTRAS, here and in the kernels: with sinks and chunked windows. Kernels without them are compiled separately, because the branches would
// cost registers.
template <bool EXTRAS>
__device__ __forceinline__ Span visible(int position, const Attention& p) {
  const int end = position + 1;
  const uint32_t window = p.window;
  if constexpr (EXTRAS) {
    if (p.chunked && window != 0) return {static_cast<int>(position / window * window), end};
  }
  return {window != 0 && static_cast<uint32_t>(end) > window ? end - static_cast<int>(window) : 0, end};
}

// Masks the scores of the lane's two rows (g, g + 8) for keys from position `base`.
template <int N>
__device__ __forceinline__ void hide_scores(float (&s)[N][4], const Span (&span)[2], int base, int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = base + n * 8 + (lane % 4) * 2 + i % 2;
      if (key < span[i / 2].begin || key >= span[i / 2].end) s[n][i] = MASKED;
    }
  }
}

// Masks scores if necessary, and finds the largest score of each row. All four lanes of a row get the same value. -inf means that the row
// sees none of these keys.
template <int N>
__device__ __forceinline__ void mask_scores(float (&largest)[2], float (&s)[N][4], const Span (&span)[2], int base, int lane) {
  bool cut = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) cut |= span[h].begin > base || span[h].end < base + 8 * N;
  if (__any_sync(0xffffffffu, cut)) hide_scores(s, span, base, lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x = MASKED;
#pragma unroll
    for (int n = 0; n < N; ++n) x = fmaxf(x, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    largest[h] = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  }
}

// Computes m_i of each row from the tile's largest score, and the summand for a score before it is raised. Since -inf minus -inf is NaN, a
// row without keys subtracts 0 and gets zeros.
__device__ __forceinline__ void scale_maxima(float (&maximum)[2], float (&minus)[2], const float (&largest)[2], float c) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = __fmul_rn(largest[h], c);
    minus[h] = maximum[h] == MASKED ? 0.0f : -maximum[h];
  }
}

// Turns scores into probabilities, as fragments of P, by the tile's largest score of each row. Also computes m_i.
template <int N>
__device__ __forceinline__ void score_probabilities(uint32_t (&p)[N / 2][4], float (&maximum)[2], const float (&largest)[2],
                                                    const float (&s)[N][4], float c) {
  float minus[2];
  scale_maxima(maximum, minus, largest, c);
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = exp2_fast(__fmaf_rn(s[n][2 * h], c, minus[h])), y = exp2_fast(__fmaf_rn(s[n][2 * h + 1], c, minus[h]));
      const __half2 pair = __floats2half2_rn(x, y);
      p[n / 2][(n % 2) * 2 + h] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
}

// Masks and raises the scores of a tile that one warp holds whole.
__device__ __forceinline__ void tile_softmax(uint32_t (&p)[KEYS / 16][4], float (&maximum)[2], float (&s)[KEYS / 8][4],
                                             const Span (&span)[2], int tile, float c, int lane) {
  float largest[2];
  mask_scores(largest, s, span, tile * KEYS, lane);
  score_probabilities(p, maximum, largest, s, c);
}

// Sums the rows' probabilities by a product with ones, so that the sum has the accumulators' order and precision.
__device__ __forceinline__ void tile_sums(float (&sum)[2], const uint32_t (&p)[KEYS / 16][4]) {
  float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const uint32_t ones[2] = {0x3c003c00u, 0x3c003c00u};
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) mma(acc, p[k], ones);
  sum[0] = acc[0], sum[1] = acc[2];
}

// O_i = P V for 8 N elements of the head from element 8 `first`, eight at a time: `take(n, acc)` gets elements [8 n, 8 n + 8).
template <int D, int N = D / 8, class T = Tile<D>, class Take>
__device__ __forceinline__ void tile_values(const uint32_t (&p)[KEYS / 16][4], uint32_t values, int lane, Take take, int first = 0) {
  const int row = lane % 16, vector = lane / 16;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int n = first + i;
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      uint32_t r[4];
      load_matrices_transposed(r, values + T::at(k * 16 + row, n + vector));
      const uint32_t b_low[2] = {r[0], r[1]}, b_high[2] = {r[2], r[3]};
      mma(low, p[k], b_low);
      mma(high, p[k], b_high);
    }
    take(n, low);
    take(n + 1, high);
  }
}

// The running state of a row. O starts at 0.
struct Running {
  float maximum = MASKED, sum = 0.0f;
};
__device__ __forceinline__ float merged(float o, float tile_o, float keep, float add) { return __fmaf_rn(tile_o, add, __fmul_rn(o, keep)); }
// Merges a tile's maximum into the state. O and the sum become merged(O, O_i, keep, add). A tile without keys changes no bit: keep is 1,
// and add is -0, so that even a negative zero is kept (its O_i is +0).
__device__ __forceinline__ void merge_maximum(float& maximum, float tile_maximum, float& keep, float& add) {
  const float top = fmaxf(maximum, tile_maximum);
  const bool empty = tile_maximum == MASKED;
  keep = empty ? 1.0f : exp2_fast(__fsub_rn(maximum, top));
  add = empty ? -0.0f : exp2_fast(__fsub_rn(tile_maximum, top));
  maximum = top;
}
__device__ __forceinline__ void merge(Running& r, float tile_maximum, float tile_sum, float& keep, float& add) {
  merge_maximum(r.maximum, tile_maximum, keep, add);
  r.sum = merged(r.sum, tile_sum, keep, add);
}
// Merges a head's sink, which is a tile whose values are 0.
__device__ __forceinline__ void merge_sink(Running& r, float sink, float& keep, float& add) {
  merge(r, __fmul_rn(sink, LOG2_E), 1.0f, keep, add);
}
// An element of a finished row. `inverse` is inverse_sum(sum).
__device__ __forceinline__ float inverse_sum(float sum) { return __frcp_rn(sum); }
__device__ __forceinline__ __half2 finished(float x, float y, float inverse) {
  return __floats2half2_rn(__fmul_rn(x, inverse), __fmul_rn(y, inverse));
}

}  // namespace pen
