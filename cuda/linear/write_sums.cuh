// Writes the sums of a product, which the lanes of a warp hold as fragments.
#pragma once

#include "epilogue.cuh"

namespace pen {

// The place of a lane's sums of a row tile and 8 N tokens, starting at `first_token`: rows r and r + 8, tokens t and t + 1 of each fragment
// of eight tokens. Addresses advance from fragment to fragment: a kernel runs this code with cold caches, so each instruction counts.
template <int N>
struct SumsPlace {
  const Linear& p;
  const bool adds;  // to what the output holds
  size_t at;        // index in the output
  int token, column, columns;
  __device__ __forceinline__ SumsPlace(const Linear& p, int segment, int tile, int first_token, int lane, bool adds) : p(p), adds(adds) {
    const bool gates = is_gated(p.epilogue);
    column = tile * (gates ? TILE_ROWS / 2 : TILE_ROWS) + lane / 4;
    columns = gates ? ceil_div(p.w[segment].rows, 2) : p.w[segment].rows;
    token = first_token + 2 * (lane % 4);
    at = size_t(token) * p.ldo + p.out_offset[segment] + column;
  }

  // Calls f(n, i, place) for each sum of tokens before `end`.
  template <class T, class F>
  __device__ __forceinline__ void each(T* to, int rows, int end, F f) const {
    to += at;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const bool real = token + 8 * n + h < end;
        if (real && column < columns) f(n, h, to + h * size_t(p.ldo));
        if (rows == 2 && real && column + 8 < columns) f(n, h + 2, to + h * size_t(p.ldo) + 8);
      }
      to += 8 * size_t(p.ldo);
    }
  }
  // Reads the values that the sums are added to. All are read before any is written, because the compiler may not move a read across a
  // write.
  __device__ __forceinline__ void read(float (&before)[N][4]) const {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) before[n][i] = 0.0f;
    }
    const int end = adds ? p.num_tokens : 0;  // no branch: the compiler would move the reads after it
    each(p.out, 2, end, [&](int n, int i, const float* from) { before[n][i] = *from; });
  }
  // Writes before + y, or y through the gate.
  __device__ __forceinline__ void write(const float (&y)[N][4], const float (&before)[N][4]) const {
    if (is_gated(p.epilogue)) {
      each(p.out16, 1, p.num_tokens, [&](int n, int h, __half* to) { *to = gated(y[n][h], y[n][h + 2], p.epilogue); });
    } else {
      each(p.out, 2, p.num_tokens, [&](int n, int i, float* to) { *to = __fadd_rn(before[n][i], y[n][i]); });
    }
  }
};

// Prefetches into L2 the values that a row tile's sums are added to. The weights that pass through L2 may have evicted them.
__device__ __forceinline__ void prefetch_sums(const Linear& p, int segment, int tile, int token, int tokens, int lane) {
  if (p.epilogue != Epilogue::ADD) return;
  const int end = min(token + tokens, p.num_tokens);
#pragma unroll 1
  for (int t = token + lane; t < end; t += WARP) {
    const float* at = p.out + size_t(t) * p.ldo + p.out_offset[segment] + tile * TILE_ROWS;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

// Whether sums are added to what the output holds: always, or what is not the first half of a product's sum.
__device__ __forceinline__ bool adds_sums(const Linear& p, bool is_second_half) { return p.epilogue == Epilogue::ADD || is_second_half; }

// Writes a lane's sums of a row tile and 8 NT tokens, starting at `token`, BATCH fragments at a time.
template <int NT, int BATCH = (NT < 8 ? NT : 8)>
__device__ __forceinline__ void write_sums(const Linear& p, int segment, int tile, int token, int lane, const float (&y)[NT][4],
                                           bool adds) {
#pragma unroll
  for (int first = 0; first < NT; first += BATCH) {
    const SumsPlace<BATCH> place(p, segment, tile, token + 8 * first, lane, adds);
    float before[BATCH][4], sums[BATCH][4];
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[n][i] = y[first + n][i];
    }
    place.read(before);
    place.write(sums, before);
  }
}

}  // namespace pen
