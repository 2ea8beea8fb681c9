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
  // What the rounds before have found: first of the present stretch, then of all stretches before it. `state` is [2, plan.rows, ROW].
  // `state_rows` is [2, 2, ROWS]: two sets, of which a round reads one and writes the other. Both are null if there is one round.
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

constexpr int MERGE_GROUPS = 8;  // of threads; a group requests the results of as many stretches at once
constexpr int MERGE_EACH = 8;
constexpr int MERGE_ROUND = MERGE_GROUPS * MERGE_EACH;
constexpr int MERGE_PAIRS = 128;  // threads of a group, at most

// The largest of x on this lane and those before it.
__device__ __forceinline__ float prefix_maximum(float x, int lane) {
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, x, offset);
    if (lane >= offset) x = fmaxf(x, other);
  }
  return x;
}

// The outputs of sequences that were split: merges their stretches in order. Grid: (num_seqs, num_heads). Block: MERGE_GROUPS groups of
// whole warps, in which a thread has two elements. The groups read MERGE_ROUND stretches at once and merge them one group after the other.
// The first warp computes the stretches' factors, since they depend on the maxima alone.
template <bool EXTRAS>
__global__ void __launch_bounds__(MERGE_GROUPS* MERGE_PAIRS)
    attention_merge_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                           const __grid_constant__ DecodePlan plan) {
  __shared__ float keeps[MERGE_ROUND], adds[MERGE_ROUND];
  __shared__ float2 outs[MERGE_PAIRS];
  __shared__ Running running;
  let_next_start();
  const int pairs = static_cast<int>(blockDim.x) / MERGE_GROUPS, group = static_cast<int>(threadIdx.x) / pairs;
  const int seq = step.sequence(blockIdx.x), head = blockIdx.y, lane = threadIdx.x % WARP;
  const int pair = static_cast<int>(threadIdx.x) % pairs, dim = pair * 2;
  const DecodeRange<EXTRAS> range(step, seq, p);
  const int count = range.num_stretches();
  if (threadIdx.x == 0) running = Running{};
  wait_for_previous();
  if (count <= plan.share) return;
  const Partials partials(p, gridDim.x, plan.max_stretches);
  const size_t at = (static_cast<size_t>(blockIdx.x) * p.num_heads + head) * plan.max_stretches;
  const bool mine = dim < p.kv.head_dim;
  const float* o = partials.o + at * p.kv.head_dim + (mine ? dim : 0);
  float2 out = make_float2(0.0f, 0.0f);
  for (int first = 0; first < count; first += MERGE_ROUND) {
    const int here = min(count - first, MERGE_ROUND), begin = group * MERGE_EACH;
    float2 stretch_o[MERGE_EACH];
#pragma unroll
    for (int k = 0; k < MERGE_EACH; ++k) {
      const int stretch = first + min(begin + k, here - 1);
      stretch_o[k] = __ldcg(reinterpret_cast<const float2*>(o + static_cast<size_t>(stretch) * p.kv.head_dim));
    }
    if (threadIdx.x < WARP) {
      float2 row[MERGE_ROUND / WARP];
#pragma unroll
      for (int k = 0; k < MERGE_ROUND / WARP; ++k) {
        const int i = k * WARP + lane;
        row[k] = i < here ? __ldcg(partials.row + at + first + i) : make_float2(MASKED, 0.0f);
      }
      __syncwarp();
      Running all = running;
#pragma unroll
      for (int k = 0; k < MERGE_ROUND / WARP; ++k) {
        const float top = fmaxf(all.maximum, prefix_maximum(row[k].x, lane)), before = __shfl_up_sync(0xffffffffu, top, 1);
        Running r;
        r.maximum = lane == 0 ? all.maximum : before;
        float keep, add;
        merge(r, row[k].x, row[k].y, keep, add);
        keeps[k * WARP + lane] = keep, adds[k * WARP + lane] = add;
        for (int i = 0; i < WARP; ++i) {
          const float keep_i = __shfl_sync(0xffffffffu, keep, i), add_i = __shfl_sync(0xffffffffu, add, i);
          const float sum_i = __shfl_sync(0xffffffffu, row[k].y, i);
          if (k * WARP + i < here) all.sum = __fmaf_rn(sum_i, add_i, __fmul_rn(all.sum, keep_i));
        }
        all.maximum = __shfl_sync(0xffffffffu, top, WARP - 1);
      }
      __syncwarp();
      if (lane == 0) running = all;
    }
    for (int turn = 0; turn < ceil_div(here, MERGE_EACH); ++turn) {
      __syncthreads();
      if (group != turn) continue;
      if (first + turn > 0) out = outs[pair];
#pragma unroll
      for (int k = 0; k < MERGE_EACH; ++k) {
        if (begin + k >= here) break;
        const float keep = keeps[begin + k], add = adds[begin + k];
        out.x = merged(out.x, stretch_o[k].x, keep, add);
        out.y = merged(out.y, stretch_o[k].y, keep, add);
      }
      outs[pair] = out;
    }
    __syncthreads();
  }
  if (group != 0 || !mine) return;
  out = outs[pair];
  Running all = running;
  if constexpr (EXTRAS) {
    if (p.sinks != nullptr) {
      float keep, add;
      merge_sink(all, p.sinks[head], keep, add);
      out = make_float2(merged(out.x, 0.0f, keep, add), merged(out.y, 0.0f, keep, add));
    }
  }
  __half* dst = p.out + static_cast<size_t>(step.cu_seqlens_q[seq]) * p.out_stride + head * p.kv.head_dim + dim;
  *reinterpret_cast<__half2*>(dst) = finished(out.x, out.y, inverse_sum(all.sum));
}

}  // namespace pen
