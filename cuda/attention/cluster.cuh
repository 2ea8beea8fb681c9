// Decode attention on sm_90 for few blocks: one block per tile. The blocks of a sequence and K/V head form a cluster, or those of each of
// its KV splits do. Each block leaves its partial result in the shared memory of the first block, which merges them. So a tile's copies
// take little memory, start early, and are spread over multiprocessors. The numbers are those of decode.cuh, from the same functions.
#pragma once

#include "../device/cluster.cuh"
#include "decode.cuh"

namespace pen {

__device__ __forceinline__ int cluster_blocks(const DecodePlan& plan) { return plan.max_kv_splits > 0 ? KV_SPLIT_TILES : int(gridDim.x); }

// Grid: (tiles, at least two, or KV_SPLIT_TILES per KV split; num_kv_heads · ceil(group / plan.rows); num_seqs), in clusters along x.
// Block: up to CLUSTER_WARPS warps. Shared memory: ClusterShared<D>::bytes(). plan.max_kv_splits: 0 if a cluster takes a whole sequence.
template <int D, bool EXTRAS>
__global__ void __launch_bounds__(WARP* CLUSTER_WARPS)
    attention_cluster_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                             const __grid_constant__ DecodePlan plan, const __grid_constant__ QkvFinish fresh) {
  using Shared = ClusterShared<D>;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const BlockHeads heads(p, step, plan);
  const int seq = heads.seq, kv_head = heads.kv_head, head = heads.head, rows = heads.rows;
  const int member = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const DecodeRange<EXTRAS> range(step, seq, p);
  int begin = range.begin, end = range.end, rank = blockIdx.x;
  if (plan.max_kv_splits > 0) {
    const int kv_split = range.first_kv_split() + rank / KV_SPLIT_TILES;
    begin = max(begin, kv_split * KV_SPLIT_TILES), end = min(end, (kv_split + 1) * KV_SPLIT_TILES), rank %= KV_SPLIT_TILES;
  }
  const int num_tiles = max(end - begin, 0);
  const bool mine = rank < num_tiles;
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(shared + Shared::tiles);
  if (rank == 0 && threadIdx.x == 0) {
    barrier_init(barrier, 1);
    expect_bytes(barrier, num_tiles * rows * static_cast<int>(sizeof(float2) + sizeof(float) * p.kv.head_dim));
  }
  cluster_arrive();

  const int tile = begin + rank;
  const bool sees = mine && tile + 1 == range.end;  // the fresh row is in its tile
  const uint32_t keys = shared_of(shared), values = keys + Tile<D>::BYTES;
  const auto fetch = [&] {
    if (mine) {
      TilePlace place;
      place.find(Pages(p.kv, step, seq, range.context, kv_head), tile);
      const int skip = fresh.qkv != nullptr && sees ? (range.context - 1) % KEYS : -1;
      copy_tile<D>(keys, p.kv.k, place, p.kv.head_dim, threadIdx.x, blockDim.x, skip);
      copy_commit();
      copy_tile<D>(values, p.kv.v, place, p.kv.head_dim, threadIdx.x, blockDim.x, skip);
    }
    copy_commit();
  };
  // As in attention_decode_kernel: copies start before the wait, unless another kernel writes the fresh row.
  const bool early = fresh.qkv != nullptr || (tile + 1) * KEYS < range.context;
  if (early) fetch();
  const int token = mine ? step.cu_seqlens_q[seq] : 0;
  const __half* query_rows = p.q + (static_cast<size_t>(token) * p.num_heads + head) * p.kv.head_dim;
  int query_stride = p.kv.head_dim;
  const Span seen = visible<EXTRAS>(range.context - 1, p);
  const Span span[2] = {{held(seen.begin), held(seen.end)}, {seen.begin, seen.end}};
  const ScoreScale scale(p);
  if (fresh.qkv == nullptr) {
    wait_for_previous();
    if (!early) fetch();
  } else {
    __half* queries = reinterpret_cast<__half*>(shared + Shared::queries);
    query_rows = queries, query_stride = Shared::ROW;
    const FreshRows fresh_rows{head, rows, kv_head, range.context - 1, token, sees, mine, shared_of(queries), query_stride, keys, values};
    fresh_rows.finish<D>(fresh, step);
  }
  copies_wait(0);
  cluster_wait();  // the first block has started
  if (!mine) return;
  __syncthreads();
  const size_t partial_at = Shared::partial(plan.rows, cluster_blocks(plan)), rows_at = Shared::partial_rows(plan.rows);
  if (member < CLUSTER_TEAM) {
    const int row0 = lane / 4, row1 = row0 + 8;
    uint32_t q[D / 16][4];
    load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
    uint32_t probabilities[KEYS / 16][4];
    float maximum[2], sum[2];
    const auto sync = [] { asm volatile("bar.sync 1, %0;" ::"n"(CLUSTER_TEAM * WARP) : "memory"); };
    const TeamPlace place{member, lane, shared + Shared::exchange};
    attend_keys<D, CLUSTER_TEAM>(probabilities, maximum, q, keys, span, tile, scale, place, sync, [] {});
    tile_sums(sum, probabilities);
    const uint32_t o = in_block(shared_of(shared + partial_at) + static_cast<uint32_t>(DecodeShared<D>::partial(plan.rows)) * rank, 0);
    const uint32_t first_barrier = in_block(shared_of(barrier), 0);
    if (lane % 4 == 0 && member == 0) {
      const uint32_t to = in_block(shared_of(shared + rows_at) + rank * ROWS * 8, 0);
      if (row0 < rows) store_cluster(to + row0 * 8, maximum[0], sum[0], first_barrier);
      if (row1 < rows) store_cluster(to + row1 * 8, maximum[1], sum[1], first_barrier);
    }
    constexpr int ELEMENTS = D / 8 / CLUSTER_TEAM;
    tile_values<D, ELEMENTS>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
      const int dim = n * 8 + lane % 4 * 2;
      if (dim >= p.kv.head_dim) return;
      if (row0 < rows) store_cluster(o + (row0 * Shared::ROW + dim) * 4, acc[0], acc[1], first_barrier);
      if (row1 < rows) store_cluster(o + (row1 * Shared::ROW + dim) * 4, acc[2], acc[3], first_barrier);
    }, member * ELEMENTS);
  }
  if (rank != 0) return;
  barrier_wait(barrier, 0);
  const MergeSpace space{reinterpret_cast<const float*>(shared + partial_at), reinterpret_cast<const float2*>(shared + rows_at), nullptr,
                         nullptr};
  MergeTarget target{true, head, rows, p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim};
  if (plan.max_kv_splits > 0 && range.num_kv_splits() > plan.share) {
    target.leave(Partials(p, gridDim.z, plan.max_kv_splits), p, plan, blockIdx.z, range.first_kv_split());
  }
  merge_round<D, EXTRAS>(p, space, target, plan.rows, MergeRound{begin, num_tiles, 0, true});
}

}  // namespace pen
