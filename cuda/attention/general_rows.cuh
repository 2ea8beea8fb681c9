// Assigns rows and keys to the blocks of general attention, and gives partial results their positions in the workspace.
#pragma once

#include "general.h"
#include "tile.cuh"

namespace pen {

// The keys that the row at `position` sees.
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
  const uint32_t* runs;
  __device__ __forceinline__ GeneralRows(const GeneralAttention& p, const StepView& step, int seq, int kv_head)
      : kv_head(kv_head), runs(p.run_sight == RunSight::CAUSAL ? nullptr : step.runs) {
    context = step.context_lens[seq], group = p.num_heads / p.kv.num_kv_heads;
    token0 = context == 0 ? 0 : step.cu_seqlens_q[seq];
    tokens = context == 0 ? 0 : step.cu_seqlens_q[seq + 1] - token0;
    count = tokens * group;
  }
  __device__ __forceinline__ int token(int row) const { return token0 + row / group; }
  __device__ __forceinline__ int head(int row) const { return kv_head * group + row % group; }
  __device__ __forceinline__ int position(int row) const { return context - tokens + row / group; }
  __device__ __forceinline__ Span span(const GeneralAttention& p, int row) const {
    if (row >= count) return {0, 0};
    Span seen = general_visible(p, position(row), context);
    if (runs == nullptr) return seen;
    const int begin = static_cast<int>(runs[2 * token(row)]), end = static_cast<int>(runs[2 * token(row) + 1]);
    if (begin == end) return seen;
    if (p.run_sight == RunSight::WHOLE) seen.begin = min(seen.begin, begin);
    return {seen.begin, max(seen.end, end)};
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
    const size_t slot = by_sequence ? seq : rows.token(row);
    return (slot * num_heads + rows.head(row)) * max_parts;
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

}  // namespace pen
