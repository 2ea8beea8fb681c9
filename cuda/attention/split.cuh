// The part of a decode step that a block computes, and the places of partial results.
#pragma once

#include "tile.cuh"

namespace pen {

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
