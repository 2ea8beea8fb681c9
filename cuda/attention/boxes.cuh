// Copies of boxes by the tensor memory accelerator (sm_90): one instruction for 32 keys × 64 elements.
#pragma once

#include <cuda.h>

#include "tile.cuh"

namespace pen {

constexpr int BOX_DIM = 64;                           // elements of a box
constexpr int BOX_BYTES = PAGE_UNIT * BOX_DIM * 2;    // 32 keys, which lie in one page

// Starts the copy of the box at element `x` of row `y`; its bytes count for the barrier. Elements past the rows' ends become zero.
__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap& map, int x, int y, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
               "l"(&map), "r"(x), "r"(y), "r"(shared_of(barrier))
               : "memory");
#endif
}
// Makes what this thread has written, in any memory, visible to copies of boxes that start after a barrier.
__device__ __forceinline__ void fence_all_proxies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// The barriers that this thread has initialised are ready for copies.
__device__ __forceinline__ void fence_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Starts the copy of a tile: K or V of one K/V head, in boxes. Keys past the context are left as they are, in units of PAGE_UNIT.
template <int D>
__device__ __forceinline__ void copy_boxes(uint32_t shared, const CUtensorMap& map, const Pages& pages, int tile, uint64_t* barrier) {
  const int num_keys = pages.context - tile * KEYS, halves = num_keys > PAGE_UNIT ? 2 : 1;
  expect_bytes(barrier, halves * (D / BOX_DIM) * BOX_BYTES);
  for (int half = 0; half < halves; ++half) {
    const int row = static_cast<int>(pages.row(tile * KEYS + half * PAGE_UNIT) / pages.head_dim);
#pragma unroll
    for (int x = 0; x < D / BOX_DIM; ++x) {
      copy_box(shared + x * KEYS * BOX_DIM * 2 + half * BOX_BYTES, map, x * BOX_DIM, row, barrier);
    }
  }
}

}  // namespace pen
