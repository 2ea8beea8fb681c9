// Merges the partial results of general attention in ascending order: the tiles of a KV split, then the KV splits.
#pragma once

#include "general_rows.cuh"

namespace pen {

constexpr int GENERAL_MERGE_THREADS = 128;

// Grid: (rows of the longest sequence, num_kv_heads, num_seqs). A thread takes four elements at a time. BATCH: partial results that it
// requests together.
template <int BATCH>
__global__ void __launch_bounds__(GENERAL_MERGE_THREADS)
    attention_general_merge_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                                   const __grid_constant__ GeneralPlan plan) {
  let_next_start();
  const GeneralRows rows(p, step, step.sequence(blockIdx.z), blockIdx.y);
  const int row = blockIdx.x;
  wait_for_previous();
  if (row >= rows.count || general_direct(plan, Parts(plan, rows.spans(p, row / plan.rows * plan.rows, plan.rows)))) return;
  const Parts parts(plan, rows.span(p, row));
  const int token = rows.token(row), head = rows.head(row), count = parts.count();
  const GeneralPartials partials(p, plan);
  const size_t at = partials.at(rows, row, blockIdx.z);
  __half* out = p.out + static_cast<size_t>(token) * p.ld_out + head * p.value_dim;
  for (int dim = threadIdx.x * 4; dim < p.value_dim; dim += GENERAL_MERGE_THREADS * 4) {
    MergeState all, kv_split;
    for (int first = 0; first < count; first += BATCH) {
      float2 part_row[BATCH];
      float4 part[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const size_t from = at + min(first + i, count - 1);
        part_row[i] = __ldcg(partials.row + from);
        part[i] = __ldcg(reinterpret_cast<const float4*>(partials.o + from * partials.stride + dim));
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        if (first + i >= count) break;
        if (!plan.by_tile) {
          all.add(part_row[i], part[i]);
          continue;
        }
        kv_split.add(part_row[i], part[i]);
        if ((parts.begin + first + i + 1) % KV_SPLIT_TILES != 0 && first + i + 1 < count) continue;
        all.add(make_float2(kv_split.running.maximum, kv_split.running.sum), kv_split.o);
        kv_split = MergeState{};
      }
    }
    Running& running = all.running;
    float o[4] = {all.o.x, all.o.y, all.o.z, all.o.w}, keep, add;
    if (p.sinks != nullptr) {
      merge_sink(running, p.sinks[head], keep, add);
#pragma unroll
      for (float& x : o) x = merged(x, 0.0f, keep, add);
    }
    const float inverse = inverse_sum(running.sum);
    const __half2 low = finished(o[0], o[1], inverse), high = finished(o[2], o[3], inverse);
    const __half four[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (dim + i < p.value_dim) out[dim + i] = four[i];
    }
  }
}

}  // namespace pen
