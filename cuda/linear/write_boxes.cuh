// Writes the sums of a warpgroup's product as boxes, which leave shared memory while the next product runs (sm_90a).
#pragma once

#include "../device/cluster.cuh"
#include "epilogue.cuh"

namespace pen {

constexpr int BOXED_ROWS = 64;  // of a warpgroup
// Bytes of shared memory that a warpgroup needs.
__host__ __device__ constexpr int boxed_bytes(int tokens) { return BOXED_ROWS * tokens * 4; }

// Writes four whole row tiles from `tile` on, one of each warp, and 8 NT tokens from `token` on. `out`: boxes of 8 NT tokens and 32
// columns of p.out, or of p.out16 if the epilogue gates. The warpgroup's first thread must wait for its boxes before it ends.
template <int NT>
__device__ __forceinline__ void write_boxes(const Linear& p, const CUtensorMap& out, int segment, int tile, int token, uint32_t shared,
                                            const float (&y)[NT][4]) {
  constexpr int THREADS = 4 * WARP, WIDE = 32;  // floats of a box's row
  const int thread = threadIdx.x % THREADS, warp = thread / WARP, r = thread % WARP / 4, t = 2 * (thread % 4);
  const auto sync = [] { asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / THREADS), "n"(THREADS) : "memory"); };
  if (thread == 0) boxes_wait_read();
  sync();
  const bool gates = is_gated(p.epilogue);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (gates) {
      const uint32_t at = shared + (t + h) * 64 + (warp ^ (t / 2)) * 16 + r * 2;
#pragma unroll
      for (int n = 0; n < NT; n++) {
        const uint16_t half = __half_as_ushort(gated(y[n][h], y[n][h + 2], p.epilogue));
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + n * 8 * 64), "h"(half) : "memory");
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int piece = warp % 2 * 4 + i * 2 + r / 4;
      const uint32_t at = shared + warp / 2 * (NT * 8 * 128) + (t + h) * 128 + (piece ^ (t + h)) * 16 + r % 4 * 4;
#pragma unroll
      for (int n = 0; n < NT; n++) asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + n * 8 * 128), "f"(y[n][h + 2 * i]) : "memory");
    }
  }
  fence_async_proxy();
  sync();
  if (thread != 0) return;
  if (gates) {
    store_box(out, p.out_offset[segment] + tile * TILE_ROWS / 2, token, shared);
  } else {
#pragma unroll
    for (int box = 0; box < BOXED_ROWS / WIDE; box++) {
      const int column = p.out_offset[segment] + tile * TILE_ROWS + box * WIDE;
      const uint32_t from = shared + box * (NT * 8 * 128);
      if (p.epilogue == Epilogue::ADD) add_box(out, column, token, from);
      else store_box(out, column, token, from);
    }
  }
  boxes_commit();
}

}  // namespace pen
