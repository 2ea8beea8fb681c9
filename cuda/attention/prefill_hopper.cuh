// Prefill attention on sm_90a: the numbers of prefill.cuh, from warpgroup products. A warpgroup has 64 rows, and the block's warpgroups
// share the tiles of K and V, which a further warp fetches as boxes. While a tile's values are added up, the scores of the next one are
// computed, and its softmax runs (FlashAttention-3, Shah et al. 2024). bench/attention.cu checks that all bits are the same.
#pragma once

#include "../device/warpgroup.cuh"
#include "boxes.cuh"
#include "prefill.cuh"

namespace pen {

constexpr int WIDE_WARPGROUPS = 2;
constexpr int WIDE_ROWS = 64;  // of a warpgroup
constexpr int WIDE_THREADS = (WIDE_WARPGROUPS + 1) * 4 * WARP;
constexpr int WIDE_BUFFERS = 8;  // of the ring of tiles

template <int D>
struct WideShared {
  static constexpr int QUERY = WIDE_ROWS * D * 2, TILE = BoxTile<D>::BYTES;
  static constexpr int barriers = WIDE_WARPGROUPS * QUERY + WIDE_BUFFERS * TILE;
  static constexpr size_t bytes = 1024 + barriers + sizeof(Ring);
};

#ifdef PEN_HOPPER_DEVICE
// The buffers of tiles: item 2 t is K of the block's tile t, item 2 t + 1 its V.
struct WideRing {
  Ring& ring;
  uint32_t buffers;
  int bytes;
  // Called by the whole block.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < WIDE_BUFFERS; ++i) barrier_init(&ring.full[i], 1), barrier_init(&ring.empty[i], WIDE_WARPGROUPS * 4);
      fence_barriers();
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t at(int item) const { return buffers + item % WIDE_BUFFERS * bytes; }
  __device__ __forceinline__ uint32_t wait(int item) const {
    barrier_wait(&ring.full[item % WIDE_BUFFERS], item / WIDE_BUFFERS % 2);
    return at(item);
  }
  // Every warp that reads an item says so once.
  __device__ __forceinline__ void leave(int item) const {
    if (threadIdx.x % WARP == 0) barrier_arrive(&ring.empty[item % WIDE_BUFFERS]);
  }
};

// Fetches the tiles, by one warp. Its lanes look up the halves of several tiles at once: one after the other, they would take longer than
// their products.
template <int D>
__device__ __forceinline__ void fetch_tiles(const WideRing& ring, const Pages& pages, int first_tile, int end_tile, const CUtensorMap& keys,
                                            const CUtensorMap& values) {
  const int lane = threadIdx.x % WARP;
  int row = 0;
  for (int item = 0; item < 2 * (end_tile - first_tile); ++item) {
    const int tile = first_tile + item / 2;
    if (item % WARP == 0) {
      const int key = tile * KEYS + lane * PAGE_UNIT;
      row = key < pages.context ? box_row(pages, key) : 0;
    }
    const int half = item % WARP / 2 * 2;
    const int low = __shfl_sync(0xffffffffu, row, half), high = __shfl_sync(0xffffffffu, row, half + 1);
    if (lane == 0) {
      uint64_t* const full = &ring.ring.full[item % WIDE_BUFFERS];
      barrier_wait(&ring.ring.empty[item % WIDE_BUFFERS], item / WIDE_BUFFERS % 2 ^ 1);
      copy_boxes<D>(ring.at(item), item % 2 == 0 ? keys : values, low, high, pages.context - tile * KEYS, full);
    }
    __syncwarp();
  }
}

// Puts a warpgroup's query rows into shared memory, as boxes. `row(r)` gives row r, or null for zeros.
template <int D, class Row>
__device__ __forceinline__ void put_queries(uint32_t to, int thread, Row row, int head_dim) {
  for (int i = thread; i < WIDE_ROWS * (D / 8); i += 4 * WARP) {
    const int r = i / (D / 8), chunk = i % (D / 8);
    const __half* const from = row(r);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (from != nullptr && chunk * 8 < head_dim) x = *reinterpret_cast<const uint4*>(from + chunk * 8);
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + BoxTile<D>::at(r, chunk)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
  }
}

// Makes the rows of keys past the context zero, as clear_keys() does, by a warpgroup.
template <int D, class Sync>
__device__ __forceinline__ void clear_keys_of_all(uint32_t values, int num_keys, int thread, Sync sync) {
  for (int i = thread; i < (KEYS - num_keys) * (D / 8); i += 4 * WARP) {
    const uint32_t at = values + BoxTile<D>::at(num_keys + i / (D / 8), i % (D / 8));
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
  fence_async_proxy();
  sync();
}

// What follows stays behind the instructions that compute these sums, which are never negative. The compiler would move a wait before them.
__device__ __forceinline__ void after(float x, float y) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ge.f32 p, %0, 0f00000000;\n@p bra first;\nnanosleep.u32 0;\nfirst:\n"
      "setp.ge.f32 p, %1, 0f00000000;\n@p bra second;\nnanosleep.u32 0;\nsecond:\n}\n" ::"f"(x),
      "f"(y)
      : "memory");
}

// Starts s = q Kᵀ of a tile. `query` and `keys`: boxes of 64 rows and 64 elements.
template <int D>
__device__ __forceinline__ void start_scores(float (&s)[KEYS / 8][4], uint32_t query, uint32_t keys) {
  warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint32_t at = k / 4 * (KEYS * 128) + k % 4 * 32;
    wgmma_shared(s, tile_descriptor(query + at), tile_descriptor(keys + at), k == 0);
  }
  warpgroup_commit();
}
// Starts acc = P V of a tile.
template <int D>
__device__ __forceinline__ void start_values(float (&acc)[D / 8][4], const uint32_t (&p)[KEYS / 16][4], uint32_t values) {
  warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) wgmma<true>(acc, p[k], transposed_descriptor(values + k * 16 * 128, KEYS * 128), k == 0);
  warpgroup_commit();
}
#endif

// Grid: (groups of WIDE_WARPGROUPS · WIDE_ROWS rows of the longest sequence, num_kv_heads, num_seqs). The rows with the longest contexts
// come first.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    attention_wide_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                          const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
#ifdef PEN_HOPPER_DEVICE
  constexpr int BLOCK_ROWS = WIDE_WARPGROUPS * WIDE_ROWS, N = D / 8;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const int seq = step.sequence(blockIdx.z), kv_head = blockIdx.y, group = p.num_heads / p.kv.num_kv_heads, head_dim = p.kv.head_dim;
  const int context = step.context_lens[seq];
  const int token0 = context == 0 ? 0 : step.cu_seqlens_q[seq];
  const int tokens = context == 0 ? 0 : step.cu_seqlens_q[seq + 1] - token0;
  const int num_rows = tokens * group, row_blocks = ceil_div(num_rows, BLOCK_ROWS);
  if (tokens <= 1 || static_cast<int>(blockIdx.x) >= row_blocks) return wait_for_previous();

  const int block_row = (row_blocks - 1 - static_cast<int>(blockIdx.x)) * BLOCK_ROWS, position0 = context - tokens;
  const auto span_of = [&](int row) { return row < num_rows ? visible<EXTRAS>(position0 + row / group, p) : Span{0, 0}; };
  const int first_tile = span_of(block_row).begin / KEYS;
  const int end_tile = ceil_div(span_of(min(block_row + BLOCK_ROWS, num_rows) - 1).end, KEYS);
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  Ring& barriers = *reinterpret_cast<Ring*>(dynamic + (base - shared_of(dynamic)) + WideShared<D>::barriers);
  const WideRing ring{barriers, base + WIDE_WARPGROUPS * WideShared<D>::QUERY, WideShared<D>::TILE};
  ring.begin();
  wait_for_previous();
  const int warpgroup = threadIdx.x / (4 * WARP);
  if (warpgroup == WIDE_WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x % (4 * WARP) >= WARP) return;
    fetch_tiles<D>(ring, Pages(p.kv, step, seq, context, kv_head), first_tile, end_tile, keys_map, values_map);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int thread = threadIdx.x % (4 * WARP), lane = thread % WARP, first_row = block_row + warpgroup * WIDE_ROWS;
  const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(4 * WARP) : "memory"); };
  const uint32_t query = base + warpgroup * WideShared<D>::QUERY;
  const auto query_of = [&](int row) {
    return (static_cast<size_t>(token0 + row / group) * p.num_heads + kv_head * group + row % group) * head_dim;
  };
  put_queries<D>(query, thread, [&](int r) { return first_row + r < num_rows ? p.q + query_of(first_row + r) : nullptr; }, head_dim);
  fence_async_proxy();
  sync();

  const int warp_row = first_row + thread / WARP * ROWS, row0 = warp_row + lane / 4;
  const Span span[2] = {span_of(row0), span_of(row0 + 8)};
  const ScoreScale scale(p);
  float4 before[N + 1];
  StretchState<D> state;
  state.before = held(static_cast<float4*>(before));
  state.clear();
  const int seen_first = first_row < num_rows ? span_of(first_row).begin / KEYS : end_tile;  // of what its rows see between them
  const int seen_end = first_row < num_rows ? ceil_div(span_of(min(first_row + WIDE_ROWS, num_rows) - 1).end, KEYS) : end_tile;
  const auto pass = [&](int from, int to) {
    for (int item = 2 * (from - first_tile); item < 2 * (to - first_tile); ++item) ring.wait(item), ring.leave(item);
  };
  pass(first_tile, seen_first);
  if (seen_first < seen_end) {
    float s[KEYS / 8][4], acc[N][4], maximum[2], sum[2], keep[2], add[2];
    uint32_t even[KEYS / 16][4], odd[KEYS / 16][4];
    const auto softmax = [&](uint32_t(&out)[KEYS / 16][4], int tile) {
      scale.cap(s);
      tile_softmax(out, maximum, s, span, tile, scale.c, lane);
      tile_sums(sum, out);
    };
    const auto merge_tile = [&] {
#pragma unroll
      for (int h = 0; h < 2; ++h) merge(state.running[h], maximum[h], sum[h], keep[h], add[h]);
    };
    const auto take_values = [&] {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.o[n][i] = merged(state.o[n][i], acc[n][i], keep[i / 2], add[i / 2]);
      }
    };
    int tile = seen_first, item = 2 * (seen_first - first_tile);
    start_scores<D>(s, query, ring.wait(item));
    warpgroup_wait<0>();
    ring.leave(item);
    softmax(even, tile);
    merge_tile();
    // Adds up the values of a tile that is not the last one, and makes the probabilities of the next.
    const auto step = [&](const uint32_t(&present)[KEYS / 16][4], uint32_t(&next)[KEYS / 16][4]) {
      start_scores<D>(s, query, ring.wait(item + 2));
      start_values<D>(acc, present, ring.wait(item + 1));
      warpgroup_wait<1>();
      ring.leave(item + 2);
      softmax(next, tile + 1);
      after(sum[0], sum[1]);
      warpgroup_wait<0>();
      ring.leave(item + 1);
      take_values();
      if ((tile + 1) % STRETCH_TILES == 0) state.end_stretch();
      merge_tile();
      ++tile, item += 2;
    };
    // The last tile may reach past the context.
    const auto finish = [&](const uint32_t(&present)[KEYS / 16][4]) {
      const uint32_t values = ring.wait(item + 1);
      const int num_keys = context - tile * KEYS;
      if (num_keys < KEYS) clear_keys_of_all<D>(values, num_keys, thread, sync);
      start_values<D>(acc, present, values);
      warpgroup_wait<0>();
      ring.leave(item + 1);
      take_values();
    };
    while (tile + 2 < seen_end) step(even, odd), step(odd, even);
    if (tile + 1 < seen_end) {
      step(even, odd);
      finish(odd);
    } else {
      finish(even);
    }
  }
  pass(max(seen_end, first_tile), end_tile);
  state.finish();
  store_rows<D, EXTRAS>(p, state, warp_row, num_rows, token0, kv_head, lane);
#endif
}

}  // namespace pen
