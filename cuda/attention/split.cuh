// How a decode step is spread over blocks and teams, and where these leave partial results.
#pragma once

#include "tile.cuh"

namespace pen {

// How the host spreads a step over blocks. No bit depends on it.
struct DecodePlan {
  int buffers;       // tiles of K or V that a team holds: 1 or 2
  int direct_tiles;  // up to this many, one block takes all of a sequence and writes the output
  int split_tiles;   // beyond, each block takes this many and leaves partial results in the workspace
  int max_tiles;     // of a sequence
  int rows;          // of a block: heads of the group, at most ROWS; larger groups take several blocks
};

// Shared memory of a block: rings; each team's partial O; the merged O; maxima and sums of the teams' rows and of the merged rows; fresh Q.
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
  __host__ __device__ static constexpr size_t fixed(int rows) { return partial(rows) + 2 * sizeof(float2) * ROWS + queries(rows); }
};

// The heads of a block: [head, head + rows) of one sequence, which share a K/V head.
struct BlockHeads {
  int seq, kv_head, head, rows;
  __device__ __forceinline__ BlockHeads(const Attention& p, const DecodePlan& plan) : seq(blockIdx.z) {
    const int group = p.num_heads / p.kv.num_kv_heads, row_blocks = ceil_div(group, plan.rows), row_block = blockIdx.y % row_blocks;
    kv_head = blockIdx.y / row_blocks, head = kv_head * group + row_block * plan.rows, rows = min(group - row_block * plan.rows, plan.rows);
  }
};

// Partial results in the workspace, tiles counted from the first that a sequence's row sees.
struct Partials {
  float* o;     // [num_seqs, num_heads, max_tiles, head_dim]
  float2* row;  // [num_seqs, num_heads, max_tiles] maximum and sum
  __device__ Partials(const Attention& p, int num_seqs, int max_tiles)
      : o(p.workspace),
        row(reinterpret_cast<float2*>(p.workspace + static_cast<size_t>(num_seqs) * p.num_heads * max_tiles * p.kv.head_dim)) {}
};

// The tiles that the one row of a sequence sees: [first, first + count), none for padding and for sequences with more rows.
template <bool EXTRAS>
struct DecodeRange {
  int context, first, count;
  __device__ DecodeRange(const StepView& step, int seq, const Attention& p) : context(step.context_lens[seq]), first(0), count(0) {
    if (context == 0 || step.cu_seqlens_q[seq + 1] - step.cu_seqlens_q[seq] != 1) return;
    first = visible<EXTRAS>(context - 1, p).begin / KEYS;
    count = ceil_div(context, KEYS) - first;
  }
};

// The tiles that one block takes: [begin, end), counted from the first that the row sees. `direct`: the first block takes all of them.
struct BlockTiles {
  bool direct;
  int begin, end;
  template <class Range>
  __device__ __forceinline__ BlockTiles(const Range& range, const DecodePlan& plan) : direct(range.count <= plan.direct_tiles) {
    begin = direct ? 0 : min(static_cast<int>(blockIdx.x) * plan.split_tiles, range.count);
    end = direct ? (blockIdx.x == 0 ? range.count : 0) : min(begin + plan.split_tiles, range.count);
  }
};

}  // namespace pen
