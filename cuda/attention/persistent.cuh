// Decode attention of many sequences on sm_90. The tiles of all sequences and K/V heads form one list, and each multiprocessor's block
// takes a contiguous range of it, whatever the sequences' lengths. So a block starts once, and its copies run ahead from one sequence into
// the next. Reading warps take the range's tiles in turn and leave their results in slots, and merging warps take these in order. The
// numbers are those of decode.cuh, from the same functions.
#pragma once

#include "long.cuh"
#include "work_list.cuh"

namespace pen {

// The tile that a stage or a slot holds, and what its result is merged into.
struct __align__(16) PersistentTile {
  int context, tile, rows;
  bool last, direct;  // as in TileResult and MergeTarget
  int seq, token, head;  // seq: number in the view
};
static_assert(sizeof(PersistentTile) == PERSISTENT_TILE_BYTES && PERSISTENT_TILE_BYTES == 2 * sizeof(uint4), "two lanes copy it");

// Grid: one block per multiprocessor. Block: up to PERSISTENT_READERS reading warps, then LONG_MERGERS, then PERSISTENT_COPIERS.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WARP*(PERSISTENT_READERS<D> + LONG_MERGERS + PERSISTENT_COPIERS), 1)
    attention_persistent_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                          const __grid_constant__ DecodePlan plan, const __grid_constant__ QkvFinish fresh,
                          const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
  using Shared = PersistentShared<D>;
  using T = BoxTile<D>;
  constexpr int ROW = DecodeShared<D>::ROW;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP, head_dim = p.kv.head_dim;
  const int stages = plan.buffers, readers = warps - LONG_MERGERS - PERSISTENT_COPIERS;
  const uint32_t base = shared_of(shared), tiles = static_cast<uint32_t>(round_up(base, Shared::alignment));
  char* const slots = shared + (tiles - base) + stages * Shared::tiles;
  char* const queries = slots + readers * Shared::slot(plan.rows);
  PersistentTile* const stage_tiles = reinterpret_cast<PersistentTile*>(queries + stages * Shared::queries(plan.rows));
  // The stages of K and V have `full` and `taken`, and the slots have `ready` and `left`.
  uint64_t *const full = reinterpret_cast<uint64_t*>(stage_tiles + stages), *const taken = full + 2 * stages;
  uint64_t *const ready = taken + 2 * stages, *const left = ready + readers;
  int* const numbers = reinterpret_cast<int*>(left + readers);
  const int num_seqs = step.num_seqs, parts = p.kv.num_kv_heads * ceil_div(p.num_heads / p.kv.num_kv_heads, plan.rows);
  int* const sums = numbers + 3 * num_seqs + 1;
  const WorkList<EXTRAS> row{p, plan, num_seqs, parts, numbers, numbers + num_seqs + 1, numbers + 2 * num_seqs + 1, sums};
  if (lane == 0) {
    for (uint64_t* i = full + warp; i < left + readers; i += warps) barrier_init(i, i < left ? 1 : LONG_MERGERS);
    fence_barriers();
  }
  if (head_dim < D) {
    // Data after the last row of Q is multiplied by zeros of K and must be finite.
    for (size_t i = threadIdx.x; i < stages * Shared::queries(plan.rows) / 4; i += blockDim.x) reinterpret_cast<int*>(queries)[i] = 0;
    fence_async_proxy();
  }
  row.find(step);
  const int bound = row.begin(static_cast<int>(blockIdx.x) + lane % 2, gridDim.x), first = __shfl_sync(0xffffffffu, bound, 0);
  const int count = __shfl_sync(0xffffffffu, bound, 1) - first;

  if (warp >= readers + LONG_MERGERS) {
    const bool keys = warp == readers + LONG_MERGERS;
    const CUtensorMap& map = keys ? keys_map : values_map;
    const uint32_t buffers = tiles + (keys ? 0 : T::BYTES);
    uint64_t *const my_full = full + (keys ? 0 : stages), *const my_taken = taken + (keys ? 0 : stages);
    // Lane 2 i has tile i of a batch. Lanes 2 i and 2 i + 1 look up the tile's halves.
    PersistentTile mine{};
    int low = 0, high = 0;
    const __half* query = nullptr;
    const auto look_up = [&](int batch) {
      const int i = batch + lane / 2, half = lane % 2 * PAGE_UNIT;
      int place = 0;
      if (i < count) {
        int within = first + i;
        mine.seq = row.sequence(within), mine.context = row.contexts[mine.seq], mine.token = row.tokens[mine.seq];
        const DecodeRange<EXTRAS> range(mine.context, p);
        const int tiles_each = range.end - range.begin;
        const HeadRows heads(p, plan, within / tiles_each);
        mine.tile = range.begin + within % tiles_each, mine.rows = heads.rows, mine.head = heads.head;
        mine.last = mine.tile + 1 == range.end, mine.direct = range.num_kv_splits() <= plan.share;
        query = p.q + (static_cast<size_t>(mine.token) * p.num_heads + mine.head) * head_dim;
        const Pages pages(p.kv, step, step.sequence(mine.seq), mine.context, heads.kv_head);
        if (mine.context - mine.tile * KEYS > half) place = box_row(pages, mine.tile * KEYS + half);
      }
      low = place, high = __shfl_down_sync(0xffffffffu, place, 1);
    };
    const auto request_query = [&](int stage) {
      const uint32_t to = shared_of(queries + stage * Shared::queries(plan.rows));
      if (keys) copy_bytes(to, query, mine.rows * head_dim * static_cast<int>(sizeof(__half)), full + stage);
    };
    const auto request = [&](int stage) {
      if (keys) stage_tiles[stage] = mine;
      const int more = keys ? mine.rows * head_dim * static_cast<int>(sizeof(__half)) : 0;
      copy_boxes<D>(buffers + stage * static_cast<uint32_t>(Shared::tiles), map, low, high, mine.context - mine.tile * KEYS,
                    my_full + stage, more);
    };
    // Before the wait, copies tiles that hold no fresh row. The previous kernel may still be writing Q and the fresh rows.
    const int filled = min(stages, count);
    look_up(0);
    const bool fills = lane % 2 == 0 && lane / 2 < filled, early = (mine.tile + 1) * KEYS < mine.context;
    if (fills && early) request(lane / 2);
    wait_for_previous();
    if (fresh.qkv != nullptr) __syncthreads();
    if (fills && !early) request(lane / 2);
    if (fills) request_query(lane / 2);
    int stage = 0, parity = 0;
    for (int i = filled; i < count; ++i) {
      if (i % PERSISTENT_BATCH == 0) look_up(i);
      if (lane == i % PERSISTENT_BATCH * 2) {
        barrier_wait(my_taken + stage, parity);
        request(stage), request_query(stage);
      }
      __syncwarp();  // otherwise the lane of a later tile could mistake the barrier's phase
      if (++stage == stages) stage = 0, parity ^= 1;
    }
    return;
  }
  if (fresh.qkv == nullptr) {
    wait_for_previous();
  } else {
    // Finished rows pass through memory, from where the copies read them.
    row.template finish<PERSISTENT_TOGETHER<D>>(fresh, step, first, first + count, (readers + LONG_MERGERS) * WARP);
    fence_all_proxies();
    __syncthreads();
  }
  if (warp >= readers) {
    int slot = -1, parity = 1;
    const auto slot_at = [&] { return slots + slot * Shared::slot(plan.rows); };
    const auto tile_at = [&] { return reinterpret_cast<const PersistentTile*>(slot_at() + LongShared<D>::slot(plan.rows)); };
    LongMerger<D, EXTRAS> merger;
    merger.run(
        p, count, static_cast<int>(threadIdx.x) - readers * WARP,
        [&](int i) {
          slot = slot + 1 == readers ? 0 : slot + 1;
          parity ^= slot == 0;
          barrier_wait(ready + slot, parity);
          const float* const o = reinterpret_cast<const float*>(slot_at());
          const PersistentTile tile = *tile_at();
          return TileResult{o, reinterpret_cast<const float2*>(o + plan.rows * ROW), tile.rows, tile.tile, tile.last};
        },
        [&](int) {
          const PersistentTile tile = *tile_at();
          __half* const out = p.out + static_cast<size_t>(tile.token) * p.out_stride + tile.head * head_dim;
          MergeTarget target{tile.direct, tile.head, tile.rows, out};
          if (!target.direct) {
            const int first_kv_split = DecodeRange<EXTRAS>(tile.context, p).first_kv_split();
            target.leave(Partials(p, num_seqs, plan.max_kv_splits), p, plan, tile.seq, first_kv_split);
          }
          return target;
        },
        [&](int) {
          __syncwarp();
          if (lane == 0) barrier_arrive(left + slot);
        });
    return;
  }
  const ScoreScale scale(p);
  const int row0 = lane / 4, row1 = row0 + 8;
  char* const slot = slots + warp * Shared::slot(plan.rows);
  float *const o = reinterpret_cast<float*>(slot), *const tile_o = o + row0 * ROW;
  int stage = warp, parity = 0, use = 1;
  for (int i = warp; i < count; i += readers) {
    const uint32_t keys = tiles + stage * static_cast<uint32_t>(Shared::tiles), values = keys + T::BYTES;
    barrier_wait(full + stage, parity);
    const int context = stage_tiles[stage].context, tile = stage_tiles[stage].tile, rows = stage_tiles[stage].rows;
    const uint4 part = reinterpret_cast<const uint4*>(stage_tiles + stage)[lane % 2];
    // Absent rows use the row's span, too: their queries do no harm, and their results are not stored.
    const Span seen = visible<EXTRAS>(context - 1, p), span[2] = {seen, seen};
    uint32_t q[D / 16][4];
    load_rows<D>(q, p, true, reinterpret_cast<const __half*>(queries + stage * Shared::queries(plan.rows)), head_dim, rows, lane);
    float maximum[2], sum[2];
    uint32_t probabilities[KEYS / 16][4];
    attend_keys<D, 1, T>(probabilities, maximum, q, keys, span, tile, scale, TeamPlace{0, lane, nullptr}, [] {}, [&] {
      __syncwarp();
      if (lane == 0) barrier_arrive(taken + stage);
    });
    tile_sums(sum, probabilities);
    barrier_wait(left + warp, use);
    if (lane < 2) reinterpret_cast<uint4*>(slot + LongShared<D>::slot(plan.rows))[lane] = part;
    if (lane % 4 == 0) put_rows(reinterpret_cast<float2*>(o + plan.rows * ROW) + row0, 8, maximum, sum, row0, rows);
    barrier_wait(full + stages + stage, parity);
    if (context - tile * KEYS < KEYS) {
      clear_keys<D, WARP>(values, context - tile * KEYS, lane);
      __syncwarp();
      fence_async_proxy();
    }
    tile_values<D, D / 8, T>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
      const int dim = n * 8 + lane % 4 * 2;
      if (row0 < rows) *reinterpret_cast<float2*>(tile_o + dim) = make_float2(acc[0], acc[1]);
      if (row1 < rows) *reinterpret_cast<float2*>(tile_o + 8 * ROW + dim) = make_float2(acc[2], acc[3]);
    });
    __syncwarp();
    if (lane == 0) barrier_arrive(ready + warp), barrier_arrive(taken + stages + stage);
    use ^= 1, stage += readers;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
}

}  // namespace pen
