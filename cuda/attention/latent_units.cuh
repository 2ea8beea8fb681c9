// The units of work that a block of latent.cuh takes one after the other, and its shared memory.
#pragma once

#include "../device/warpgroup.cuh"
#include "boxes.cuh"
#include "box_state.cuh"
#include "general_rows.cuh"
#include "latent.h"

namespace pen {

static_assert(sizeof(Ring) == RING_BYTES, "the barriers of a ring");

// The units of a step. A unit is plan.rows (token, head) rows of a sequence and K/V head, with one of plan.splits parts of their context.
struct LatentUnits {
  const GeneralAttention& p;
  const GeneralPlan& plan;
  const StepView& step;
  int* before;  // [num_seqs + 1] units of all earlier sequences, in shared memory
  int* sums;    // [LATENT_SEQUENCES / WARP]

  __device__ __forceinline__ int each() const { return plan.row_blocks * plan.splits * p.kv.num_kv_heads; }
  // Sequences of one row have the same number of units, so they need no arrays.
  __device__ __forceinline__ bool equal() const { return plan.by_sequence; }
  // Fills the arrays, by the whole block.
  __device__ __forceinline__ void count() const {
    if (equal()) return;
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    for (int first = warp * WARP; first < step.num_seqs; first += warps * WARP) {
      int units = 0;
      if (first + lane < step.num_seqs) {
        units = ceil_div(GeneralRows(p, step, step.sequence(first + lane), 0).count, LATENT_ROWS) * plan.splits * p.kv.num_kv_heads;
      }
      units = warp_scan(units);
      if (first + lane < step.num_seqs) before[first + lane + 1] = units;
      if (lane == WARP - 1) sums[first / WARP] = units;
    }
    __syncthreads();
    const int sum = warp_scan(lane < ceil_div(step.num_seqs, WARP) ? sums[lane] : 0);
    for (int first = warp * WARP; first < step.num_seqs; first += warps * WARP) {
      const int others = __shfl_sync(0xffffffffu, sum, max(first / WARP - 1, 0));
      if (first > 0 && first + lane < step.num_seqs) before[first + lane + 1] += others;
    }
    if (threadIdx.x == 0) before[0] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ int all() const { return equal() ? step.num_seqs * each() : before[step.num_seqs]; }
  // Finds the number in the view of a unit's sequence, and the number of that sequence's first unit.
  __device__ __forceinline__ int sequence(int unit, int& first) const {
    if (equal()) {
      first = unit / each() * each();
      return unit / each();
    }
    int seq = 0, end = step.num_seqs;
    while (end - seq > 1) {
      const int middle = (seq + end) / 2;
      if (before[middle] <= unit) seq = middle; else end = middle;
    }
    first = before[seq];
    return seq;
  }
};

struct LatentUnit {
  int number;      // within its sequence and K/V head
  int place, seq;  // the sequence's number in the view, and in the step
  GeneralRows rows;
  int first_row, first_tile, end_tile;
  bool direct;  // covers everything that its rows see, and writes the output

  __device__ __forceinline__ LatentUnit(const LatentUnits& units, int unit)
      : place(units.sequence(unit, number)),
        seq(units.step.sequence(place)),
        rows(units.p, units.step, seq, (unit - number) % units.p.kv.num_kv_heads) {
    number = (unit - number) / units.p.kv.num_kv_heads;
    const int row_blocks = max(ceil_div(rows.count, LATENT_ROWS), 1);
    // Rows with the longest contexts come first, because they take the most time.
    first_row = (row_blocks - 1 - number % row_blocks) * LATENT_ROWS;
    const Span span = rows.spans(units.p, first_row, LATENT_ROWS);
    const Parts kv_splits(units.plan, span);
    direct = general_direct(units.plan, kv_splits);
    const int share = direct ? kv_splits.count() : ceil_div(kv_splits.count(), units.plan.splits);
    const int first = kv_splits.begin + number / row_blocks * share, end = min(first + share, kv_splits.end);
    first_tile = first * KV_SPLIT_TILES, end_tile = max(first_tile, min(ceil_div(span.end, KEYS), end * KV_SPLIT_TILES));
  }
};

#ifdef PEN_HOPPER_DEVICE
// Parts of a tile that are released at different times: the values of each warpgroup, and what only the scoring warpgroup reads.
constexpr int SCORED = LATENT_WARPGROUPS, LATENT_PARTS = LATENT_WARPGROUPS + 1;
struct LatentBoxes {
  int first, end;
};
template <class Shape>
__device__ __forceinline__ constexpr LatentBoxes latent_boxes(int part) {
  if (part < LATENT_WARPGROUPS) return {part * STATE_BOXES, (part + 1) * STATE_BOXES};
  return {Shape::SEPARATE ? 0 : LATENT_WARPGROUPS * STATE_BOXES, Shape::BOXES};
}

// The tiles of all units of a block, numbered consecutively. Latent queries arrive in one piece per unit.
template <class Shape>
struct LatentRing {
  using Shared = LatentShared<Shape>;
  Ring& barriers;
  uint32_t queries;
  static constexpr int QUERIES = 2 * LATENT_PARTS;
  static_assert(QUERIES < 8, "a ring's barriers");

  // Called by the whole block.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i <= QUERIES; ++i) {
        barrier_init(&barriers.full[i], 1), barrier_init(&barriers.empty[i], i == QUERIES ? LATENT_WARPGROUPS * 4 : 4);
      }
      fence_barriers();
    }
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t keys(int n) const { return queries + Shared::tiles + (Shape::SEPARATE ? 0 : n % 2 * Shared::TILE); }
  __device__ __forceinline__ uint32_t values(int n) const { return Shape::SEPARATE ? queries + Shared::tiles + Shared::TILE : keys(n); }
  __device__ __forceinline__ void wait(int n, int part) const { barrier_wait(&barriers.full[slot(n, part)], phase(n) % 2); }
  // Called by the four warps that read the part last.
  __device__ __forceinline__ void leave(int n, int part) const {
    if (threadIdx.x % WARP == 0) barrier_arrive(&barriers.empty[slot(n, part)]);
  }
  // Waits for the queries of the block's unit number `unit`. Every warp releases them once.
  __device__ __forceinline__ void wait_queries(int unit) const { barrier_wait(&barriers.full[QUERIES], unit % 2); }
  __device__ __forceinline__ void leave_queries() const {
    if (threadIdx.x % WARP == 0) barrier_arrive(&barriers.empty[QUERIES]);
  }
  __device__ __forceinline__ void fill(int n, int part, const CUtensorMap& map, int low, int high, int num_keys) const {
    const LatentBoxes boxes = latent_boxes<Shape>(part);
    uint64_t* const full = &barriers.full[slot(n, part)];
    barrier_wait(&barriers.empty[slot(n, part)], phase(n) % 2 ^ 1);
    const int halves = num_keys > PAGE_UNIT ? 2 : 1;
    const uint32_t to = part == SCORED ? keys(n) : values(n);
    expect_bytes(full, halves * (boxes.end - boxes.first) * BOX_BYTES);
    for (int x = boxes.first; x < boxes.end; ++x) {
      for (int half = 0; half < halves; ++half) {
        copy_box(to + x * STATE_BOX_BYTES + half * BOX_BYTES, map, x * BOX_DIM, half == 0 ? low : high, full);
      }
    }
  }
  __device__ __forceinline__ void fill_queries(int unit, const CUtensorMap& map, int row) const {
    barrier_wait(&barriers.empty[QUERIES], unit % 2 ^ 1);
    expect_bytes(&barriers.full[QUERIES], Shared::TILE);
    for (int x = 0; x < Shape::BOXES; ++x) copy_box(queries + x * STATE_BOX_BYTES, map, x * BOX_DIM, row, &barriers.full[QUERIES]);
  }

 private:
  // How often the buffer of tile n was filled before.
  __device__ __forceinline__ static int phase(int n) { return Shape::SEPARATE ? n : n / 2; }
  __device__ __forceinline__ static int slot(int n, int part) { return Shape::SEPARATE ? part : n % 2 * LATENT_PARTS + part; }
};

// Fetches the units' tiles and queries, by one warp. Its lanes look up the halves of several tiles at once.
template <class Shape>
__device__ __forceinline__ void fetch_latent(const LatentUnits& units, const LatentRing<Shape>& ring, const CUtensorMap& queries,
                                             const CUtensorMap& keys, const CUtensorMap& values) {
  const int lane = threadIdx.x % WARP;
  int n = 0, number = 0;
  for (int wave = 0, i; (i = unit_of_wave(wave)) < units.all(); ++wave) {
    const LatentUnit unit(units, i);
    if (unit.first_tile >= unit.end_tile) continue;
    if (!Shape::SEPARATE && lane == 0) ring.fill_queries(number, queries, unit.rows.token0 * units.p.num_heads + unit.first_row);
    ++number;
    const KvView rows{nullptr, nullptr, 0, units.p.kv.block_size, units.p.kv.num_kv_heads, 1};
    const Pages pages(rows, units.step, unit.seq, unit.rows.context, unit.rows.kv_head);
    int row = 0;
    for (int tile = unit.first_tile; tile < unit.end_tile; ++tile, ++n) {
      const int half = (tile - unit.first_tile) % (WARP / 2) * 2;
      if (half == 0) {
        const int key = tile * KEYS + lane * PAGE_UNIT;
        row = key < pages.context ? box_row(pages, key) : 0;
      }
      const int low = __shfl_sync(0xffffffffu, row, half), high = __shfl_sync(0xffffffffu, row, half + 1);
      if (lane == 0) {
        const int num_keys = pages.context - tile * KEYS;
        if (Shape::SEPARATE) ring.fill(n, SCORED, keys, low, high, num_keys);
        for (int part = 0; part < LATENT_WARPGROUPS; ++part) ring.fill(n, part, values, low, high, num_keys);
        if (!Shape::SEPARATE) ring.fill(n, SCORED, keys, low, high, num_keys);
      }
      __syncwarp();
    }
  }
}
#endif

}  // namespace pen
