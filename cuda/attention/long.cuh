// Decode attention over long contexts on sm_90. A block has one sequence and K/V head and some KV splits of its context. Each reading warp
// takes tiles of its own through its own ring, which the tensor memory accelerator fills, and leaves each tile's result in one of two
// slots. The merging warps take the results in order. No warp waits for the whole block. The numbers are those of decode.cuh, from the same
// functions.
#pragma once

#include "boxes.cuh"
#include "decode.cuh"

namespace pen {

// A tile's result.
struct TileResult {
  const float* o;     // [rows, ROW]
  const float2* row;  // [rows] maximum and sum
  int rows, tile;
  bool last;  // last of the block's tiles that merge into the same rows
};

// Merges the results of a block's tiles in order, by all threads of the merging warps. A thread has the same elements of every tile.
template <int D, bool EXTRAS>
struct LongMerger {
  static constexpr int ITEMS = ROWS * (D / 4) / (LONG_MERGERS * WARP);
  Running running[ITEMS], all_running[ITEMS];
  float4 o[ITEMS], all[ITEMS];

  // `take(i)` waits for the result of the block's tile i, `target(i)` returns what it merges into, and `leave(i)` releases both.
  template <class Take, class Target, class Leave>
  __device__ __forceinline__ void run(const Attention& p, int num_tiles, int thread, Take take, Target target, Leave leave) {
    constexpr int ROW = LongShared<D>::ROW, QUADS = D / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int head_dim = p.kv.head_dim;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) o[k] = all[k] = zero;
    for (int i = 0; i < num_tiles; ++i) {
      const TileResult result = take(i);
      const bool ends = (result.tile + 1) % KV_SPLIT_TILES == 0 || result.last;
#pragma unroll
      for (int k = 0; k < ITEMS; ++k) {
        const int item = thread + k * LONG_MERGERS * WARP, row = item / QUADS, dim = item % QUADS * 4;
        if (row >= result.rows || dim >= head_dim) continue;
        float keep, add;
        merge(running[k], result.row[row].x, result.row[row].y, keep, add);
        o[k] = merged(o[k], *reinterpret_cast<const float4*>(result.o + row * ROW + dim), keep, add);
        if (!ends) continue;
        const MergeTarget to = target(i);
        if (to.direct) {
          merge(all_running[k], running[k].maximum, running[k].sum, keep, add);
          all[k] = merged(all[k], o[k], keep, add);
        } else {
          const int kv_split = row * to.row_step + result.tile / KV_SPLIT_TILES;
          *reinterpret_cast<float4*>(to.o + static_cast<size_t>(kv_split) * head_dim + dim) = o[k];
          if (dim == 0) to.row[kv_split] = make_float2(running[k].maximum, running[k].sum);
        }
        running[k] = Running{}, o[k] = zero;
      }
      if (result.last) finish(p, target(i), thread);
      leave(i);
    }
  }

  // Writes the output if this block does so, and resets the state.
  __device__ __forceinline__ void finish(const Attention& p, const MergeTarget& to, int thread) {
    constexpr int QUADS = D / 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int head_dim = p.kv.head_dim;
    if (!to.direct) return;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const int item = thread + k * LONG_MERGERS * WARP, row = item / QUADS, dim = item % QUADS * 4;
      if (row >= to.rows || dim >= head_dim) continue;
      if constexpr (EXTRAS) {
        if (p.sinks != nullptr) {
          float keep, add;
          merge_sink(all_running[k], p.sinks[to.head + row], keep, add);
          all[k] = merged(all[k], zero, keep, add);
        }
      }
      const float inverse = inverse_sum(all_running[k].sum);
      __half2* const out = reinterpret_cast<__half2*>(to.out + row * head_dim + dim);
      out[0] = finished(all[k].x, all[k].y, inverse);
      out[1] = finished(all[k].z, all[k].w, inverse);
      all_running[k] = Running{}, all[k] = zero;
    }
  }
};

// Grid: (splits, num_kv_heads · ceil(group / plan.rows), num_seqs). Block: up to LONG_READERS reading warps, then
// LONG_MERGERS.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WARP*(LONG_READERS<D> + LONG_MERGERS), 1)
    attention_long_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                          const __grid_constant__ DecodePlan plan, const __grid_constant__ QkvFinish fresh,
                          const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
  using Shared = LongShared<D>;
  using T = BoxTile<D>;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const BlockHeads heads(p, step, plan);
  const int seq = heads.seq, kv_head = heads.kv_head, head = heads.head, rows = heads.rows;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, readers = static_cast<int>(blockDim.x) / WARP - LONG_MERGERS;
  const DecodeRange<EXTRAS> range(step, seq, p);
  const BlockTiles tiles(range, plan);
  const int num_tiles = tiles.count();

  const uint32_t base = shared_of(shared), rings = (base + 1023) / 1024 * 1024;
  char* const behind = shared + (rings - base) + readers * Shared::ring;
  const auto slot_of = [&](int reader, int slot) {
    return reinterpret_cast<float*>(behind + static_cast<size_t>(reader * LONG_SLOTS + slot) * Shared::slot(plan.rows));
  };
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(behind + static_cast<size_t>(readers) * LONG_SLOTS * Shared::slot(plan.rows));
  uint64_t *const full = barriers, *const ready = full + readers * LONG_BUFFERS, *const empty = ready + readers * LONG_SLOTS;
  __half* const queries = reinterpret_cast<__half*>(empty + readers * LONG_SLOTS);

  const bool reads = warp < readers;
  const int mine = reads && warp < num_tiles ? ceil_div(num_tiles - warp, readers) : 0;
  const uint32_t ring = rings + warp * static_cast<uint32_t>(Shared::ring);
  const Pages pages(p.kv, step, seq, range.context, kv_head);
  // Item 2 t is K of this warp's tile t, item 2 t + 1 its V. Called by one lane.
  const auto fetch = [&](int item) {
    if (item >= 2 * mine) return;
    const int buffer = item % LONG_BUFFERS;
    copy_boxes<D>(ring + buffer * T::BYTES, item % 2 == 0 ? keys_map : values_map, pages, tiles.begin + warp + item / 2 * readers,
                  full + warp * LONG_BUFFERS + buffer);
  };
  const bool sees = num_tiles > 0 && tiles.end == range.end;  // the fresh row is in the block's tiles
  const int last_reader = sees ? (num_tiles - 1) % readers : -1, last_tile = (num_tiles - 1) / readers;  // which hold it
  // As in attention_decode_kernel: copies start before the wait, unless another kernel writes the fresh row.
  const bool early = fresh.qkv != nullptr || warp != last_reader || last_tile > 0;
  if (reads && lane == 0) {
    for (int i = 0; i < LONG_BUFFERS; ++i) barrier_init(full + warp * LONG_BUFFERS + i, 1);
    for (int i = 0; i < LONG_SLOTS; ++i) {
      barrier_init(ready + warp * LONG_SLOTS + i, WARP);
      barrier_init(empty + warp * LONG_SLOTS + i, LONG_MERGERS * WARP);
    }
    fence_barriers();
    for (int i = 0; i < LONG_BUFFERS && early; ++i) fetch(i);
  }
  __syncthreads();  // the barriers are initialised

  const int token = num_tiles == 0 ? 0 : step.cu_seqlens_q[seq];
  const __half* query_rows = p.q + (static_cast<size_t>(token) * p.num_heads + head) * p.kv.head_dim;
  int query_stride = p.kv.head_dim;
  if (fresh.qkv == nullptr) {
    wait_for_previous();
  } else {
    query_rows = queries, query_stride = Shared::ROW;
    uint32_t key_tile = NOWHERE, value_tile = NOWHERE;
    if (sees && last_tile == 0) {
      // The tile has been requested, and the fresh row must be written after the copy.
      key_tile = rings + last_reader * static_cast<uint32_t>(Shared::ring), value_tile = key_tile + T::BYTES;
      for (int i = 0; i < LONG_BUFFERS; ++i) barrier_wait(full + last_reader * LONG_BUFFERS + i, 0);
    }
    const FreshRows fresh_rows{head, rows, kv_head, range.context - 1,  token,        sees,    num_tiles > 0,
                               shared_of(queries), query_stride, key_tile, value_tile};
    fresh_rows.finish<D, T>(fresh, step);
    fence_all_proxies();
    __syncthreads();
  }
  if (num_tiles == 0) return;

  if (!reads) {
    MergeTarget target{tiles.direct, head, rows, p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim};
    if (!tiles.direct) target.leave(Partials(p, gridDim.z, plan.max_kv_splits), p, plan, blockIdx.z, range.first_kv_split());
    const auto of = [&](int tile) { return tile % readers * LONG_SLOTS + tile / readers % LONG_SLOTS; };
    LongMerger<D, EXTRAS> merger;
    merger.run(
        p, num_tiles, static_cast<int>(threadIdx.x) - readers * WARP,
        [&](int i) {
          barrier_wait(ready + of(i), i / readers / LONG_SLOTS % 2);
          const float* const slot = slot_of(i % readers, i / readers % LONG_SLOTS);
          const float2* const slot_rows = reinterpret_cast<const float2*>(slot + plan.rows * Shared::ROW);
          return TileResult{slot, slot_rows, rows, tiles.begin + i, i + 1 == num_tiles};
        },
        [&](int) { return target; }, [&](int i) { barrier_arrive(empty + of(i)); });
    return;
  }
  if (mine == 0) return;
  if (lane == 0 && !early) {
    for (int i = 0; i < LONG_BUFFERS; ++i) fetch(i);
  }
  const Span seen = visible<EXTRAS>(range.context - 1, p);
  // Absent rows use the row's span, too: their queries do no harm, and their results are not stored.
  const Span span[2] = {seen, seen};
  const ScoreScale scale(p);
  const int row0 = lane / 4, row1 = row0 + 8;
  uint32_t q[D / 16][4];
  load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
  for (int i = 0; i < mine; ++i) {
    const int tile = tiles.begin + warp + i * readers, item = 2 * i;
    const uint32_t keys = ring + item % LONG_BUFFERS * T::BYTES, values = ring + (item + 1) % LONG_BUFFERS * T::BYTES;
    barrier_wait(full + warp * LONG_BUFFERS + item % LONG_BUFFERS, item / LONG_BUFFERS % 2);
    float maximum[2], sum[2];
    uint32_t probabilities[KEYS / 16][4];
    attend_keys<D, 1, T>(probabilities, maximum, q, keys, span, tile, scale, TeamPlace{0, lane, nullptr}, [] {}, [&] {
      __syncwarp();
      if (lane == 0) fetch(item + LONG_BUFFERS);
    });
    tile_sums(sum, probabilities);
    const int slot = i % LONG_SLOTS, use = i / LONG_SLOTS;
    if (use > 0) barrier_wait(empty + warp * LONG_SLOTS + slot, (use - 1) % 2);
    float* const tile_o = slot_of(warp, slot) + row0 * Shared::ROW;
    float2* const tile_row = reinterpret_cast<float2*>(slot_of(warp, slot) + plan.rows * Shared::ROW) + row0;
    if (lane % 4 == 0) put_rows(tile_row, 8, maximum, sum, row0, rows);
    barrier_wait(full + warp * LONG_BUFFERS + (item + 1) % LONG_BUFFERS, (item + 1) / LONG_BUFFERS % 2);
    if (range.context - tile * KEYS < KEYS) {
      clear_keys<D, WARP>(values, range.context - tile * KEYS, lane);
      __syncwarp();
    }
    tile_values<D, D / 8, T>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
      const int dim = n * 8 + lane % 4 * 2;
      if (row0 < rows) *reinterpret_cast<float2*>(tile_o + dim) = make_float2(acc[0], acc[1]);
      if (row1 < rows) *reinterpret_cast<float2*>(tile_o + 8 * Shared::ROW + dim) = make_float2(acc[2], acc[3]);
    });
    barrier_arrive(ready + warp * LONG_SLOTS + slot);
    __syncwarp();
    if (lane == 0) fetch(item + 1 + LONG_BUFFERS);
  }
}

}  // namespace pen
