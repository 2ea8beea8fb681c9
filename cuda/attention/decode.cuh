// Decode attention: sequences with one row. The heads that share a K/V head are the rows of the products. Each of a block's teams of warps
// takes its own tiles through its own ring in shared memory, and no team waits for another until the partial results are merged. A team is
// one warp if there are enough blocks to fill the device. It is four warps if a tile's latency matters: each warp then scores a quarter of
// the keys and sums a quarter of the head's elements, which changes no order of summation.
#pragma once

#include "fresh.cuh"
#include "merge.cuh"

namespace pen {

// Loads the query fragments of `rows` rows from shared memory (whole rows of D) or from p.q. Absent rows become zeros or another row.
template <int D>
__device__ __forceinline__ void load_rows(uint32_t (&q)[D / 16][4], const Attention& p, bool shared, const __half* from, int stride,
                                          int rows, int lane) {
  if (shared) {
    const uint32_t at = shared_of(from + min(lane % 16, rows - 1) * stride + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) load_matrices(q[k], at + k * 32);
  } else {
    const int row0 = lane / 4, row1 = row0 + 8;
    load_query<D>(q, row0 < rows ? from + row0 * stride : nullptr, row1 < rows ? from + row1 * stride : nullptr, p.kv.head_dim, lane);
  }
}

// A barrier for a team's warps.
template <int TEAM>
struct TeamSync {
  int team;
  __device__ __forceinline__ void operator()() const {
    if constexpr (TEAM == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(TEAM * WARP) : "memory");
    }
  }
};

// A warp's place in the team that shares a tile.
struct TeamPlace {
  int member, lane;
  char* exchange;  // the team's DecodeShared::exchange bytes, if TEAM > 1
};

// Computes the probabilities of a tile's keys on every warp of the team. Calls `scored` once the keys are no longer needed.
template <int D, int TEAM, class T = Tile<D>, class Sync, class Scored>
__device__ __forceinline__ void attend_keys(uint32_t (&probabilities)[KEYS / 16][4], float (&maximum)[2], const uint32_t (&q)[D / 16][4],
                                            uint32_t keys, const Span (&span)[2], int tile, const ScoreScale& scale, const TeamPlace& at,
                                            Sync team_sync, Scored scored) {
  constexpr int N = KEYS / 8 / TEAM;
  const int row0 = at.lane / 4, row1 = row0 + 8;
  float s[N][4];
  tile_scores<D, T>(
      s,
      [&](int k, uint32_t(&a)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[k][i];
      },
      keys, at.lane, at.member * N);
  scored();
  scale.cap(s);
  if constexpr (TEAM == 1) {
    tile_softmax(probabilities, maximum, s, span, tile, scale.c, at.lane);
  } else {
    float largest[2];
    mask_scores(largest, s, span, tile * KEYS + at.member * N * 8, at.lane);
    float* maxima = reinterpret_cast<float*>(at.exchange + KEYS / 16 * WARP * 16);  // [TEAM, ROWS]
    if (at.lane % 4 == 0) maxima[at.member * ROWS + row0] = largest[0], maxima[at.member * ROWS + row1] = largest[1];
    team_sync();
#pragma unroll
    for (int w = 0; w < TEAM; ++w) {
      largest[0] = fmaxf(largest[0], maxima[w * ROWS + row0]);
      largest[1] = fmaxf(largest[1], maxima[w * ROWS + row1]);
    }
    uint32_t own[N / 2][4];
    score_probabilities(own, maximum, largest, s, scale.c);
    uint4* fragments = reinterpret_cast<uint4*>(at.exchange);  // [KEYS / 16, WARP]
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      fragments[(at.member * (N / 2) + i) * WARP + at.lane] = make_uint4(own[i][0], own[i][1], own[i][2], own[i][3]);
    }
    team_sync();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      const uint4 f = fragments[k * WARP + at.lane];
      probabilities[k][0] = f.x, probabilities[k][1] = f.y, probabilities[k][2] = f.z, probabilities[k][3] = f.w;
    }
  }
}

// Writes the maxima and sums of a lane's two rows, `row` and `row` + 8, if they exist.
__device__ __forceinline__ void put_rows(float2* out, int step, const float (&maximum)[2], const float (&sum)[2], int row, int rows) {
  if (row < rows) out[0] = make_float2(maximum[0], sum[0]);
  if (row + 8 < rows) out[step] = make_float2(maximum[1], sum[1]);
}

// Grid: (splits, num_kv_heads · ceil(group / plan.rows), num_seqs). Block: TEAM warps per team. Shared memory: DecodeShared<D>.
//
// A team fetches its first tiles before the wait: the host has copied the step's metadata, and earlier steps have filled the pages. If the
// fresh row is in one of these tiles, it overwrites its place there afterwards. If qkv_finish runs as a separate kernel, that tile waits.
template <int D, int TEAM, bool EXTRAS>
__global__ void __launch_bounds__(WARP* TEAM* DECODE_TEAMS<D, TEAM>)
    attention_decode_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                            const __grid_constant__ DecodePlan plan, const __grid_constant__ QkvFinish fresh) {
  using Shared = DecodeShared<D>;
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const BlockHeads heads(p, step, plan);
  const int seq = heads.seq, kv_head = heads.kv_head, head = heads.head, rows = heads.rows;
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
  const int team = warp / TEAM, member = warp % TEAM, teams = warps / TEAM;
  const TeamSync<TEAM> team_sync{team};

  const DecodeRange<EXTRAS> range(step, seq, p);
  const BlockTiles tiles(range, plan);
  const int num_tiles = tiles.count();
  const int mine = team < num_tiles ? ceil_div(num_tiles - team, teams) : 0;
  const int my_first = tiles.begin + team;
  const uint32_t ring = shared_of(shared) + team * plan.buffers * Tile<D>::BYTES;
  const Pages pages(p.kv, step, seq, range.context, kv_head);
  TilePlace place, next;
  if (mine > 0) next.find(pages, my_first);
  // Item 2 t is K of this team's tile t, item 2 t + 1 its V. Every call commits a group, so counting groups counts items. A tile's place is
  // looked up one item before it is needed.
  auto fetch = [&](int item, int skip = -1) {
    if (item < 2 * mine) {
      int thread = member * WARP + lane;
      if constexpr (TEAM > 1) thread = held(thread);  // else the compiler computes what follows from it even if no tile is left
      if (item % 2 == 0) place = next;
      copy_tile<D>(ring + (item & (plan.buffers - 1)) * Tile<D>::BYTES, item % 2 == 0 ? p.kv.k : p.kv.v, place, p.kv.head_dim, thread,
                   TEAM * WARP, skip);
      if (item % 2 == 1 && item + 1 < 2 * mine) next.find(pages, my_first + (item + 1) / 2 * teams);
    }
    copy_commit();
  };
  const bool sees = num_tiles > 0 && tiles.end == range.end;  // the fresh row is in the block's tiles
  const int last_item = sees && team == (num_tiles - 1) % teams ? 2 * (mine - 1) : 2 * mine;  // K of the fresh row's tile, if it is here
  int fetched = 0;
  for (; fetched < plan.buffers && (fresh.qkv != nullptr || fetched < last_item); ++fetched) {
    fetch(fetched, fetched >= last_item ? (range.context - 1) % KEYS : -1);
  }
  const Span seen = visible<EXTRAS>(range.context - 1, p);
  // Absent rows use the row's span, too: their queries do no harm, and their results are not stored.
  const Span span[2] = {{held(seen.begin), held(seen.end)}, {seen.begin, seen.end}};
  const ScoreScale scale(p);
  const int row0 = lane / 4, row1 = row0 + 8, rounds = held(ceil_div(num_tiles, teams));
  float* const partial = held(reinterpret_cast<float*>(shared + static_cast<size_t>(teams) * plan.buffers * Tile<D>::BYTES));
  float* const state = partial + teams * plan.rows * Shared::ROW;
  float2* const partial_rows = held(reinterpret_cast<float2*>(state + 2 * plan.rows * Shared::ROW));
  const MergeSpace space{partial, partial_rows, state, partial_rows + teams * ROWS};
  char* const exchanges = shared + static_cast<size_t>(teams) * Shared::per_team(plan.buffers, plan.rows) + Shared::fixed(plan.rows);
  char* const exchange = held(exchanges + team * Shared::exchange);
  float* const tile_o = held(partial + (team * plan.rows + row0) * Shared::ROW);
  float2* const tile_row = held(partial_rows + team * ROWS + row0);
  const int token = num_tiles == 0 ? 0 : step.cu_seqlens_q[seq];
  const __half* query_rows = p.q + (static_cast<size_t>(token) * p.num_heads + head) * p.kv.head_dim;
  int query_stride = p.kv.head_dim;
  if (fresh.qkv == nullptr) {
    wait_for_previous();
    if (num_tiles == 0) return;
  } else {
    __half* queries = reinterpret_cast<__half*>(exchanges - Shared::queries(plan.rows));
    query_rows = queries, query_stride = Shared::ROW;
    // Where the fresh row's tile is, if it was fetched: in its team's ring.
    const int last_team = (num_tiles - 1) % teams, last_key = (num_tiles - 1) / teams * 2;
    const uint32_t last_ring = shared_of(shared) + last_team * plan.buffers * Tile<D>::BYTES;
    const auto place_of = [&](int item) { return sees && item < plan.buffers ? last_ring + item * Tile<D>::BYTES : NOWHERE; };
    const FreshRows fresh_rows{head,          rows,         kv_head,           range.context - 1,      token, sees, num_tiles > 0,
                               shared_of(queries), query_stride, place_of(last_key), place_of(last_key + 1)};
    fresh_rows.finish<D>(fresh, step);
    if (num_tiles == 0) return;
    __syncthreads();
  }
  for (; fetched < plan.buffers; ++fetched) fetch(fetched);

  MergeTarget target{tiles.direct, head, rows, p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim};
  if (!tiles.direct) target.leave(Partials(p, gridDim.z, plan.max_kv_splits), p, plan, blockIdx.z, range.first_kv_split());
  uint32_t q[D / 16][4];
  if (mine > 0) load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
  for (int round = 0; round < rounds; ++round) {
    if (round < mine) {
      const int tile = my_first + round * teams;
      const uint32_t keys = ring + (2 * round & (plan.buffers - 1)) * Tile<D>::BYTES;
      const uint32_t values = ring + ((2 * round + 1) & (plan.buffers - 1)) * Tile<D>::BYTES;
      copies_wait(plan.buffers - 1);
      team_sync();
      float maximum[2], sum[2];
      const TeamPlace at{member, lane, exchange};
      uint32_t probabilities[KEYS / 16][4];
      attend_keys<D, TEAM>(probabilities, maximum, q, keys, span, tile, scale, at, team_sync, [&] {
        team_sync();
        // With one buffer, this is V of the same tile.
        fetch(2 * round + plan.buffers);
      });
      tile_sums(sum, probabilities);
      copies_wait(plan.buffers - 1);
      team_sync();

      if (lane % 4 == 0 && member == 0) put_rows(tile_row, 8, maximum, sum, row0, rows);
      constexpr int ELEMENTS = D / 8 / TEAM;
      tile_values<D, ELEMENTS>(probabilities, values, lane, [&](int n, const float(&acc)[4]) {
        const int dim = n * 8 + lane % 4 * 2;
        if (dim >= p.kv.head_dim) return;
        if (row0 < rows) *reinterpret_cast<float2*>(tile_o + dim) = make_float2(acc[0], acc[1]);
        if (row1 < rows) *reinterpret_cast<float2*>(tile_o + 8 * Shared::ROW + dim) = make_float2(acc[2], acc[3]);
      }, member * ELEMENTS);
      team_sync();
      fetch(2 * round + 1 + plan.buffers);
    }
    __syncthreads();
    const MergeRound merging{tiles.begin + round * teams, min(teams, num_tiles - round * teams), round, round + 1 == rounds};
    merge_round<D, EXTRAS>(p, space, target, plan.rows, merging);
    if (!merging.last) __syncthreads();
  }
  copies_wait(0);
}

}  // namespace pen
