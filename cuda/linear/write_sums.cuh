// Writes the sums of a product, which the lanes of a warp hold as fragments.
#pragma once

#include "epilogue.cuh"

namespace pen {

// Writes a lane's sums of a row tile and 8 NT tokens from `token` on, in fragments: rows r and r + 8, tokens t and t + 1. The values that
// they are added to are read several at once, since the compiler may not move a read over a write.
template <int NT>
__device__ __forceinline__ void write_sums(const Linear& p, int segment, int tile, int token, int lane, const float (&y)[NT][4]) {
  const int rows = p.w[segment].rows, r = lane / 4;
  token += 2 * (lane % 4);
  if (is_gated(p.epilogue)) {
    const int column = tile * 8 + r;
    if (2 * column >= rows) return;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int t = token + 8 * n + h;
        if (t < p.num_tokens) p.out16[size_t(t) * p.ldo + p.out_offset[segment] + column] = gated(y[n][h], y[n][h + 2], p.epilogue);
      }
    }
    return;
  }
  constexpr int BATCH = NT < 8 ? NT : 8;
  const auto each = [&](int first, auto f) {
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int t = token + 8 * (first + n) + i % 2, column = tile * TILE_ROWS + r + 8 * (i / 2);
        if (t < p.num_tokens && column < rows) f(n, i, p.out + size_t(t) * p.ldo + p.out_offset[segment] + column);
      }
    }
  };
#pragma unroll
  for (int first = 0; first < NT; first += BATCH) {
    if (p.epilogue == Epilogue::ADD) {
      float before[BATCH][4];
      each(first, [&](int n, int i, const float* at) { before[n][i] = *at; });
      each(first, [&](int n, int i, float* at) { *at = __fadd_rn(before[n][i], y[first + n][i]); });
    } else {
      each(first, [&](int n, int i, float* at) { *at = y[first + n][i]; });
    }
  }
}

}  // namespace pen
