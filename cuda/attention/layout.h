// The layout of attention's kernels, from which choose.cu decides: the sizes of tiles and of blocks, and how blocks divide their shared
// memory. Also compiled by the host's compiler.
#pragma once

#include "../device/numbers.h"
#include "../device/shape.h"

namespace pen {

constexpr int KEYS = 64;         // keys of a tile
constexpr int KV_SPLIT = 8 * KEYS;  // keys whose tiles are merged with each other first
constexpr int KV_SPLIT_TILES = KV_SPLIT / KEYS;
constexpr int PAGE_UNIT = 32;    // pages hold a multiple of this many keys, so half a tile lies in one page
constexpr int ROWS = 16;         // query rows of a tensor-core product
constexpr int BOX_DIM = 64;      // elements of a key in a box

// Bytes of a float16, a float and a row's maximum and sum.
constexpr size_t HALF_BYTES = 2, FLOAT_BYTES = 4, ROW_BYTES = 8, BARRIER_BYTES = 8;

template <int D>
struct TileSize {
  static_assert(D % 16 == 0 && D <= 256, "head sizes are padded to a multiple of 16");
  static constexpr int VECTORS = D / 8;
  static constexpr bool SWIZZLED = D % 64 == 0;
  static constexpr int STRIDE = SWIZZLED ? VECTORS : VECTORS | 1;
  static constexpr int BYTES = KEYS * STRIDE * 16;
};
template <int D>
struct BoxTileSize {
  static_assert(D % BOX_DIM == 0, "columns of 64 elements");
  static constexpr int VECTORS = D / 8;
  static constexpr int BYTES = KEYS * D * 2;
};

// --- one row per sequence ---

// How the host spreads a step over blocks. No bit of the result depends on it.
struct DecodePlan {
  int buffers;          // tiles of K or V that a team holds: 1, 2 or 4; in persistent.cuh, the stages of a block's ring
  int share;            // KV splits that one block takes; a sequence with no more goes to one block, which writes the output; in
                        // persistent.cuh a block may take more, and this only bounds what is kept whole
  int max_kv_splits;    // most KV splits per sequence; beyond `share`, blocks leave the results of their KV splits in the workspace
  int rows;             // heads of the group per block, at most ROWS; larger groups take several blocks
};

// decode.cuh: the most teams of a block, for teams of one warp and of four.
template <int D, int TEAM>
constexpr int DECODE_TEAMS = TEAM == 1 ? 8 : D > 128 ? 3 : 4;

// Rings, each team's partial O, O of the current KV split and of all KV splits, maxima and sums of the same rows, fresh Q.
template <int D>
struct DecodeShared {
  static constexpr int ROW = D + 8;  // floats: eight rows fall into different banks
  PEN_ANYWHERE static constexpr size_t partial(int rows) { return FLOAT_BYTES * rows * ROW; }
  PEN_ANYWHERE static constexpr size_t per_team(int buffers, int rows) {
    return size_t(buffers) * TileSize<D>::BYTES + partial(rows) + ROW_BYTES * ROWS;
  }
  // The bytes that the warps of a team of four exchange: fragments of P, and the rows' largest scores.
  static constexpr size_t exchange = KEYS / 16 * WARP * 16 + KEYS / 16 * ROWS * 4;
  PEN_ANYWHERE static constexpr size_t queries(int rows) { return HALF_BYTES * (rows + 2) * ROW; }
  PEN_ANYWHERE static constexpr size_t state(int rows) { return 2 * partial(rows) + 4 * ROW_BYTES * ROWS; }
  PEN_ANYWHERE static constexpr size_t fixed(int rows) { return state(rows) + queries(rows); }
};

// cluster.cuh
constexpr int PORTABLE_TILES = 8;  // largest cluster that every device allows [blocks]
constexpr int CLUSTER_TILES = 16;  // largest cluster overall [blocks]
constexpr int CLUSTER_TEAM = 4;    // warps that share the tile
constexpr int CLUSTER_WARPS = 16;  // most warps of a block, all of which finish fresh rows and merge

template <int D>
struct ClusterShared {
  static constexpr int ROW = DecodeShared<D>::ROW;
  static constexpr size_t tiles = 2 * size_t(TileSize<D>::BYTES);
  static constexpr size_t exchange = tiles + 16;  // after the barrier
  static constexpr size_t queries = exchange + DecodeShared<D>::exchange;
  PEN_ANYWHERE static constexpr size_t partial_rows(int rows) { return queries + round_up(DecodeShared<D>::queries(rows), 16); }
  PEN_ANYWHERE static constexpr size_t partial(int rows, int blocks) { return partial_rows(rows) + ROW_BYTES * ROWS * blocks; }
  PEN_ANYWHERE static constexpr size_t bytes(int rows, int blocks) {
    return partial(rows, blocks) + DecodeShared<D>::partial(rows) * blocks;
  }
};

// long.cuh
constexpr int LONG_MERGERS = 4;  // warps that merge
constexpr int LONG_BUFFERS = 2;  // buffers of a ring: K of a tile, and its V
constexpr int LONG_SLOTS = 2;    // results per warp that wait to be merged

// The most reading warps of a block that shared memory allows.
template <int D>
constexpr int LONG_READERS = D == 64 ? 10 : D == 128 ? 6 : 3;

// Rings, results in slots, barriers, fresh Q.
template <int D>
struct LongShared {
  static constexpr int ROW = DecodeShared<D>::ROW;
  static constexpr size_t ring = size_t(LONG_BUFFERS) * BoxTileSize<D>::BYTES;
  static constexpr size_t barriers = BARRIER_BYTES * (LONG_BUFFERS + 2 * LONG_SLOTS);
  PEN_ANYWHERE static constexpr size_t slot(int rows) { return FLOAT_BYTES * rows * ROW + ROW_BYTES * ROWS; }
  PEN_ANYWHERE static constexpr size_t per_reader(int rows) { return ring + LONG_SLOTS * slot(rows) + barriers; }
  PEN_ANYWHERE static constexpr size_t fixed(int rows) { return DecodeShared<D>::queries(rows) + 1024; }  // to align the rings
};

// persistent.cuh
constexpr int PERSISTENT_COPIERS = 2;          // warps that request copies: one for K and Q, one for V
constexpr int PERSISTENT_BATCH = WARP / 2;     // tiles whose pages such a warp looks up together, with two lanes each
constexpr int PERSISTENT_STAGES = PERSISTENT_BATCH;  // most stages of a block's ring: one look-up fills them all
constexpr int LIST_SEQUENCES = WARP * WARP;  // most sequences of a step: one warp sums the results of all warps
constexpr size_t PERSISTENT_TILE_BYTES = 32;  // of a PersistentTile

// The most reading warps of a block.
template <int D>
constexpr int PERSISTENT_READERS = D <= 128 ? 6 : 3;
// Parts of fresh heads that a thread finishes together, as many as registers allow.
template <int D>
constexpr int PERSISTENT_TOGETHER = D <= 128 ? 4 : 2;

// Per stage K, V, Q, a PersistentTile and four barriers; per reader a slot with a tile's result, a PersistentTile and two barriers; and the
// sequences' numbers. The number of stages is a multiple of the readers, so that only one reader waits for a stage.
template <int D>
struct PersistentShared {
  static constexpr size_t tiles = 2 * size_t(BoxTileSize<D>::BYTES);
  PEN_ANYWHERE static constexpr size_t queries(int rows) { return HALF_BYTES * rows * D; }
  PEN_ANYWHERE static constexpr size_t slot(int rows) { return LongShared<D>::slot(rows) + PERSISTENT_TILE_BYTES; }
  PEN_ANYWHERE static constexpr size_t per_stage(int rows) { return tiles + queries(rows) + PERSISTENT_TILE_BYTES + 4 * BARRIER_BYTES; }
  PEN_ANYWHERE static constexpr size_t per_reader(int rows) { return slot(rows) + 2 * BARRIER_BYTES; }
  static constexpr size_t alignment = 1024;  // bytes, for the tiles
  PEN_ANYWHERE static constexpr size_t fixed(int num_seqs) { return sizeof(int) * (3 * num_seqs + 1 + LIST_SEQUENCES / WARP) + alignment; }
};

// --- more rows per sequence ---

// prefill.cuh
constexpr int PREFILL_WARPS = 8;    // most warps of a block
constexpr int PREFILL_BUFFERS = 4;  // most tiles of a ring

// How the host spreads a step over blocks. No bit of the result depends on it.
struct PrefillPlan {
  int buffers;  // tiles of the ring: 1 to PREFILL_BUFFERS
};

template <int D>
struct PrefillShared {
  static constexpr bool QUERY = D > 128;  // registers then hold only O
  static constexpr size_t QUERY_BYTES = QUERY ? ROWS * D * 2 : 0;  // per warp
  PEN_ANYWHERE static constexpr size_t bytes(int warps, int buffers) {
    return size_t(buffers) * TileSize<D>::BYTES + warps * QUERY_BYTES;
  }
};

// prefill_hopper.cuh
constexpr int WIDE_WARPGROUPS = 2;
constexpr int WIDE_ROWS = 64;  // rows of a warpgroup
constexpr int WIDE_BLOCK_ROWS = WIDE_WARPGROUPS * WIDE_ROWS;

// box_state.cuh
constexpr int STATE_BOXES = 4;                              // boxes of the values
constexpr int STATE_BOX_BYTES = KEYS * BOX_DIM * 2;         // bytes of one box of a tile
constexpr int STATE_THREADS = 2 * 4 * WARP;                 // threads of a block that have a state
// Floats of the workspace for a block's state before the current KV split: O, and a maximum and a sum for each of a thread's rows.
constexpr int STATE_BEFORE = STATE_THREADS * (STATE_BOXES * BOX_DIM / 2 + 4);
// Workspace with which these kernels take contexts of any length, for one block per multiprocessor [bytes].
inline size_t state_workspace(const DeviceShape& device) { return FLOAT_BYTES * STATE_BEFORE * device.multiprocessors; }

}  // namespace pen
