// Prefill attention on sm_90a for long heads, by warpgroup products. It computes the same bits as prefill.cuh, which bench/attention.cu
// checks. As in prefill_hopper.cuh, a warpgroup has 64 rows and shares tiles with another warpgroup. Values are multiplied box by box,
// because a whole row of O and a tile's contribution to it do not fit into registers. The workspace holds the state of earlier KV splits.
#pragma once

#include "box_state.cuh"
#include "prefill_hopper.cuh"

namespace pen {

constexpr int BOXED_DIM = STATE_BOXES * BOX_DIM;  // elements of a head
constexpr int BOXED_KEYS = 3, BOXED_VALUES = 2;   // stages of the rings of tiles

struct BoxedShared {
  static constexpr int QUERY = WIDE_ROWS * BOXED_DIM * 2, TILE = BoxTile<BOXED_DIM>::BYTES;
  static constexpr int ring = WIDE_WARPGROUPS * QUERY, barriers = ring + (BOXED_KEYS + BOXED_VALUES) * TILE;
  static constexpr size_t bytes = 1024 + barriers + sizeof(Ring);
};
static_assert(WIDE_WARPGROUPS * 4 * WARP == STATE_THREADS && BOXED_KEYS + BOXED_VALUES <= 8, "a state per thread, and a ring's barriers");

// Grid: as many blocks as run at once. They take the blocks of a grid of (width, num_kv_heads, num_seqs) one after the other. Workspace:
// STATE_BEFORE floats per block.
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    attention_boxed_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step, int width,
                           const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
#ifdef PEN_HOPPER_DEVICE
  constexpr int D = BOXED_DIM;
  using Shared = BoxedShared;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  uint8_t* const shared = dynamic + (base - shared_of(dynamic));
  const WideRings rings{*reinterpret_cast<Ring*>(shared + Shared::barriers), base + Shared::ring, Shared::TILE, BOXED_KEYS + BOXED_VALUES};
  rings.begin();
  wait_for_previous();
  const int kv_heads = p.kv.num_kv_heads, head_dim = p.kv.head_dim, all_blocks = width * kv_heads * step.num_seqs;
  const auto block_at = [&](int i) {
    return WideBlock(p, step, make_uint3(i % width, i / width % kv_heads, i / width / kv_heads), width);
  };
  const auto span_of = [&](const WideBlock& block, int row) {
    return row < block.num_rows ? visible<false>(block.context - block.tokens + row / block.group, p) : Span{0, 0};
  };
  // The tiles that any of rows [first, first + rows) sees.
  const auto tiles_of = [&](const WideBlock& block, int first, int rows) {
    if (first >= block.num_rows) return Span{0, 0};
    return Span{span_of(block, first).begin / KEYS, ceil_div(span_of(block, min(first + rows, block.num_rows) - 1).end, KEYS)};
  };
  WideStage<0, BOXED_KEYS> keys;
  WideStage<BOXED_KEYS, BOXED_VALUES> values;
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / (4 * WARP), 0);  // so that the compiler knows it is uniform in the warp
  if (warpgroup == WIDE_WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x % (4 * WARP) >= WARP) return;
    for (int wave = 0, i; (i = unit_of_wave(wave)) < all_blocks; ++wave) {
      const WideBlock block = block_at(i);
      if (block.row < 0) continue;
      const Span tiles = tiles_of(block, block.row, WIDE_BLOCK_ROWS);
      fetch_tiles<D>(rings, keys, values, Pages(p.kv, step, block.seq, block.context, block.kv_head), tiles.begin, tiles.end, keys_map,
                     values_map);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int thread = threadIdx.x % (4 * WARP), lane = thread % WARP;
  const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(4 * WARP) : "memory"); };
  const auto leave = [&](auto& stage) { rings.leave(stage), stage.next(); };
  const auto pass = [&](int from, int to) {
    for (int tile = from; tile < to; ++tile) rings.wait(keys), leave(keys), rings.wait(values), leave(values);
  };
  const uint32_t query = base + warpgroup * Shared::QUERY;
  const ScoreScale scale(p);
  BoxState state;
  state.before = reinterpret_cast<float4*>(p.workspace + static_cast<size_t>(blockIdx.x) * STATE_BEFORE) + threadIdx.x;
  for (int wave = 0, i; (i = unit_of_wave(wave)) < all_blocks; ++wave) {
    const WideBlock block = block_at(i);
    if (block.row < 0) continue;
    const int first_row = block.row + warpgroup * WIDE_ROWS, group = block.group;
    const auto query_of = [&](int row) {
      return (static_cast<size_t>(block.token0 + row / group) * p.num_heads + block.kv_head * group + row % group) * head_dim;
    };
    sync();  // no warp still reads the previous queries
    const auto row_at = [&](int r) { return first_row + r < block.num_rows ? p.q + query_of(first_row + r) : nullptr; };
    put_queries<D>(query, thread, row_at, head_dim);
    fence_async_proxy();
    sync();
    const int warp_row = first_row + thread / WARP * ROWS, row0 = warp_row + lane / 4;
    const bool has_rows = warp_row < block.num_rows;
    const Span span[2] = {span_of(block, row0), span_of(block, row0 + 8)};
    const Span all_tiles = tiles_of(block, block.row, WIDE_BLOCK_ROWS), seen = tiles_of(block, first_row, WIDE_ROWS);
    const int context = block.context;
    state.clear();
    pass(all_tiles.begin, seen.begin < seen.end ? seen.begin : all_tiles.end);
    for (int tile = seen.begin; tile < seen.end; ++tile) {
      uint32_t probabilities[KEYS / 16][4];
      float acc[2][KEYS / 8][4];  // parts of P V; the first one holds the scores before that
      float maximum[2], sum[2], keep[2], add[2];
      rings.wait(keys);
      start_scores<D>(acc[0], query, rings.at(keys));
      warpgroup_wait<0>();
      leave(keys);
#pragma unroll
      for (int k = 0; k < KEYS / 2; ++k) acc[0][k / 4][k % 4] = held(acc[0][k / 4][k % 4]);
      scale.cap(acc[0]);
      tile_softmax(probabilities, maximum, acc[0], span, tile, scale.c, lane);
      tile_sums(sum, probabilities);
#pragma unroll
      for (int h = 0; h < 2; ++h) merge(state.running[h], maximum[h], sum[h], keep[h], add[h]);
      rings.wait(values);
      const int num_keys = context - tile * KEYS;
      if (num_keys < KEYS) clear_keys<D, 4 * WARP>(rings.at(values), num_keys, thread), fence_async_proxy(), sync();
      add_box_values(state.o, probabilities, acc, rings.at(values), keep, add, has_rows);
      leave(values);
      if ((tile + 1) % KV_SPLIT_TILES != 0 && tile + 1 != seen.end) continue;
      if (has_rows) state.end_kv_split(tile / KV_SPLIT_TILES > seen.begin / KV_SPLIT_TILES, tile + 1 == seen.end);
    }
    if (seen.begin < seen.end) pass(seen.end, all_tiles.end);
    if (has_rows) store_rows<D, false>(p, state, warp_row, block.num_rows, block.token0, block.kv_head, lane);
  }
#endif
}

}  // namespace pen
