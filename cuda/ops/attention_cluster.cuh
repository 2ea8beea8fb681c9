// Decode attention over short contexts on sm_90: a block for each tile, and those of a sequence and K/V head form a cluster. Every block
// leaves its partial result in the first one's shared memory, which merges them. So a tile's copies need little room and begin
// early, and they are spread over multiprocessors. The same numbers as attention_decode.cuh, from the same functions.
#pragma once

#include "attention_decode.cuh"

namespace pen {

constexpr int CLUSTER_TILES = 8;  // blocks that every device lets a cluster have
constexpr int CLUSTER_TEAM = 4;   // warps of a block

template <int D>
struct ClusterShared {
  static constexpr int ROW = DecodeShared<D>::ROW;
  static constexpr size_t tiles = 2 * static_cast<size_t>(Tile<D>::BYTES);
  static constexpr size_t exchange = tiles + 16;  // behind the barrier
  static constexpr size_t queries = exchange + DecodeShared<D>::exchange;
  __host__ __device__ static constexpr size_t partial_rows(int rows) { return queries + round_up(DecodeShared<D>::queries(rows), 16); }
  __host__ __device__ static constexpr size_t partial(int rows, int blocks) { return partial_rows(rows) + sizeof(float2) * ROWS * blocks; }
  __host__ __device__ static constexpr size_t bytes(int rows, int blocks) {
    return partial(rows, blocks) + DecodeShared<D>::partial(rows) * blocks;
  }
};

// An address of this block's shared memory, as the same of the cluster's first block.
__device__ __forceinline__ uint32_t in_first_block(uint32_t shared) {
  uint32_t at = shared;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(at) : "r"(shared));
#endif
  return at;
}
__device__ __forceinline__ void store_cluster(uint32_t at, float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
#endif
}
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// What the warp has stored before becomes visible to who waits for the barrier of the first block.
__device__ __forceinline__ void arrive_at_first_block(uint32_t barrier, int lane) {
  __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (lane == 0) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster(uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@done bra end;\nbra wait;\nend:\n}\n" ::"r"(
          barrier)
      : "memory");
#endif
}

// grid [tiles, num_kv_heads * ceil(group / plan.rows), num_seqs] in clusters of [tiles, 1, 1], block [32 CLUSTER_TEAM]
template <int D>
__global__ void __launch_bounds__(WARP* CLUSTER_TEAM) attention_cluster_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                                                                               const __grid_constant__ DecodePlan plan,
                                                                               const __grid_constant__ QkvFinish fresh) {
  using Shared = ClusterShared<D>;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int seq = blockIdx.z, group = p.num_heads / p.kv.num_kv_heads, row_blocks = ceil_div(group, plan.rows);
  const int kv_head = blockIdx.y / row_blocks, row_block = blockIdx.y % row_blocks;
  const int head = kv_head * group + row_block * plan.rows, rows = min(group - row_block * plan.rows, plan.rows);
  const int member = threadIdx.x / WARP, lane = threadIdx.x % WARP, rank = blockIdx.x;
  const DecodeRange range(step, seq, p.window);
  const bool mine = rank < range.count;
  uint64_t* barrier = reinterpret_cast<uint64_t*>(shared + Shared::tiles);
  if (threadIdx.x == 0) barrier_init(barrier, CLUSTER_TEAM * max(range.count, 1));
  cluster_arrive();

  const int tile = range.first + rank;
  const uint32_t keys = shared_of(shared), values = keys + Tile<D>::BYTES;
  const auto fetch = [&] {
    if (mine) {
      TilePlace place;
      place.find(Pages(p.kv, step, seq, range.context, kv_head), tile);
      copy_tile<D>(keys, p.kv.k, place, p.kv.head_dim, threadIdx.x, WARP * CLUSTER_TEAM);
      copy_commit();
      copy_tile<D>(values, p.kv.v, place, p.kv.head_dim, threadIdx.x, WARP * CLUSTER_TEAM);
    }
    copy_commit();
  };
  // As in attention_decode_kernel: ahead of the wait, unless another kernel writes the fresh row.
  const bool early = fresh.qkv != nullptr || (tile + 1) * KEYS < range.context;
  if (early) fetch();
  const int token = mine ? step.cu_seqlens_q[seq] : 0;
  const __half* query_rows = p.q + (static_cast<size_t>(token) * p.num_heads + head) * p.kv.head_dim;
  int query_stride = p.kv.head_dim;
  const bool sees = rank == range.count - 1;  // the fresh row lies in its tile
  if (fresh.qkv == nullptr) {
    wait_for_previous();
    if (!early) fetch();
    copies_wait(1);
  } else {
    __half* queries = reinterpret_cast<__half*>(shared + Shared::queries);
    query_rows = queries, query_stride = Shared::ROW;
    const FreshRows fresh_rows{head, rows, kv_head, range.context - 1, token, sees, mine};
    fresh_rows.finish<D>(fresh, step, queries, query_stride);
    copies_wait(sees ? 0 : 1);
  }
  cluster_wait();  // the first block's barrier is there
  if (!mine) return;
  __syncthreads();
  if (fresh.qkv != nullptr && sees) {
    const __half* queries = reinterpret_cast<const __half*>(shared + Shared::queries);
    const int row = (range.context - 1) % KEYS;
    for (int i = threadIdx.x; i < p.kv.head_dim / 4; i += WARP * CLUSTER_TEAM) {
      const int which = i / (p.kv.head_dim / 8), chunk = i % (p.kv.head_dim / 8);
      *reinterpret_cast<uint4*>(shared + which * Tile<D>::BYTES + Tile<D>::at(row, chunk)) =
          *reinterpret_cast<const uint4*>(queries + (rows + which) * query_stride + chunk * 8);
    }
    __syncthreads();
  }

  const int row0 = lane / 4, row1 = row0 + 8;
  uint32_t q[D / 16][4];
  load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
  const Span seen = visible(range.context - 1, p.window);
  const Span span[2] = {seen, seen};
  const ScoreScale scale(p);
  uint32_t probabilities[KEYS / 16][4];
  float maximum[2], sum[2];
  const auto sync = [] { __syncthreads(); };
  attend_keys<D, CLUSTER_TEAM>(probabilities, maximum, q, keys, span, tile, scale, TeamPlace{member, lane, shared + Shared::exchange}, sync, [] {});
  tile_sums(sum, probabilities);
  copies_wait(0);
  __syncthreads();

  const size_t partial_at = Shared::partial(plan.rows, gridDim.x), rows_at = Shared::partial_rows(plan.rows);
  const uint32_t o = in_first_block(shared_of(shared + partial_at) + static_cast<uint32_t>(DecodeShared<D>::partial(plan.rows)) * rank);
  if (lane % 4 == 0 && member == 0) {
    const uint32_t place = in_first_block(shared_of(shared + rows_at) + rank * ROWS * 8);
    if (row0 < rows) store_cluster(place + row0 * 8, maximum[0], sum[0]);
    if (row1 < rows) store_cluster(place + row1 * 8, maximum[1], sum[1]);
  }
  constexpr int ELEMENTS = D / 8 / CLUSTER_TEAM;
  tile_values<D, ELEMENTS>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
    const int dim = n * 8 + lane % 4 * 2;
    if (dim >= p.kv.head_dim) return;
    if (row0 < rows) store_cluster(o + (row0 * Shared::ROW + dim) * 4, acc[0], acc[1]);
    if (row1 < rows) store_cluster(o + (row1 * Shared::ROW + dim) * 4, acc[2], acc[3]);
  }, member * ELEMENTS);
  arrive_at_first_block(in_first_block(shared_of(barrier)), lane);
  if (rank != 0) return;
  wait_for_cluster(shared_of(barrier));
  const MergeSpace space{reinterpret_cast<const float*>(shared + partial_at), reinterpret_cast<const float2*>(shared + rows_at), nullptr, nullptr};
  merge_round<D>(p, space, plan.rows, range.count, rows, 0, true, p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim);
}

}  // namespace pen
