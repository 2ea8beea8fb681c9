// Assigns rows and keys to the blocks of general attention, and partial results to places in the workspace.
#pragma once

#include "general.h"
#include "tile.cuh"

namespace pen {

constexpr int PIECE = 64;                         // elements: tiles are fetched and multiplied in pieces of [KEYS, PIECE]
constexpr int GENERAL_TEAM = 4;                   // warps that share sixteen rows
constexpr int GENERAL_BUFFERS = 4;                // most buffers of a ring
constexpr int GENERAL_VALUES = 512;               // most elements of the values that a block computes
constexpr int PIECE_BYTES = Tile<PIECE>::BYTES;   // a piece of K or V
constexpr int QUERY_PIECE_BYTES = PIECE_BYTES / KEYS * ROWS;
constexpr int EXCHANGE_BYTES = KEYS / 16 * WARP * 16 + GENERAL_TEAM * ROWS * 4;  // fragments of P, and the largest scores

// How the host spreads a step over blocks. No bit of the result depends on it.
struct GeneralPlan {
  int width, buffers;   // pieces per buffer, and buffers of the ring
  int rows;             // rows per block
  int row_blocks;       // most row blocks per sequence and K/V head
  int splits;           // blocks that share a context
  int slices;           // blocks that share a row's values, GENERAL_VALUES elements each
  int max_parts;        // most parts that a row sees
  int partial_rows;     // rows that have partial results
  bool by_sequence;     // partial results are stored per sequence of the view, each of which has one row; otherwise per row of the step
  bool shared_values;   // values are read from the tiles of the keys
  bool wide_query;      // q can be read 16 bytes at a time
  bool even_out;        // out can be written two elements at a time
  bool by_tile;         // blocks that share a context leave one result per tile; otherwise one per KV split
  __host__ __device__ int part_tiles() const { return by_tile ? 1 : KV_SPLIT_TILES; }
};

__device__ __forceinline__ Span general_visible(const GeneralAttention& p, int position, int context) {
  const int last = p.bidirectional ? context : position + 1;
  if (p.window == 0) return {0, last};
  const int window = static_cast<int>(min(p.window, 0x3fffffffu)), half = window / 2;
  switch (p.window_kind) {
    case Window::CHUNKED: return {position / window * window, last};
    case Window::SYMMETRIC: return {max(position - half, 0), min(last, position + half + 1)};
    default: return {max(position + 1 - window, 0), last};
  }
}

// The rows of one sequence and K/V head: row = token · group + head of the group.
struct GeneralRows {
  int context, token0, tokens, group, count, kv_head;
  __device__ __forceinline__ GeneralRows(const GeneralAttention& p, const StepView& step, int seq, int kv_head) : kv_head(kv_head) {
    context = step.context_lens[seq], group = p.num_heads / p.kv.num_kv_heads;
    token0 = context == 0 ? 0 : step.cu_seqlens_q[seq];
    tokens = context == 0 ? 0 : step.cu_seqlens_q[seq + 1] - token0;
    count = tokens * group;
  }
  __device__ __forceinline__ int token(int row) const { return token0 + row / group; }
  __device__ __forceinline__ int head(int row) const { return kv_head * group + row % group; }
  __device__ __forceinline__ int position(int row) const { return context - tokens + row / group; }
  __device__ __forceinline__ Span span(const GeneralAttention& p, int row) const {
    return row < count ? general_visible(p, position(row), context) : Span{0, 0};
  }
  // The keys that any of rows [first, first + rows) sees. Both ends ascend with the position.
  __device__ __forceinline__ Span spans(const GeneralAttention& p, int first, int rows) const {
    if (first >= count) return {0, 0};
    return {span(p, first).begin, span(p, min(first + rows, count) - 1).end};
  }
};

// The parts of a context for which blocks may leave results: KV splits or tiles [begin, end).
struct Parts {
  int begin, end;
  __device__ __forceinline__ Parts(const GeneralPlan& plan, const Span& span)
      : begin(span.begin / (plan.part_tiles() * KEYS)), end(ceil_div(span.end, plan.part_tiles() * KEYS)) {}
  __device__ __forceinline__ int count() const { return end - begin; }
};

// Whether one block covers everything that its rows see, and so writes the output.
__device__ __forceinline__ bool general_direct(const GeneralPlan& plan, const Parts& block) {
  return plan.splits == 1 || block.count() <= 1;
}

// Partial results per part, numbered from the first part that a row sees.
struct GeneralPartials {
  float* o;     // [partial_rows, num_heads, max_parts, stride]
  float2* row;  // [partial_rows, num_heads, max_parts] maximum and sum
  int stride, num_heads, max_parts;
  bool by_sequence;
  __host__ __device__ static constexpr int padded(int value_dim) { return (value_dim + 3) / 4 * 4; }
  __device__ GeneralPartials(const GeneralAttention& p, const GeneralPlan& plan)
      : o(p.workspace),
        stride(padded(p.value_dim)),
        num_heads(p.num_heads),
        max_parts(plan.max_parts),
        by_sequence(plan.by_sequence) {
    row = reinterpret_cast<float2*>(o + static_cast<size_t>(plan.partial_rows) * num_heads * max_parts * stride);
  }
  // Index of a row's first part. `seq`: number of its sequence in the view.
  __device__ __forceinline__ size_t at(const GeneralRows& rows, int row, int seq) const {
    const size_t place = by_sequence ? seq : rows.token(row);
    return (place * num_heads + rows.head(row)) * max_parts;
  }
};

// Four elements of a row, and the maximum and sum they are relative to.
struct MergeState {
  Running running;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  __device__ __forceinline__ void add(float2 row, float4 x) {
    float keep, add;
    merge(running, row.x, row.y, keep, add);
    o.x = merged(o.x, x.x, keep, add), o.y = merged(o.y, x.y, keep, add);
    o.z = merged(o.z, x.z, keep, add), o.w = merged(o.w, x.w, keep, add);
  }
};

inline size_t general_partial_bytes(int rows, int num_heads, int value_dim, int parts) {
  return static_cast<size_t>(rows) * num_heads * parts * (GeneralPartials::padded(value_dim) + 2) * sizeof(float);
}
inline size_t general_partial_bytes(const GeneralPlan& plan, const GeneralAttention& p) {
  return general_partial_bytes(plan.partial_rows, p.num_heads, p.value_dim, plan.max_parts);
}
// Merges the partial results of rows that several blocks share (general.cu).
void merge_general(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralPlan& plan);

}  // namespace pen
