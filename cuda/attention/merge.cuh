// Merges the results of a decode step: tiles into KV splits and KV splits into the output, both in ascending order.
#pragma once

#include "split.cuh"

namespace pen {

__device__ __forceinline__ float4 merged(const float4& o, const float4& part, float keep, float add) {
  return make_float4(merged(o.x, part.x, keep, add), merged(o.y, part.y, keep, add), merged(o.z, part.z, keep, add),
                     merged(o.w, part.w, keep, add));
}

// Where a block keeps the results of a round's tiles, and the state that they are merged into.
struct MergeSpace {
  const float* partial;        // [tiles, plan.rows, ROW]
  const float2* partial_rows;  // [tiles, ROWS] maximum and sum
  // The state after the earlier rounds: that of the current KV split, then that of all KV splits before it. `state` is [2, plan.rows, ROW].
  // `state_rows` is [2, 2, ROWS]: two sets, of which a round reads one and writes the other. Both are null if there is only one round.
  float* state;
  float2* state_rows;
};

// A round: tiles [first, first + tiles) of a sequence.
struct MergeRound {
  int first, tiles, index;
  bool last;  // the block has no more tiles
};

// Where a block's results go: to the output of its first row, or to the workspace, which holds the results of KV splits.
struct MergeTarget {
  bool direct;
  int head, rows;  // the block's
  __half* out;     // output of the first row
  float* o;        // place of the first row's KV split 0
  float2* row;
  int row_step;    // KV splits from one row to the next

  // Sends results to the workspace of sequence `seq`, whose first KV split has number `first`.
  __device__ __forceinline__ void leave(const Partials& partials, const Attention& p, const DecodePlan& plan, int seq, int first) {
    const size_t at = (static_cast<size_t>(seq) * p.num_heads + head) * plan.max_kv_splits - first;
    direct = false, o = partials.o + at * p.kv.head_dim, row = partials.row + at, row_step = plan.max_kv_splits;
  }
};

// Merges the partial results of a round from shared memory.
template <int D, bool EXTRAS>
__device__ __forceinline__ void merge_round(const Attention& p, const MergeSpace& space, const MergeTarget& to, int plan_rows,
                                            const MergeRound& round) {
  constexpr int ROW = DecodeShared<D>::ROW;
  const int row_floats = plan_rows * ROW, head_dim = p.kv.head_dim;
  for (int i = threadIdx.x; i < to.rows * (D / 4); i += blockDim.x) {
    const int row = i / (D / 4), dim = i % (D / 4) * 4;
    if (dim >= head_dim) continue;
    Running running, all_running;  // of the current KV split, and of all before it
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
        if (end % KV_SPLIT_TILES != 0 && !(round.last && t + k + 1 == round.tiles)) continue;
        if (to.direct) {
          merge(all_running, running.maximum, running.sum, keep, add);
          all = merged(all, o, keep, add);
        } else {
          const int kv_split = row * to.row_step + (end - 1) / KV_SPLIT_TILES;
          *reinterpret_cast<float4*>(to.o + static_cast<size_t>(kv_split) * head_dim + dim) = o;
          if (dim == 0) to.row[kv_split] = make_float2(running.maximum, running.sum);
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

constexpr int MERGE_ROUND = 2 * WARP;  // KV splits whose results a thread requests at once
constexpr int MERGE_PIECE = 8;

// Threads of a block that merges rows of `head_dim` elements.
__host__ __device__ constexpr int merge_threads(int head_dim) { return WARP + int(round_up(head_dim, WARP)); }

// Inclusive prefix maximum over the lanes of a warp.
__device__ __forceinline__ float prefix_maximum(float x, int lane) {
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, x, offset);
    if (lane >= offset) x = fmaxf(x, other);
  }
  return x;
}

// The factors with which a KV split is merged into the state.
struct MergeFactors {
  float keep, add, sum;
};

// Computes the factors of MERGE_ROUND KV splits, by one warp. They depend on the maxima alone, so one prefix maximum finds them all.
// `maximum` is the state's, before and after.
template <class RowOf>
__device__ __forceinline__ void find_factors(MergeFactors* factors, float& maximum, int lane, RowOf row_of) {
  float2 row[MERGE_ROUND / WARP];
#pragma unroll
  for (int k = 0; k < MERGE_ROUND / WARP; ++k) row[k] = row_of(k * WARP + lane);
#pragma unroll
  for (int k = 0; k < MERGE_ROUND / WARP; ++k) {
    const float top = fmaxf(maximum, prefix_maximum(row[k].x, lane)), before = __shfl_up_sync(0xffffffffu, top, 1);
    Running r;
    r.maximum = lane == 0 ? maximum : before;
    MergeFactors& f = factors[k * WARP + lane];
    merge(r, row[k].x, row[k].y, f.keep, f.add);
    f.sum = row[k].y;
    maximum = __shfl_sync(0xffffffffu, top, WARP - 1);
  }
}

// Merges the KV splits of sequences that were split, in order, and writes the outputs. Grid: (num_seqs, num_heads). Block: merge_threads(),
// a warp for the factors and the sum, and a thread per element.
template <bool EXTRAS>
__global__ void __launch_bounds__(merge_threads(256))
    attention_merge_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                           const __grid_constant__ DecodePlan plan) {
  __shared__ MergeFactors factors[MERGE_ROUND];
  __shared__ float inverse, sink_keep, sink_add;
  let_next_start();
  const int seq = step.sequence(blockIdx.x), head = blockIdx.y, lane = threadIdx.x % WARP, head_dim = p.kv.head_dim;
  const bool finds = threadIdx.x < WARP;
  const int dim = finds ? 0 : min(static_cast<int>(threadIdx.x) - WARP, head_dim - 1);
  const DecodeRange<EXTRAS> range(step, seq, p);
  const int count = range.num_kv_splits();
  const Partials partials(p, gridDim.x, plan.max_kv_splits);
  const size_t at = (static_cast<size_t>(blockIdx.x) * p.num_heads + head) * plan.max_kv_splits;
  const float* const o = partials.o + at * head_dim + dim;
  wait_for_previous();
  if (count <= plan.share) return;
  Running all;
  float out = 0.0f;
  for (int first = 0; first < count; first += MERGE_ROUND) {
    const int here = min(count - first, MERGE_ROUND);
    // A KV split beyond the end changes no bit, like a tile without keys.
    float part[MERGE_ROUND];
    if (finds) {
      find_factors(factors, all.maximum, lane,
                   [&](int i) { return i < here ? __ldcg(partials.row + at + first + i) : make_float2(MASKED, 0.0f); });
    } else {
#pragma unroll
      for (int k = 0; k < MERGE_ROUND; ++k) {
        if (k % MERGE_PIECE == 0 && k >= here) break;
        part[k] = k < here ? __ldcg(o + static_cast<size_t>(first + k) * head_dim) : 0.0f;
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < MERGE_ROUND; ++k) {
      if (k % MERGE_PIECE == 0 && k >= here) break;
      const MergeFactors f = factors[k];
      if (finds) all.sum = __fmaf_rn(f.sum, f.add, __fmul_rn(all.sum, f.keep));
      else out = merged(out, part[k], f.keep, f.add);
    }
    if (first + MERGE_ROUND < count) __syncthreads();
  }
  if (finds) {
    if constexpr (EXTRAS) {
      float keep = 1.0f, add = -0.0f;
      if (p.sinks != nullptr) merge_sink(all, p.sinks[head], keep, add);
      sink_keep = keep, sink_add = add;
    }
    inverse = inverse_sum(all.sum);
  }
  __syncthreads();
  if (finds || static_cast<int>(threadIdx.x) - WARP >= head_dim) return;
  if constexpr (EXTRAS) out = merged(out, 0.0f, sink_keep, sink_add);
  p.out[static_cast<size_t>(step.cu_seqlens_q[seq]) * p.out_stride + head * head_dim + dim] = __float2half_rn(__fmul_rn(out, inverse));
}

}  // namespace pen
