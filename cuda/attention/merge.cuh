// Merging the partial results of a decode step, tile by tile in ascending order.
#pragma once

#include "split.cuh"

namespace pen {

// Where a block keeps partial results and what they merge into.
struct MergeSpace {
  const float* partial;        // [tiles, plan.rows, ROW]
  const float2* partial_rows;  // [tiles, ROWS] maximum and sum
  float* state;                // [plan.rows, ROW]
  float2* state_rows;          // two sets of ROWS: read one, write the other
};

// Merges `tiles` partial results of shared memory into the block's state, in order; the last time the output is written. `head`: of the
// first row.
template <int D, bool EXTRAS>
__device__ __forceinline__ void merge_round(const Attention& p, const MergeSpace& space, int plan_rows, int tiles, int rows, int round,
                                            bool last, int head, __half* out) {
  using Shared = DecodeShared<D>;
  const int row_floats = plan_rows * Shared::ROW;
  const auto [partial, partial_rows, state, state_rows] = space;
  for (int i = threadIdx.x; i < rows * (D / 4); i += blockDim.x) {
    const int row = i / (D / 4), dim = i % (D / 4) * 4;
    if (dim >= p.kv.head_dim) continue;
    Running running;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (round > 0) {
      const float2 before = state_rows[(round % 2) * ROWS + row];
      running.maximum = before.x, running.sum = before.y;
      o = *reinterpret_cast<const float4*>(state + row * Shared::ROW + dim);
    }
    constexpr int BATCH = 4;  // tiles whose results are read together
    for (int t = 0; t < tiles; t += BATCH) {
      float2 tile_row[BATCH];
      float4 tile_o[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const int at = min(t + k, tiles - 1);
        tile_row[k] = partial_rows[at * ROWS + row];
        tile_o[k] = *reinterpret_cast<const float4*>(partial + at * row_floats + row * Shared::ROW + dim);
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (t + k >= tiles) break;
        float keep, add;
        merge(running, tile_row[k].x, tile_row[k].y, keep, add);
        o = make_float4(merged(o.x, tile_o[k].x, keep, add), merged(o.y, tile_o[k].y, keep, add), merged(o.z, tile_o[k].z, keep, add),
                        merged(o.w, tile_o[k].w, keep, add));
      }
    }
    if (last) {
      if constexpr (EXTRAS) {
        if (p.sinks != nullptr) {
          float keep, add;
          merge_sink(running, p.sinks[head + row], keep, add);
          o = make_float4(merged(o.x, 0.0f, keep, add), merged(o.y, 0.0f, keep, add), merged(o.z, 0.0f, keep, add),
                          merged(o.w, 0.0f, keep, add));
        }
      }
      const float inverse = inverse_sum(running.sum);
      __half2* dst = reinterpret_cast<__half2*>(out + row * p.kv.head_dim + dim);
      dst[0] = finished(o.x, o.y, inverse);
      dst[1] = finished(o.z, o.w, inverse);
    } else {
      *reinterpret_cast<float4*>(state + row * Shared::ROW + dim) = o;
      if (dim == 0) state_rows[((round + 1) % 2) * ROWS + row] = make_float2(running.maximum, running.sum);
    }
  }
}

constexpr int MERGE_BATCH = 16;  // tiles whose partial results are requested together

// The outputs of sequences that were split: merges their tiles in order. Grid: (num_seqs, num_heads). Block: two elements per thread.
template <bool EXTRAS>
__global__ void __launch_bounds__(128) attention_merge_kernel(Attention p, StepView step, DecodePlan plan) {
  let_next_start();
  const int seq = blockIdx.x, head = blockIdx.y, dim = threadIdx.x * 2;
  const DecodeRange<EXTRAS> range(step, seq, p);
  wait_for_previous();
  if (range.count <= plan.direct_tiles || dim >= p.kv.head_dim) return;
  const Partials partials(p, gridDim.x, plan.max_tiles);
  const size_t at = (static_cast<size_t>(seq) * p.num_heads + head) * plan.max_tiles;
  const float* o = partials.o + at * p.kv.head_dim + dim;
  const float2* rows = partials.row + at;
  Running running;
  float2 out = make_float2(0.0f, 0.0f);
  for (int first = 0; first < range.count; first += MERGE_BATCH) {
    float2 row[MERGE_BATCH], tile_o[MERGE_BATCH];
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; ++i) {
      const int tile = min(first + i, range.count - 1);
      row[i] = rows[tile];
      tile_o[i] = *reinterpret_cast<const float2*>(o + static_cast<size_t>(tile) * p.kv.head_dim);
    }
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; ++i) {
      if (first + i >= range.count) break;
      float keep, add;
      merge(running, row[i].x, row[i].y, keep, add);
      out.x = merged(out.x, tile_o[i].x, keep, add);
      out.y = merged(out.y, tile_o[i].y, keep, add);
    }
  }
  if constexpr (EXTRAS) {
    if (p.sinks != nullptr) {
      float keep, add;
      merge_sink(running, p.sinks[head], keep, add);
      out = make_float2(merged(out.x, 0.0f, keep, add), merged(out.y, 0.0f, keep, add));
    }
  }
  __half* dst = p.out + static_cast<size_t>(step.cu_seqlens_q[seq]) * p.out_stride + head * p.kv.head_dim + dim;
  *reinterpret_cast<__half2*>(dst) = finished(out.x, out.y, inverse_sum(running.sum));
}

}  // namespace pen
