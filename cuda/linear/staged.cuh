// Rows of x in shared memory, in the layout that products of few tokens read.
#pragma once

#include "../norm/rms_row.cuh"
#include "linear.h"

namespace pen {

static_assert(NORM_WARPS == SLICES, "a block that normalises its own input");

// A row of x in shared memory. The columns of a K tile are stored in the order in which the lanes of a product read them: 16 halves for
// each of the four.
struct StagedRow {
  __half* h;
  // Index of an even column, followed by its neighbour.
  __device__ __forceinline__ static int place(int column) {
    return (column & ~(K_TILE - 1)) + (column & 6) * 8 + (column >> 4 & 3) * 4 + (column >> 3 & 1) * 2;
  }
  __device__ __forceinline__ void put(int column, uint32_t low, uint32_t high) const {
    uint32_t* to = reinterpret_cast<uint32_t*>(h + place(column));
    to[0] = low, to[8] = high;
  }
};

// Computes up to ROWS rows of a layer's input, of up to PIECES · 1024 columns, by a whole block. LATE: the norm's weights are read when
// they are needed, which takes fewer registers.
template <int ROWS, int PIECES, bool LATE = false>
__device__ __forceinline__ void norm_rows(const Norm& p, int num_tokens, __half* normed, bool writes, float* sums) {
  const int stride = staged_stride(p.hidden), columns = int(round_up(p.hidden, K_TILE));
  const auto to = [=](int row) { return StagedRow{normed + row * stride}; };
  const auto some = [&](auto weights) { norm_some<ROWS, PIECES>(p, weights, 0, num_tokens - 1, to, writes ? p.x_out : nullptr, sums); };
  if constexpr (LATE) {
    some([&] { return NormWeights<PIECES>(p); });
  } else {
    const NormWeights<PIECES> early(p);  // not before the kernel's wait: held across it, they would also take registers
    some([&] { return early; });
  }
  for (int n = 0; n < num_tokens; n++) {
    for (int k = p.hidden + threadIdx.x * 4; k < columns; k += NORM_THREADS * 4) to(n).put(k, 0, 0);
  }
  __syncthreads();
}

// Copies a warp's part of a row of x into shared memory: pieces of eight columns, starting at piece `from`.
__device__ __forceinline__ void copy_pieces(const StagedRow& to, const __half* x, int from, int pieces, int lane) {
  constexpr int BATCH = 4;  // requested together
  for (int begin = lane; begin < pieces; begin += BATCH * WARP) {
    uint4 piece[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const int i = min(begin + k * WARP, pieces - 1);
      piece[k] = *reinterpret_cast<const uint4*>(x + (from + i) * 8);
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const int i = begin + k * WARP;
      if (i >= pieces) break;
      to.put((from + i) * 8, piece[k].x, piece[k].y);
      to.put((from + i) * 8 + 4, piece[k].z, piece[k].w);
    }
  }
}

}  // namespace pen
