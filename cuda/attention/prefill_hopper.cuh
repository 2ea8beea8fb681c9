// Prefill attention on sm_90a, by warpgroup products. It computes the same bits as prefill.cuh, which bench/attention.cu checks. A
// warpgroup has 64 rows. The block's warpgroups share the tiles of K and V, which a further warp fetches as boxes. While a tile's values
// are summed, the scores and the softmax of the next tile are computed (FlashAttention-3, Shah et al. 2024).
#pragma once

#include "../device/warpgroup.cuh"
#include "boxes.cuh"
#include "prefill.cuh"

namespace pen {

constexpr int WIDE_THREADS = (WIDE_WARPGROUPS + 1) * 4 * WARP;
constexpr int WIDE_STAGES = 3;  // stages of the rings of tiles
// If K and V of all heads take at most this many bytes, a context stays in L2, and blocks of all heads may run side by side.
constexpr long long WIDE_TOGETHER = 20 << 20;

template <int D>
struct WideShared {
  static constexpr int QUERY = WIDE_ROWS * D * 2, TILE = BoxTile<D>::BYTES;
  static constexpr int BEFORE = (D / 8 + 1) * 4 * WARP * 16;  // per warpgroup: its state before the current KV split
  static constexpr int ring = WIDE_WARPGROUPS * QUERY, before = ring + 2 * WIDE_STAGES * TILE;
  static constexpr int barriers = before + WIDE_WARPGROUPS * BEFORE;
  static constexpr size_t bytes = 1024 + barriers + sizeof(Ring);
};

#ifdef PEN_HOPPER_DEVICE
// A buffer of a ring, and the parity of its barriers' phase. The ring starts at buffer FIRST.
template <int FIRST, int STAGES>
struct WideStage {
  int buffer = FIRST;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++buffer == FIRST + STAGES) buffer = FIRST, phase ^= 1;
  }
};
using KeyStage = WideStage<0, WIDE_STAGES>;
using ValueStage = WideStage<WIDE_STAGES, WIDE_STAGES>;

// The rings of K and of V. The current stage advances from tile to tile, in registers that are uniform across a warp.
struct WideRings {
  Ring& barriers;
  uint32_t buffers;
  int bytes, stages;  // stages: of both rings together
  // Called by the whole block.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) barrier_init(&barriers.full[i], 1), barrier_init(&barriers.empty[i], WIDE_WARPGROUPS * 4);
      fence_barriers();
    }
    __syncthreads();
  }
  template <class Stage>
  __device__ __forceinline__ uint32_t at(const Stage& stage) const {
    return buffers + stage.buffer * bytes;
  }
  template <class Stage>
  __device__ __forceinline__ void wait(const Stage& stage) const {
    barrier_wait(&barriers.full[stage.buffer], stage.phase);
  }
  // Releases a buffer. Every warp that reads the buffer calls this once.
  template <class Stage>
  __device__ __forceinline__ void leave(const Stage& stage) const {
    if (threadIdx.x % WARP == 0) barrier_arrive(&barriers.empty[stage.buffer]);
  }
  template <int D, class Stage>
  __device__ __forceinline__ void fill(const Stage& stage, const CUtensorMap& map, int low, int high, int num_keys) const {
    barrier_wait(&barriers.empty[stage.buffer], stage.phase ^ 1);
    copy_boxes<D>(at(stage), map, low, high, num_keys, &barriers.full[stage.buffer]);
  }
};
static_assert(2 * WIDE_STAGES <= 8, "a ring's barriers");

// Fetches the tiles, by one warp. Its lanes look up the halves of several tiles at once: one after the other, the look-ups would take
// longer than the products.
template <int D, class Keys, class Values>
__device__ __forceinline__ void fetch_tiles(const WideRings& rings, Keys& keys, Values& values, const Pages& pages, int first_tile,
                                            int end_tile, const CUtensorMap& keys_map, const CUtensorMap& values_map) {
  const int lane = threadIdx.x % WARP;
  int row = 0;
  for (int tile = first_tile; tile < end_tile; ++tile, keys.next(), values.next()) {
    const int half = (tile - first_tile) % (WARP / 2) * 2;
    if (half == 0) {
      const int key = tile * KEYS + lane * PAGE_UNIT;
      row = key < pages.context ? box_row(pages, key) : 0;
    }
    const int low = __shfl_sync(0xffffffffu, row, half), high = __shfl_sync(0xffffffffu, row, half + 1);
    if (lane == 0) {
      rings.fill<D>(keys, keys_map, low, high, pages.context - tile * KEYS);
      rings.fill<D>(values, values_map, low, high, pages.context - tile * KEYS);
    }
    __syncwarp();
  }
}

// Starts s = q Kᵀ of a tile. `query` and `keys`: boxes of 64 rows and 64 elements. Descriptors differ only in their low halves.
template <int D>
__device__ __forceinline__ void start_scores(float (&s)[KEYS / 8][4], uint32_t query, uint32_t keys) {
  const uint64_t a = tile_descriptor(query), b = tile_descriptor(keys);
  warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint32_t at = (k / 4 * (KEYS * 128) + k % 4 * 32) / 16;
    wgmma_shared(s, moved(a, at), moved(b, at), k == 0);
  }
  warpgroup_commit();
}
// Starts acc = P V of a tile.
template <int D>
__device__ __forceinline__ void start_values(float (&acc)[D / 8][4], const uint32_t (&p)[KEYS / 16][4], uint32_t values) {
  const uint64_t b = transposed_descriptor(values, KEYS * 128);
  warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) wgmma<true>(acc, p[k], moved(b, k * 16 * 128 / 16), k == 0);
  warpgroup_commit();
}

// Turns scores, in which invisible keys are masked, into probabilities that are not rounded yet. Also computes m_i.
__device__ __forceinline__ void raise_scores(float (&s)[KEYS / 8][4], float (&maximum)[2], float c) {
  float largest[2], minus[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    largest[h] = MASKED;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) largest[h] = fmaxf(largest[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
  }
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) largest[h] = fmaxf(largest[h], __shfl_xor_sync(0xffffffffu, largest[h], mask));
  }
  scale_maxima(maximum, minus, largest, c);
#pragma unroll
  for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = exp2_fast(__fmaf_rn(s[n][i], c, minus[i / 2]));
  }
}
// Rounds probabilities into fragments of P.
__device__ __forceinline__ void round_scores(uint32_t (&p)[KEYS / 16][4], const float (&s)[KEYS / 8][4]) {
#pragma unroll
  for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) p[n / 2][n % 2 * 2 + h] = half2_bits(__floats2half2_rn(s[n][2 * h], s[n][2 * h + 1]));
  }
}

// A block's rows: up to WIDE_BLOCK_ROWS of a sequence and K/V head, starting at `row`. −1: none.
struct WideBlock {
  int seq, context, token0, tokens, group, num_rows, kv_head, row;
  // `at`: the block's place in a grid of (width, num_kv_heads, num_seqs) blocks.
  __device__ __forceinline__ WideBlock(const Attention& p, const StepView& step, uint3 at, int width) : seq(step.sequence(at.z)) {
    const int kv_heads = p.kv.num_kv_heads;
    context = step.context_lens[seq];
    token0 = context == 0 ? 0 : step.cu_seqlens_q[seq];
    tokens = context == 0 ? 0 : step.cu_seqlens_q[seq + 1] - token0;
    group = p.num_heads / kv_heads, num_rows = tokens * group;
    const int row_blocks = ceil_div(num_rows, WIDE_BLOCK_ROWS);
    // Blocks start in the order of their numbers. Head by head, blocks that run at the same time share K and V. But the long rows of the
    // last head, which start late, would run alone at the end of a short prompt.
    const bool together = 4LL * context * kv_heads * p.kv.head_dim <= WIDE_TOGETHER;
    const int number = at.y * width + at.x;
    kv_head = together ? number % kv_heads : at.y;
    const int row_block = together ? number / kv_heads : at.x;
    row = tokens <= 1 || row_block >= row_blocks ? -1 : (row_blocks - 1 - row_block) * WIDE_BLOCK_ROWS;
  }
};
#endif

// Grid: (groups of WIDE_BLOCK_ROWS rows of the longest sequence, num_kv_heads, num_seqs). Rows with the longest contexts come first.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    attention_wide_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                          const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = WideShared<D>;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const WideBlock block(p, step, blockIdx, gridDim.x);
  const int context = block.context, token0 = block.token0, num_rows = block.num_rows, kv_head = block.kv_head, group = block.group;
  const int block_row = block.row, position0 = context - block.tokens, head_dim = p.kv.head_dim;
  if (block_row < 0) return wait_for_previous();
  const auto span_of = [&](int row) { return row < num_rows ? visible<EXTRAS>(position0 + row / group, p) : Span{0, 0}; };
  const int first_tile = span_of(block_row).begin / KEYS;
  const int end_tile = ceil_div(span_of(min(block_row + WIDE_BLOCK_ROWS, num_rows) - 1).end, KEYS);
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  uint8_t* const shared = dynamic + (base - shared_of(dynamic));
  const WideRings rings{*reinterpret_cast<Ring*>(shared + Shared::barriers), base + Shared::ring, Shared::TILE, 2 * WIDE_STAGES};
  rings.begin();
  wait_for_previous();
  KeyStage keys;
  ValueStage values;
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / (4 * WARP), 0);  // so that the compiler knows it is uniform in the warp
  if (warpgroup == WIDE_WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x % (4 * WARP) >= WARP) return;
    fetch_tiles<D>(rings, keys, values, Pages(p.kv, step, block.seq, context, kv_head), first_tile, end_tile, keys_map, values_map);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int thread = threadIdx.x % (4 * WARP), lane = thread % WARP, first_row = block_row + warpgroup * WIDE_ROWS;
  const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(4 * WARP) : "memory"); };
  const uint32_t query = base + warpgroup * Shared::QUERY;
  const auto query_of = [&](int row) {
    return (static_cast<size_t>(token0 + row / group) * p.num_heads + kv_head * group + row % group) * head_dim;
  };
  put_queries<D>(query, thread, [&](int r) { return first_row + r < num_rows ? p.q + query_of(first_row + r) : nullptr; }, head_dim);
  fence_async_proxy();
  sync();

  const int warp_row = first_row + thread / WARP * ROWS, row0 = warp_row + lane / 4;
  const Span span[2] = {span_of(row0), span_of(row0 + 8)};
  // The tiles that all rows of the warp see completely.
  const bool all_rows = warp_row + ROWS <= num_rows;
  const int whole_first = all_rows ? ceil_div(span_of(warp_row + ROWS - 1).begin, KEYS) : end_tile;
  const int whole_end = all_rows ? span_of(warp_row).end / KEYS : end_tile;
  const ScoreScale scale(p);
  KvSplitState<D, 4 * WARP> state;
  state.before = reinterpret_cast<float4*>(shared + Shared::before + warpgroup * Shared::BEFORE) + thread;
  state.clear();
  const int seen_first = first_row < num_rows ? span_of(first_row).begin / KEYS : end_tile;  // tiles that any of its rows sees
  const int seen_end = first_row < num_rows ? ceil_div(span_of(min(first_row + WIDE_ROWS, num_rows) - 1).end, KEYS) : end_tile;
  const auto leave = [&](auto& stage) { rings.leave(stage), stage.next(); };
  const auto pass = [&](int from, int to) {
    for (int tile = from; tile < to; ++tile) rings.wait(keys), leave(keys), rings.wait(values), leave(values);
  };
  pass(first_tile, seen_first);
  if (seen_first < seen_end) {
    float s[KEYS / 8][4], acc[D / 8][4], maximum[2], sum[2], keep[2], add[2];
    uint32_t probabilities[KEYS / 16][4];
    const auto softmax = [&](int tile) {
      scale.cap(s);
      if (tile < whole_first || tile >= whole_end) hide_scores(s, span, tile * KEYS, lane);
      raise_scores(s, maximum, scale.c);
    };
    // Computes P from s. The maxima are merged with those of the previous tile, which may have ended its KV split.
    const auto take_scores = [&] {
#pragma unroll
      for (int h = 0; h < 2; ++h) merge_maximum(state.running[h].maximum, maximum[h], keep[h], add[h]);
      round_scores(probabilities, s);
    };
    const auto take_values = [&] {
#pragma unroll
      for (int h = 0; h < 2; ++h) state.running[h].sum = merged(state.running[h].sum, sum[h], keep[h], add[h]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.o[n][i] = merged(state.o[n][i], acc[n][i], keep[i / 2], add[i / 2]);
      }
    };
    int tile = seen_first;
    rings.wait(keys);
    start_scores<D>(s, query, rings.at(keys));
    warpgroup_wait<0>();
    leave(keys);
    softmax(tile);
    take_scores();
    // Sums the values of a tile that is not the last one, and computes the probabilities of the next tile.
#pragma unroll 1
    for (; tile + 1 < seen_end; ++tile) {
      rings.wait(keys);
      rings.wait(values);
      start_scores<D>(s, query, rings.at(keys));
      start_values<D>(acc, probabilities, rings.at(values));
      // The compiler puts these products before the warpgroup's. After them, they would have to wait for all of the warpgroup's products.
      tile_sums(sum, probabilities);
      warpgroup_wait<1>();
      leave(keys);
      softmax(tile + 1);
      warpgroup_wait<0>();
      leave(values);
      take_values();
      if ((tile + 1) % KV_SPLIT_TILES == 0) state.end_kv_split();
      take_scores();
    }
    // The last tile may extend beyond the context.
    rings.wait(values);
    const int num_keys = context - tile * KEYS;
    if (num_keys < KEYS) clear_keys<D, 4 * WARP>(rings.at(values), num_keys, thread), fence_async_proxy(), sync();
    start_values<D>(acc, probabilities, rings.at(values));
    tile_sums(sum, probabilities);
    warpgroup_wait<0>();
    leave(values);
    take_values();
  }
  pass(seen_end, end_tile);
  state.finish();
  store_rows<D, EXTRAS>(p, state, warp_row, num_rows, token0, kv_head, lane);
#endif
}

}  // namespace pen
