// Merging the results of a decode step: tiles into stretches and stretches into the output, both in ascending order.
#pragma once

#include "split.cuh"

namespace pen {

__device__ __forceinline__ float4 merged(const float4& o, const float4& part, float keep, float add) {
  return make_float4(merged(o.x, part.x, keep, add), merged(o.y, part.y, keep, add), merged(o.z, part.z, keep, add),
                     merged(o.w, part.w, keep, add));
}

// Where a block keeps the results of a round's tiles, and what they merge into.
struct MergeSpace {
  const float* partial;        // [tiles, plan.rows, ROW]
  const float2* partial_rows;  // [tiles, ROWS] maximum and sum
  // Of the present stretch, then of all before it: [2, plan.rows, ROW] and, in two sets of which a round reads one and writes the other,
  // [2, 2, ROWS]. Null if there is one round.
  float* state;
  float2* state_rows;
};

// A round: tiles [first, first + tiles) of a sequence.
struct MergeRound {
  int first, tiles, index;
  bool last;  // the block has no more tiles
};

// Where a block's results go: the output of its first row, or the workspace, where the results of stretches lie.
struct MergeTarget {
  bool direct;
  int head, rows;  // of the block
  __half* out;     // of the first row
  float* o;        // of the first row, stretch 0
  float2* row;
  int row_step;    // stretches from row to row
};

// Merges the partial results of a round, which lie in shared memory.
template <int D, bool EXTRAS>
__device__ __forceinline__ void merge_round(const Attention& p, const MergeSpace& space, const MergeTarget& to, int plan_rows,
                                            const MergeRound& round) {
  constexpr int ROW = DecodeShared<D>::ROW;
  const int row_floats = plan_rows * ROW, head_dim = p.kv.head_dim;
  for (int i = threadIdx.x; i < to.rows * (D / 4); i += blockDim.x) {
    const int row = i / (D / 4), dim = i % (D / 4) * 4;
    if (dim >= head_dim) continue;
    Running running, all_running;  // of the present stretch, and of those before it
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f), all = o;
    float* const state = space.state + row * ROW + dim;
    if (round.index > 0) {
      const float2* const before = space.state_rows + round.index % 2 * 2 * ROWS + row;
      running.maximum = before[0].x, running.sum = before[0].y;
      all_running.maximum = before[ROWS].x, all_running.sum = before[ROWS].y;
      o = *reinterpret_cast<const float4*>(state), all = *reinterpret_cast<const float4*>(state + row_floats);
    }
    constexpr int BATCH = 4;  // tiles whose results are read together
    for (int t = 0; t < round.tiles; t += BATCH) {
      float2 tile_row[BATCH];
      float4 tile_o[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const int at = min(t + k, round.tiles - 1);
        tile_row[k] = space.partial_rows[at * ROWS + row];
        tile_o[k] = *reinterpret_cast<const float4*>(space.partial + at * row_floats + row * ROW + dim);
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (t + k >= round.tiles) break;
        float keep, add;
        merge(running, tile_row[k].x, tile_row[k].y, keep, add);
        o = merged(o, tile_o[k], keep, add);
        const int end = round.first + t + k + 1;
        if (end % STRETCH_TILES != 0 && !(round.last && t + k + 1 == round.tiles)) continue;
        if (to.direct) {
          merge(all_running, running.maximum, running.sum, keep, add);
          all = merged(all, o, keep, add);
        } else {
          const int stretch = row * to.row_step + (end - 1) / STRETCH_TILES;
          *reinterpret_cast<float4*>(to.o + static_cast<size_t>(stretch) * head_dim + dim) = o;
          if (dim == 0) to.row[stretch] = make_float2(running.maximum, running.sum);
        }
        running = Running{}, o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
    if (!round.last) {
      *reinterpret_cast<float4*>(state) = o, *reinterpret_cast<float4*>(state + row_floats) = all;
      if (dim == 0) {
        float2* const after = space.state_rows + (round.index + 1) % 2 * 2 * ROWS + row;
        after[0] = make_float2(running.maximum, running.sum), after[ROWS] = make_float2(all_running.maximum, all_running.sum);
      }
    } else if (to.direct) {
      if constexpr (EXTRAS) {
        if (p.sinks != nullptr) {
          float keep, add;
          merge_sink(all_running, p.sinks[to.head + row], keep, add);
          all = merged(all, make_float4(0.0f, 0.0f, 0.0f, 0.0f), keep, add);
        }
      }
      const float inverse = inverse_sum(all_running.sum);
      __half2* dst = reinterpret_cast<__half2*>(to.out + row * head_dim + dim);
      dst[0] = finished(all.x, all.y, inverse);
      dst[1] = finished(all.z, all.w, inverse);
    }
  }
}

constexpr int MERGE_THREADS = 128;
constexpr int MERGE_BATCH = 16;  // stretches whose partial results are requested together

// The largest of x on this thread and those before it in the block, by way of MERGE_THREADS / WARP floats in shared memory.
__device__ __forceinline__ float prefix_maximum(float x, float* shared) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, x, offset);
    if (lane >= offset) x = fmaxf(x, other);
  }
  if (lane == WARP - 1) shared[warp] = x;
  __syncthreads();
  for (int w = 0; w < warp; ++w) x = fmaxf(x, shared[w]);
  return x;
}

// The outputs of sequences that were split: merges their stretches in order. Grid: (num_seqs, num_heads). The factors of MERGE_THREADS
// stretches are computed side by side, since they depend on the maxima alone. Then each thread merges two elements.
template <bool EXTRAS>
__global__ void __launch_bounds__(MERGE_THREADS)
    attention_merge_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                           const __grid_constant__ DecodePlan plan) {
  let_next_start();
  __shared__ float keeps[MERGE_THREADS], adds[MERGE_THREADS], sums[MERGE_THREADS], maxima[MERGE_THREADS], warps[MERGE_THREADS / WARP];
  const int seq = blockIdx.x, head = blockIdx.y, dim = threadIdx.x * 2;
  const DecodeRange<EXTRAS> range(step, seq, p);
  const int count = range.num_stretches();
  wait_for_previous();
  if (count <= plan.share) return;
  const Partials partials(p, gridDim.x, plan.max_stretches);
  const size_t at = (static_cast<size_t>(seq) * p.num_heads + head) * plan.max_stretches;
  const bool mine = dim < p.kv.head_dim;
  const float* o = partials.o + at * p.kv.head_dim + (mine ? dim : 0);
  const float2* rows = partials.row + at;
  Running running;
  float2 out = make_float2(0.0f, 0.0f);
  for (int first = 0; first < count; first += MERGE_THREADS) {
    const int here = min(count - first, MERGE_THREADS), i = threadIdx.x;
    const float2 part = i < here ? __ldcg(rows + first + i) : make_float2(MASKED, 0.0f);
    const float top = fmaxf(running.maximum, prefix_maximum(part.x, warps));
    maxima[i] = top;
    __syncthreads();
    Running before;
    before.maximum = i == 0 ? running.maximum : maxima[i - 1];
    merge(before, part.x, part.y, keeps[i], adds[i]);
    sums[i] = part.y;
    __syncthreads();
    for (int begin = 0; begin < here; begin += MERGE_BATCH) {
      float2 stretch_o[MERGE_BATCH];
#pragma unroll
      for (int k = 0; k < MERGE_BATCH; ++k) {
        const int stretch = first + min(begin + k, here - 1);
        stretch_o[k] = __ldcg(reinterpret_cast<const float2*>(o + static_cast<size_t>(stretch) * p.kv.head_dim));
      }
#pragma unroll
      for (int k = 0; k < MERGE_BATCH; ++k) {
        if (begin + k >= here) break;
        const float keep = keeps[begin + k], add = adds[begin + k];
        running.sum = __fmaf_rn(sums[begin + k], add, __fmul_rn(running.sum, keep));
        out.x = merged(out.x, stretch_o[k].x, keep, add);
        out.y = merged(out.y, stretch_o[k].y, keep, add);
      }
    }
    running.maximum = maxima[here - 1];
    __syncthreads();
  }
  if constexpr (EXTRAS) {
    if (p.sinks != nullptr) {
      float keep, add;
      merge_sink(running, p.sinks[head], keep, add);
      out = make_float2(merged(out.x, 0.0f, keep, add), merged(out.y, 0.0f, keep, add));
    }
  }
  if (!mine) return;
  __half* dst = p.out + static_cast<size_t>(step.cu_seqlens_q[seq]) * p.out_stride + head * p.kv.head_dim + dim;
  *reinterpret_cast<__half2*>(dst) = finished(out.x, out.y, inverse_sum(running.sum));
}

}  // namespace pen
