// Finishes a sequence's fresh row inside a decode kernel.
#pragma once

#include "qkv.cuh"
#include "tile.cuh"

namespace pen {

constexpr uint32_t NOWHERE = 0xffffffffu;  // not an address of shared memory, where 0 may be one
__device__ __forceinline__ void store_half(uint32_t shared, __half x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(__half_as_ushort(x)) : "memory");
}

// A block's part of a sequence's fresh row. The block finishes its heads of Q into shared memory. If the row is in its tiles, it also
// finishes K and V, into the pages and into the tiles in shared memory.
struct FreshRows {
  int head, rows, kv_head;  // Q: heads [head, head + rows)
  int position, token;
  bool sees, exists;
  uint32_t queries;              // shared: [rows, stride] halves
  int stride;
  uint32_t key_tile, value_tile;  // shared, or NOWHERE
  // Waits for the step's products in between. The block sees the results after a __syncthreads().
  template <int D, class T = Tile<D>>
  __device__ __forceinline__ void finish(const QkvFinish& fresh, const StepView& step) const {
    constexpr int PAIRS = (D + 63) / 64;
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const int items = !exists ? 0 : sees ? rows + 2 : rows, padding = D - fresh.kv.head_dim;
    // Zeroes the padding of the queries, and of the fresh row in the tile of keys, which no copy fills. Its old contents may be NaN, and
    // NaN times 0 is NaN.
    const int padded = sees && key_tile != NOWHERE ? rows + 1 : rows;
    for (int i = threadIdx.x; i < padded * padding; i += blockDim.x) {
      const int row = i / padding, dim = fresh.kv.head_dim + i % padding;
      const uint32_t in_tile = key_tile + T::at(position % KEYS, dim / 8) + dim % 8 * 2;
      store_half(row < rows ? queries + (row * stride + dim) * 2 : in_tile, __ushort_as_half(0));
    }
    bool waited = false;
    const uint32_t turns = fresh.by_position && exists ? step.positions[token] : position;
#pragma unroll 1
    for (int item = warp; item < items || !waited; item += warps) {
      const bool mine = item < items;
      const Head kind = item < rows ? Head::Q : item == rows ? Head::K : Head::V;
      FreshHead<PAIRS> fresh_head;
      fresh_head.prepare(fresh, kind, kind == Head::Q ? head + item : kv_head, token, turns, mine, lane);
      const uint32_t tile = kind == Head::Q ? queries + item * stride * 2 : kind == Head::K ? key_tile : value_tile;
      __half* page = nullptr;
      if (mine && kind != Head::Q) {
        page = held(page_row(fresh.kv, kind == Head::K ? fresh.kv.k : fresh.kv.v, step.slot_mapping[token], kv_head));
      }
      uint32_t to[PAIRS][2];
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const int dim = which == 0 ? fresh_head.first[j] : fresh_head.second[j];
          to[j][which] = held(tile + (kind == Head::Q ? dim * 2 : T::at(position % KEYS, dim / 8) + dim % 8 * 2));
        }
      }
      if (!waited) wait_for_previous();
      waited = true;
      fresh_head.finish([&](int j, int which, __half y) {
        if (tile != NOWHERE) store_half(to[j][which], y);
        if (page != nullptr) page[which == 0 ? fresh_head.first[j] : fresh_head.second[j]] = y;
      });
    }
  }
};

}  // namespace pen
