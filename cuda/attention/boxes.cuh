// Copies of tiles by the tensor memory accelerator (sm_90): one instruction per box of 32 keys × 64 elements.
#pragma once

#include "../device/boxes.h"
#include "../device/cluster.cuh"
#include "tile.cuh"

namespace pen {

constexpr int BOX_BYTES = PAGE_UNIT * BOX_DIM * 2;  // 32 keys, all in one page

// Maps the pages of K or V as rows of `dim` elements. The block after the pool holds the zeros that replace blocks before a window. If it
// lies further away, reads fall outside the map and give zeros, too.
template <class Kv>
bool map_pages(CUtensorMap& map, const __half* pages, const Kv& kv, int dim) {
  return map_boxes(map, pages, (static_cast<size_t>(kv.num_blocks) + 1) * kv.num_kv_heads * kv.block_size, dim, dim, PAGE_UNIT);
}

// Starts to copy a tile, K or V of one K/V head, in boxes. Its two halves start at rows `low` and `high` of the map. `num_keys`: keys of
// the context from the tile's start. Keys beyond the context are left unchanged, in units of PAGE_UNIT. `more`: further bytes that the
// barrier shall count.
template <int D>
__device__ __forceinline__ void copy_boxes(uint32_t shared, const CUtensorMap& map, int low, int high, int num_keys, uint64_t* barrier,
                                           int more = 0) {
  const int halves = num_keys > PAGE_UNIT ? 2 : 1;
  expect_bytes(barrier, halves * (D / BOX_DIM) * BOX_BYTES + more);
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int x = 0; x < D / BOX_DIM; ++x) {
      copy_box(shared + x * KEYS * BOX_DIM * 2 + half * BOX_BYTES, map, x * BOX_DIM, half == 0 ? low : high, barrier);
    }
  }
}
// The row of the map that holds position `key`.
__device__ __forceinline__ int box_row(const Pages& pages, int key) { return static_cast<int>(pages.row(key) / pages.head_dim); }
template <int D>
__device__ __forceinline__ void copy_boxes(uint32_t shared, const CUtensorMap& map, const Pages& pages, int tile, uint64_t* barrier) {
  const int num_keys = pages.context - tile * KEYS;
  const int high = num_keys > PAGE_UNIT ? box_row(pages, tile * KEYS + PAGE_UNIT) : 0;
  copy_boxes<D>(shared, map, box_row(pages, tile * KEYS), high, num_keys, barrier);
}

// Zeroes the rows of keys beyond the context, by THREADS threads. A page may hold anything there, and NaN times a probability of 0 is NaN.
template <int D, int THREADS>
__device__ __forceinline__ void clear_keys(uint32_t values, int num_keys, int thread) {
  for (int i = thread; i < (KEYS - num_keys) * (D / 8); i += THREADS) {
    const uint32_t at = values + BoxTile<D>::at(num_keys + i / (D / 8), i % (D / 8));
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

// Copies 64 query rows into shared memory as boxes, by THREADS threads. `row(r)` gives row r, or null for zeros.
template <int D, int THREADS = 4 * WARP, class Row>
__device__ __forceinline__ void put_queries(uint32_t to, int thread, Row row, int head_dim) {
  for (int i = thread; i < KEYS * (D / 8); i += THREADS) {
    const int r = i / (D / 8), vector = i % (D / 8);
    const __half* const from = row(r);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (from != nullptr && vector * 8 < head_dim) x = *reinterpret_cast<const uint4*>(from + vector * 8);
    store_vector(to + BoxTile<D>::at(r, vector), x);
  }
}

}  // namespace pen
