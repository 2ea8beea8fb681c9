// Latent attention of few rows on sm_90a: a cluster of eight blocks per KV split, one block per tile. Each block multiplies its tile by all
// of the rows. It sends each block of the cluster an eighth of the values' elements, so that every block merges the tiles for its own part.
// The numbers are those of general.cuh.
#pragma once

#include "../device/cluster.cuh"
#include "latent_units.cuh"

namespace pen {

#ifdef PEN_HOPPER_DEVICE
// A block of a cluster.
template <int ROW_TILES>
struct LatentClusterBlock {
  using Shared = LatentClusterShared<ROW_TILES>;
  enum { KEYS_FULL, QUERIES_FULL = LatentKeys::BOXES / 4 + 1, PARTS_FULL };  // barriers; KEYS_FULL: three for the keys, of four boxes each
  const GeneralAttention& p;
  const StepView& step;
  const GeneralPlan& plan;
  uint32_t base;
  uint8_t* shared;
  uint64_t* full;
  int rank, kv_split;
  GeneralRows all;
  int first_row, rows, tiles, tile;  // rows: of the block; tiles: of its KV split; tile: the block's own, if it has one
  bool direct;
  int warp, lane, warpgroup, row_tile, row0;  // row0: the first of the lane's two rows
  int num_keys;                              // keys of the context from the tile's start

  __device__ __forceinline__ LatentClusterBlock(const GeneralAttention& p, const StepView& step, const GeneralPlan& plan, uint8_t* dynamic)
      : p(p), step(step), plan(plan), base(round_up(shared_of(dynamic), 1024)), shared(dynamic + (base - shared_of(dynamic))),
        full(reinterpret_cast<Ring*>(shared + Shared::barriers)->full), rank(blockIdx.x % KV_SPLIT_TILES),
        kv_split(blockIdx.x / KV_SPLIT_TILES), all(p, step, step.sequence(blockIdx.z), 0) {
    first_row = blockIdx.y * Shared::ALL_ROWS, rows = min(all.count - first_row, Shared::ALL_ROWS);
    const Span seen = all.spans(p, first_row, Shared::ALL_ROWS);
    tiles = min(ceil_div(seen.end, KEYS) - kv_split * KV_SPLIT_TILES, KV_SPLIT_TILES), tile = kv_split * KV_SPLIT_TILES + rank;
    direct = general_direct(plan, Parts(plan, seen));
    warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;
    warpgroup = warp / 4, row_tile = warp % 4, row0 = row_tile * ROWS + lane / 4, num_keys = all.context - tile * KEYS;
  }
  __device__ __forceinline__ bool mine() const { return rank < tiles; }
  __device__ __forceinline__ uint32_t fragments() const {
    return base + Shared::probabilities + (row_tile * (KEYS / 16) * WARP + lane) * 16;
  }
  // Calls copy(box) for the boxes of a warp, on one lane.
  template <class Copy>
  __device__ __forceinline__ void each_box(Copy copy) const {
    if (!mine() || lane != 0) return;
    for (int box = warp; box < LatentKeys::BOXES; box += LATENT_CLUSTER_THREADS / WARP) copy(box);
  }
  __device__ __forceinline__ void fetch_keys(const CUtensorMap& map) const {
    const Pages pages(KvView{nullptr, nullptr, 0, p.kv.block_size, 1, 1}, step, step.sequence(blockIdx.z), all.context, 0);
    const int halves = num_keys > PAGE_UNIT ? 2 : 1;
    each_box([&](int box) {
      uint64_t* const barrier = &full[KEYS_FULL + box / 4];
      if (box % 4 == 0) expect_bytes(barrier, halves * min(LatentKeys::BOXES - box, 4) * BOX_BYTES);
      for (int half = 0; half < halves; ++half) {
        copy_box(base + box * Shared::BOX + half * BOX_BYTES, map, box * BOX_DIM, box_row(pages, tile * KEYS + half * PAGE_UNIT), barrier);
      }
    });
  }
  __device__ __forceinline__ void fetch_queries(const CUtensorMap& map) const {
    each_box([&](int box) {
      if (box == 0) expect_bytes(&full[QUERIES_FULL], LatentKeys::BOXES * Shared::QUERY_BOX);
      const uint32_t to = base + Shared::queries + box * Shared::QUERY_BOX;
      copy_box(to, map, box * BOX_DIM, all.token0 * p.num_heads + first_row, &full[QUERIES_FULL]);
    });
  }

  // Computes the probabilities of the tile, by the first warpgroup.
  __device__ __forceinline__ void score(uint32_t (&probabilities)[KEYS / 16][4], float (&maximum)[2], float (&sum)[2]) const {
    float s[KEYS / 8][4];
    barrier_wait(&full[QUERIES_FULL], 0);
    const uint64_t a = tile_descriptor(base + Shared::queries), b = tile_descriptor(base);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < LATENT_DIM / 16; ++k) {
      if (k % 16 == 0) barrier_wait(&full[KEYS_FULL + k / 16], 0);
      wgmma_shared(s, moved(a, (k / 4 * Shared::QUERY_BOX + k % 4 * 32) / 16), moved(b, (k / 4 * Shared::BOX + k % 4 * 32) / 16), k == 0);
    }
    warpgroup_commit();
    warpgroup_wait<0>();
    if (row_tile >= ROW_TILES) return;
    const ScoreScale scale(p.scale, 0.0f);
    const Span span[2] = {all.span(p, first_row + row0), all.span(p, first_row + row0 + 8)};
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) s[i / 4][i % 4] = held(s[i / 4][i % 4]);
    tile_softmax(probabilities, maximum, s, span, tile, scale.c, lane);
    tile_sums(sum, probabilities);
    store_fragments(fragments(), WARP * 16, probabilities);
  }
  // Clears keys beyond the context, by the second warpgroup. The first may score them meanwhile, but those scores are masked.
  __device__ __forceinline__ void clear() const {
    barrier_wait(&full[KEYS_FULL], 0), barrier_wait(&full[KEYS_FULL + 1], 0);
    if (num_keys >= KEYS) return;
    clear_keys<LATENT_VALUE, 4 * WARP>(base, num_keys, threadIdx.x % (4 * WARP));
    fence_async_proxy();
  }

  // Multiplies the tile and sends the results. In between, every thread of the cluster waits until the others have initialised their
  // barriers.
  __device__ __forceinline__ void multiply() const {
    uint32_t probabilities[KEYS / 16][4] = {};
    float maximum[2], sum[2], o[STATE_BOXES][BOX_DIM / 8][4];
    if (warpgroup == 0) score(probabilities, maximum, sum); else clear();
    __syncthreads();
    const bool active = row_tile < ROW_TILES;
    if (warpgroup == 1 && active) load_fragments(probabilities, fragments(), WARP * 16);
    warpgroup_arrive();
#pragma unroll
    for (int box = 0; box < STATE_BOXES; ++box) {
      const uint64_t b = transposed_descriptor(base + (warpgroup * STATE_BOXES + box) * Shared::BOX, Shared::BOX);
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) wgmma<true>(o[box], probabilities[k], moved(b, k * 16 * 128 / 16), k == 0);
    }
    warpgroup_commit();
    cluster_wait();
    warpgroup_wait<0>();
    if (!active) return;
#pragma unroll
    for (int box = 0; box < STATE_BOXES; ++box) {
      const int to = warpgroup * STATE_BOXES + box;
      const uint32_t barrier = in_block(shared_of(&full[PARTS_FULL]), to);
      const uint32_t place = in_block(base + Shared::parts + rank * Shared::part + (row0 * Shared::STRIDE + lane % 4 * 2) * 4, to);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (row0 + 8 * h >= rows) continue;
#pragma unroll
        for (int n = 0; n < BOX_DIM / 8; ++n) {
          store_cluster(place + (8 * h * Shared::STRIDE + n * 8) * 4, held(o[box][n][2 * h]), held(o[box][n][2 * h + 1]), barrier);
        }
      }
    }
    if (warpgroup != 0) return;
    // Each of a row's four lanes informs two blocks.
#pragma unroll
    for (int i = 0; i < KV_SPLIT_TILES / 4; ++i) {
      const int to = lane % 4 * (KV_SPLIT_TILES / 4) + i;
      const uint32_t barrier = in_block(shared_of(&full[PARTS_FULL]), to);
      const uint32_t place = in_block(base + Shared::rows + (rank * Shared::ALL_ROWS + row0) * static_cast<int>(sizeof(float2)), to);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (row0 + 8 * h < rows) store_cluster(place + 8 * h * static_cast<int>(sizeof(float2)), maximum[h], sum[h], barrier);
      }
    }
  }

  // Merges the tiles of the KV split for the block's part of the elements.
  __device__ __forceinline__ void merge_tiles() const {
    barrier_wait(&full[PARTS_FULL], 0);
    const GeneralPartials partials(p, plan);
    const float* const parts = reinterpret_cast<const float*>(shared + Shared::parts);
    const float2* const tile_rows = reinterpret_cast<const float2*>(shared + Shared::rows);
    for (int i = threadIdx.x; i < rows * (BOX_DIM / 4); i += LATENT_CLUSTER_THREADS) {
      const int row = i / (BOX_DIM / 4), column = i % (BOX_DIM / 4) * 4, at = first_row + row, dim = rank * BOX_DIM + column;
      MergeState merged_tiles;
      for (int t = 0; t < tiles; ++t) {
        const float* const x = parts + (t * Shared::ALL_ROWS + row) * Shared::STRIDE + column;
        merged_tiles.add(tile_rows[t * Shared::ALL_ROWS + row], *reinterpret_cast<const float4*>(x));
      }
      const float2 found = make_float2(merged_tiles.running.maximum, merged_tiles.running.sum);
      if (direct) {
        MergeState whole;
        whole.add(found, merged_tiles.o);
        const float inverse = inverse_sum(whole.running.sum);
        __half* const out = p.out + static_cast<size_t>(all.token(at)) * p.ld_out + all.head(at) * LATENT_VALUE + dim;
        reinterpret_cast<__half2*>(out)[0] = finished(whole.o.x, whole.o.y, inverse);
        reinterpret_cast<__half2*>(out)[1] = finished(whole.o.z, whole.o.w, inverse);
      } else if (kv_split < Parts(plan, all.span(p, at)).end) {
        const size_t to = partials.at(all, at, blockIdx.z) + kv_split;
        if (rank == 0 && column == 0) partials.row[to] = found;
        *reinterpret_cast<float4*>(partials.o + to * partials.stride + dim) = merged_tiles.o;
      }
    }
  }
};
#endif

// Grid: (KV_SPLIT_TILES · KV splits, row blocks, num_seqs), in clusters along x.
template <int ROW_TILES>
__global__ void __launch_bounds__(LATENT_CLUSTER_THREADS, 1)
    attention_latent_cluster_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                                    const __grid_constant__ GeneralPlan plan, const __grid_constant__ CUtensorMap queries_map,
                                    const __grid_constant__ CUtensorMap keys_map) {
#ifdef PEN_HOPPER_DEVICE
  using Block = LatentClusterBlock<ROW_TILES>;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const Block block(p, step, plan, dynamic);
  if (threadIdx.x == 0) {
    for (int i = 0; i <= Block::PARTS_FULL; ++i) barrier_init(&block.full[i], 1);
    const int each = static_cast<int>(sizeof(float2) + BOX_DIM * sizeof(float));
    expect_bytes(&block.full[Block::PARTS_FULL], max(block.tiles, 0) * block.rows * each);
  }
  cluster_arrive();
  __syncthreads();
  // Fetches keys before the wait, unless the preceding kernels write some keys of the tile.
  const bool early = (block.tile + 1) * KEYS <= block.all.context - block.all.tokens;
  if (early) block.fetch_keys(keys_map);
  wait_for_previous();
  if (!early) block.fetch_keys(keys_map);
  block.fetch_queries(queries_map);
  if (block.mine()) block.multiply(); else cluster_wait();
  if (block.tiles > 0) block.merge_tiles();
#endif
}

}  // namespace pen
