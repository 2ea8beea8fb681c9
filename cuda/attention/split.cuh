// Spreads a decode step over blocks and teams, and places their partial results.
#pragma once

#include "tile.cuh"

namespace pen {

// How the host spreads a step over blocks. No bit of the result depends on it.
struct DecodePlan {
  int buffers;          // tiles of K or V that a team holds: 1, 2 or 4; in persistent.cuh, the stages of a block's ring
  int share;            // KV splits that one block takes; a sequence with no more goes to one block, which writes the output; in
                        // persistent.cuh a block may take more, and this only bounds what is kept whole
  int max_kv_splits;    // most KV splits per sequence; beyond `share`, blocks leave the results of their KV splits in the workspace
  int rows;             // heads of the group per block, at most ROWS; larger groups take several blocks
};

// Shared memory of a block: rings, each team's partial O, O of the current KV split and of all KV splits, maxima and sums of the same rows,
// fresh Q.
template <int D>
struct DecodeShared {
  static constexpr int ROW = D + 8;  // floats: eight rows fall into different banks
  __host__ __device__ static constexpr size_t partial(int rows) { return sizeof(float) * static_cast<size_t>(rows) * ROW; }
  __host__ __device__ static constexpr size_t per_team(int buffers, int rows) {
    return static_cast<size_t>(buffers) * Tile<D>::BYTES + partial(rows) + sizeof(float2) * ROWS;
  }
  // What the warps of a team of four exchange: fragments of P, and the rows' largest scores.
  static constexpr size_t exchange = KEYS / 16 * WARP * 16 + KEYS / 16 * ROWS * 4;
  __host__ __device__ static constexpr size_t queries(int rows) { return sizeof(__half) * static_cast<size_t>(rows + 2) * ROW; }
  __host__ __device__ static constexpr size_t state(int rows) { return 2 * partial(rows) + 4 * sizeof(float2) * ROWS; }
  __host__ __device__ static constexpr size_t fixed(int rows) { return state(rows) + queries(rows); }
};

// Heads [head, head + rows), which share a K/V head: part number `index` of num_kv_heads · ceil(group / plan.rows).
struct HeadRows {
  int kv_head, head, rows;
  __device__ __forceinline__ HeadRows(const Attention& p, const DecodePlan& plan, int index) {
    const int group = p.num_heads / p.kv.num_kv_heads, row_blocks = ceil_div(group, plan.rows), row_block = index % row_blocks;
    kv_head = index / row_blocks, head = kv_head * group + row_block * plan.rows, rows = min(group - row_block * plan.rows, plan.rows);
  }
};
// A block's heads, and its sequence.
struct BlockHeads : HeadRows {
  int seq;
  __device__ __forceinline__ BlockHeads(const Attention& p, const StepView& step, const DecodePlan& plan)
      : HeadRows(p, plan, static_cast<int>(blockIdx.y)), seq(step.sequence(blockIdx.z)) {}
};

// Partial results in the workspace, one per KV split, numbered from the first one that a sequence's row sees. Sequences are numbered as in
// the view.
struct Partials {
  float* o;     // [num_seqs, num_heads, max_kv_splits, head_dim]
  float2* row;  // [num_seqs, num_heads, max_kv_splits] maximum and sum
  __device__ Partials(const Attention& p, int num_seqs, int max_kv_splits)
      : o(p.workspace),
        row(reinterpret_cast<float2*>(p.workspace + static_cast<size_t>(num_seqs) * p.num_heads * max_kv_splits * p.kv.head_dim)) {}
};

// The tiles [begin, end) that a sequence's single row sees. Empty for padding and for sequences with more rows.
template <bool EXTRAS>
struct DecodeRange {
  int context, begin = 0, end = 0;
  __device__ DecodeRange(const StepView& step, int seq, const Attention& p) : context(step.context_lens[seq]) {
    if (context != 0 && step.cu_seqlens_q[seq + 1] - step.cu_seqlens_q[seq] == 1) find(p);
  }
  __device__ DecodeRange(int context, const Attention& p) : context(context) { find(p); }
  __device__ __forceinline__ void find(const Attention& p) {
    begin = visible<EXTRAS>(context - 1, p).begin / KEYS;
    end = ceil_div(context, KEYS);
  }
  __device__ __forceinline__ int first_kv_split() const { return begin / KV_SPLIT_TILES; }
  __device__ __forceinline__ int num_kv_splits() const { return ceil_div(end, KV_SPLIT_TILES) - first_kv_split(); }
};

// The tiles [begin, end) that one block takes. `direct`: the first block takes all of them.
struct BlockTiles {
  bool direct;
  int begin, end;
  template <class Range>
  __device__ __forceinline__ BlockTiles(const Range& range, const DecodePlan& plan) : direct(range.num_kv_splits() <= plan.share) {
    const int kv_split = range.first_kv_split() + static_cast<int>(blockIdx.x) * plan.share;
    begin = max(range.begin, kv_split * KV_SPLIT_TILES), end = min(range.end, (kv_split + plan.share) * KV_SPLIT_TILES);
  }
  __device__ __forceinline__ int count() const { return max(end - begin, 0); }
};

}  // namespace pen
