// Prefill attention: sequences with more than one row. A row of this kernel is a (token, head of the group) pair: row = token · group +
// head. Each warp has sixteen rows, and the block's warps share the tiles of K and V (FlashAttention-2, Dao 2023). Tiles that no row of the
// block sees are not fetched. Tiles that no row of a warp sees are not computed.
#pragma once

#include "tile.cuh"

namespace pen {

// A warp's query rows, in registers or, if QUERY, in shared memory as a tile of ROWS rows.
template <int D>
struct PrefillQuery {
  static constexpr bool SHARED = PrefillShared<D>::QUERY;
  uint32_t fragments[SHARED ? 1 : D / 16][4];
  uint32_t address;

  // row(i) returns the warp's row i, or null.
  template <class Row>
  __device__ __forceinline__ void load(Row row, int head_dim, int lane) {
    if constexpr (SHARED) {
      for (int i = lane; i < ROWS * (D / 8); i += WARP) {
        const int r = i / (D / 8), vector = i % (D / 8);
        const __half* src = row(r);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (src != nullptr && vector * 8 < head_dim) x = *reinterpret_cast<const uint4*>(src + vector * 8);
        store_vector(address + Tile<D>::at(r, vector), x);
      }
      __syncwarp();
    } else {
      load_query<D>(fragments, row(lane / 4), row(lane / 4 + 8), head_dim, lane);
    }
  }
  __device__ __forceinline__ void get(int k, uint32_t (&a)[4], int lane) const {
    if constexpr (SHARED) {
      load_matrices(a, address + Tile<D>::at(lane % 16, 2 * k + lane / 16));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = fragments[k][i];
    }
  }
};

// The state of a lane's two rows. The current KV split is in registers. Earlier ones are in memory, which is accessed once per KV split.
template <int D, int STEP = 1>
struct KvSplitState {
  Running running[2];
  float o[D / 8][4];
  // State before the current KV split: [D / 8] of O, then maxima and sums, STEP apart. The compiler must not see that this is an array of
  // the thread, or it would put it into registers.
  float4* before;

  __device__ __forceinline__ void clear() {
    running[0] = running[1] = Running{};
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
    }
  }
  __device__ __forceinline__ void end_kv_split() {
    finish();
    before[D / 8 * STEP] = make_float4(running[0].maximum, running[0].sum, running[1].maximum, running[1].sum);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) before[n * STEP] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    some_ = true;
    clear();
  }
  // Merges the last KV split, so that the state covers all of them.
  __device__ __forceinline__ void finish() {
    Running all[2];
    if (some_) {
      const float4 rows = before[D / 8 * STEP];
      all[0].maximum = rows.x, all[0].sum = rows.y, all[1].maximum = rows.z, all[1].sum = rows.w;
    }
    float keep[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      merge(all[h], running[h].maximum, running[h].sum, keep[h], add[h]);
      running[h] = all[h];
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 x = some_ ? before[n * STEP] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      o[n][0] = merged(x.x, o[n][0], keep[0], add[0]), o[n][1] = merged(x.y, o[n][1], keep[0], add[0]);
      o[n][2] = merged(x.z, o[n][2], keep[1], add[1]), o[n][3] = merged(x.w, o[n][3], keep[1], add[1]);
    }
  }

 private:
  bool some_ = false;  // whether there are earlier KV splits
};

// Writes a warp's sixteen rows, starting at `first_row`, after finish().
template <int D, bool EXTRAS, class State>
__device__ __forceinline__ void store_rows(const Attention& p, State& state, int first_row, int num_rows, int token0, int kv_head,
                                           int lane) {
  auto& o = reinterpret_cast<float(&)[D / 8][4]>(state.o);
  const int group = p.num_heads / p.kv.num_kv_heads, head_dim = p.kv.head_dim;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    if (row >= num_rows) continue;
    const int head = kv_head * group + row % group;
    if constexpr (EXTRAS) {
      if (p.sinks != nullptr) {
        float keep, add;
        merge_sink(state.running[h], p.sinks[head], keep, add);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          o[n][2 * h] = merged(o[n][2 * h], 0.0f, keep, add);
          o[n][2 * h + 1] = merged(o[n][2 * h + 1], 0.0f, keep, add);
        }
      }
    }
    const float inverse = inverse_sum(state.running[h].sum);
    __half* out = p.out + static_cast<size_t>(token0 + row / group) * p.out_stride + head * head_dim;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int dim = n * 8 + lane % 4 * 2;
      if (dim < head_dim) *reinterpret_cast<__half2*>(out + dim) = finished(o[n][2 * h], o[n][2 * h + 1], inverse);
    }
  }
}

// Grid: (row tiles of the longest sequence, num_kv_heads, num_seqs). Block: up to PREFILL_WARPS warps. Shared memory: PrefillShared<D>.
// Rows with the longest contexts come first, because they take the most time.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WARP * PREFILL_WARPS, D <= 64 ? 2 : 1)
    attention_prefill_kernel(Attention p, StepView step, PrefillPlan plan) {
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int seq = step.sequence(blockIdx.z), kv_head = blockIdx.y, group = p.num_heads / p.kv.num_kv_heads, head_dim = p.kv.head_dim;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  const int context = step.context_lens[seq];
  const int token0 = context == 0 ? 0 : step.cu_seqlens_q[seq];
  const int tokens = context == 0 ? 0 : step.cu_seqlens_q[seq + 1] - token0;
  const int num_rows = tokens * group, row_tiles = ceil_div(num_rows, ROWS * warps);
  if (tokens <= 1 || static_cast<int>(blockIdx.x) >= row_tiles) return wait_for_previous();

  const int block_row = (row_tiles - 1 - static_cast<int>(blockIdx.x)) * ROWS * warps, warp_row = block_row + warp * ROWS;
  const int position0 = context - tokens;
  const auto span_of = [&](int row) { return row < num_rows ? visible<EXTRAS>(position0 + row / group, p) : Span{0, 0}; };
  const auto query_of = [&](int row) -> const __half* {
    if (row >= num_rows) return nullptr;
    return p.q + (static_cast<size_t>(token0 + row / group) * p.num_heads + kv_head * group + row % group) * head_dim;
  };
  const int first_tile = span_of(block_row).begin / KEYS;
  const int end_tile = ceil_div(span_of(min(block_row + ROWS * warps, num_rows) - 1).end, KEYS);
  // The keys that any of the warp's rows sees.
  const Span warp_span = {span_of(warp_row).begin, warp_row < num_rows ? span_of(min(warp_row + ROWS, num_rows) - 1).end : 0};

  const uint32_t ring = shared_of(shared);
  const Pages pages(p.kv, step, seq, context, kv_head);
  TilePlace place, next;
  next.find(pages, first_tile);
  // These come from the host's copy, so they need not wait for the preceding kernels.
  next.low = held(next.low), next.high = held(next.high);
  wait_for_previous();
  const int items = 2 * (end_tile - first_tile), ahead = plan.buffers - 1;
  // Item 2 t is K of tile first_tile + t, item 2 t + 1 its V. Every call commits a group. A tile's place is looked up one item before it is
  // needed.
  auto fetch = [&](int item) {
    if (item < items) {
      if (item % 2 == 0) place = next;
      copy_tile<D>(ring + item % plan.buffers * Tile<D>::BYTES, item % 2 == 0 ? p.kv.k : p.kv.v, place, head_dim, threadIdx.x, blockDim.x);
      if (item % 2 == 1) next.find(pages, first_tile + item / 2 + 1);
    }
    copy_commit();
  };
  // Makes item i readable by all warps, and requests an item into the buffer of item i - 1, which no warp reads any more.
  auto arrive = [&](int item) {
    if (ahead == 0) {
      __syncthreads();
      fetch(item);
      copies_wait(0);
      __syncthreads();
    } else {
      copies_wait(ahead - 1);
      __syncthreads();
      fetch(item + ahead);
    }
    return ring + item % plan.buffers * Tile<D>::BYTES;
  };
  for (int i = 0; i < ahead; ++i) fetch(i);

  PrefillQuery<D> query;
  query.address = ring + plan.buffers * Tile<D>::BYTES + warp * static_cast<uint32_t>(PrefillShared<D>::QUERY_BYTES);
  query.load([&](int i) { return query_of(warp_row + i); }, head_dim, lane);
  const Span span[2] = {span_of(warp_row + lane / 4), span_of(warp_row + lane / 4 + 8)};
  const ScoreScale scale(p);

  float4 before[D / 8 + 1];
  KvSplitState<D> state;
  state.before = held(static_cast<float4*>(before));
  state.clear();
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const bool seen = tile * KEYS < warp_span.end && (tile + 1) * KEYS > warp_span.begin;
    const int item = 2 * (tile - first_tile);
    uint32_t probabilities[KEYS / 16][4];
    float keep[2], add[2];
    const uint32_t keys = arrive(item);
    if (seen) {
      float s[KEYS / 8][4], maximum[2], sum[2];
      tile_scores<D>(s, [&](int k, uint32_t(&a)[4]) { query.get(k, a, lane); }, keys, lane);
      scale.cap(s);
      tile_softmax(probabilities, maximum, s, span, tile, scale.c, lane);
      tile_sums(sum, probabilities);
#pragma unroll
      for (int h = 0; h < 2; ++h) merge(state.running[h], maximum[h], sum[h], keep[h], add[h]);
    }
    const uint32_t values = arrive(item + 1);
    if (seen) {
      tile_values<D>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.o[n][i] = merged(state.o[n][i], acc[i], keep[i / 2], add[i / 2]);
      });
    }
    if ((tile + 1) % KV_SPLIT_TILES == 0 && tile + 1 != end_tile) state.end_kv_split();
  }
  state.finish();
  copies_wait(0);

  store_rows<D, EXTRAS>(p, state, warp_row, num_rows, token0, kv_head, lane);
}

}  // namespace pen
