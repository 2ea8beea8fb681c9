// Merging the partial results of general attention, stretch by stretch in ascending order.
#pragma once

#include "general_rows.cuh"

namespace pen {

constexpr int GENERAL_MERGE_THREADS = 128;
constexpr int GENERAL_MERGE_BATCH = 8;  // stretches whose partial results are requested together

// Grid: (rows of the longest sequence, num_kv_heads, num_seqs). A thread has four elements at a time.
__global__ void __launch_bounds__(GENERAL_MERGE_THREADS)
    attention_general_merge_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                                   const __grid_constant__ GeneralPlan plan) {
  let_next_start();
  const GeneralRows rows(p, step, step.sequence(blockIdx.z), blockIdx.y);
  const int row = blockIdx.x;
  wait_for_previous();
  if (row >= rows.count || general_direct(plan, Stretches(rows.spans(p, row / plan.rows * plan.rows, plan.rows)))) return;
  const int token = rows.token(row), head = rows.head(row), count = Stretches(rows.span(p, row)).count();
  const GeneralPartials partials(p, plan);
  const size_t at = partials.at(rows, row, blockIdx.z);
  __half* out = p.out + static_cast<size_t>(token) * p.ld_out + head * p.value_dim;
  for (int dim = threadIdx.x * 4; dim < p.value_dim; dim += GENERAL_MERGE_THREADS * 4) {
    Running running;
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float keep, add;
    for (int first = 0; first < count; first += GENERAL_MERGE_BATCH) {
      float2 part_row[GENERAL_MERGE_BATCH];
      float4 part[GENERAL_MERGE_BATCH];
#pragma unroll
      for (int i = 0; i < GENERAL_MERGE_BATCH; ++i) {
        const size_t stretch = at + min(first + i, count - 1);
        part_row[i] = __ldcg(partials.row + stretch);
        part[i] = __ldcg(reinterpret_cast<const float4*>(partials.o + stretch * partials.stride + dim));
      }
#pragma unroll
      for (int i = 0; i < GENERAL_MERGE_BATCH; ++i) {
        if (first + i >= count) break;
        merge(running, part_row[i].x, part_row[i].y, keep, add);
        o[0] = merged(o[0], part[i].x, keep, add), o[1] = merged(o[1], part[i].y, keep, add);
        o[2] = merged(o[2], part[i].z, keep, add), o[3] = merged(o[3], part[i].w, keep, add);
      }
    }
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
