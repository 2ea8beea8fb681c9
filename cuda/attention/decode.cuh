// Decode attention: sequences with one row. The heads that share a K/V head are the rows of the products. A block's teams of warps take
// tiles of their own, each through its own ring of shared memory, and no team waits for another until the partial results meet. A team is
// one warp if there are blocks enough to fill the device. It is four warps if a tile's latency counts: then each warp scores a quarter of
// the keys and sums a quarter of the head's elements, which changes no order of summation.
#pragma once

#include "fresh.cuh"
#include "merge.cuh"

namespace pen {

constexpr int DECODE_WARPS = 8;   // teams of one, at most
constexpr int DECODE_TEAMS = 4;   // teams of four, at most
template <int TEAM>
constexpr int decode_threads() {
  return WARP * (TEAM == 1 ? DECODE_WARPS : TEAM * DECODE_TEAMS);
}

// The query fragments of `rows` rows, from shared memory (whole rows of D) or from p.q. Absent rows become zeros or another row.
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

// A barrier for the warps of a team.
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

// A warp within the team that shares a tile.
struct TeamPlace {
  int member, lane;
  char* exchange;  // DecodeShared::exchange bytes of the team's, for TEAM > 1
};

// The probabilities of a tile's keys, on every warp of the team. `scored` is called when the keys are no longer needed.
template <int D, int TEAM, class Sync, class Scored>
__device__ __forceinline__ void attend_keys(uint32_t (&probabilities)[KEYS / 16][4], float (&maximum)[2], const uint32_t (&q)[D / 16][4],
                                            uint32_t keys, const Span (&span)[2], int tile, const ScoreScale& scale, const TeamPlace& at,
                                            Sync team_sync, Scored scored) {
  constexpr int N = KEYS / 8 / TEAM;
  const int row0 = at.lane / 4, row1 = row0 + 8;
  float s[N][4];
  tile_scores<D>(
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

// Writes the maxima and sums of a lane's two rows, `row` and `row` + 8, as far as there are that many.
__device__ __forceinline__ void put_rows(float2* out, int step, const float (&maximum)[2], const float (&sum)[2], int row, int rows) {
  if (row < rows) out[0] = make_float2(maximum[0], sum[0]);
  if (row + 8 < rows) out[step] = make_float2(maximum[1], sum[1]);
}

// Grid: (splits, num_kv_heads · ceil(group / plan.rows), num_seqs). Block: TEAM warps per team. Shared memory: DecodeShared<D>.
//
// The host copied the step's metadata, and earlier steps filled the pages before this step began. So a team fetches its first tile before
// the wait. If the fresh row lies in that tile, the row is written over it afterwards, or, if qkv_finish runs as a kernel, the tile waits.
template <int D, int TEAM, bool EXTRAS>
__global__ void __launch_bounds__(decode_threads<TEAM>())
    attention_decode_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                            const __grid_constant__ DecodePlan plan, const __grid_constant__ QkvFinish fresh) {
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const BlockHeads heads(p, plan);
  const int seq = heads.seq, kv_head = heads.kv_head, head = heads.head, rows = heads.rows;
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
  const int team = warp / TEAM, member = warp % TEAM, teams = warps / TEAM;
  const TeamSync<TEAM> team_sync{team};

  const DecodeRange<EXTRAS> range(step, seq, p);
  const BlockTiles tiles(range, plan);
  const int num_tiles = max(tiles.end - tiles.begin, 0);
  const int mine = team < num_tiles ? ceil_div(num_tiles - team, teams) : 0;
  const int my_first = range.first + tiles.begin + team;
  const bool early = fresh.qkv != nullptr || (my_first + 1) * KEYS < range.context;

  const uint32_t ring = shared_of(shared) + team * plan.buffers * Tile<D>::BYTES;
  const Pages pages(p.kv, step, seq, range.context, kv_head);
  TilePlace place;
  // Item 2 t is K of this team's tile t, item 2 t + 1 its V. Every call commits a group, so that counting groups counts items.
  auto fetch = [&](int item, int skip = -1) {
    if (item < 2 * mine) {
      int thread = member * WARP + lane;
      if constexpr (TEAM > 1) thread = held(thread);  // else what follows from it is computed even if no tile is left
      if (item % 2 == 0) place.find(pages, my_first + item / 2 * teams);
      copy_tile<D>(ring + (item & (plan.buffers - 1)) * Tile<D>::BYTES, item % 2 == 0 ? p.kv.k : p.kv.v, place, p.kv.head_dim, thread,
                   TEAM * WARP, skip);
    }
    copy_commit();
  };
  const bool sees = tiles.end == range.count;  // the fresh row lies in the block's tiles
  const bool sees_first = sees && num_tiles <= teams;  // in the first tile of its team
  if (early) {
    const int skip = fresh.qkv != nullptr && sees_first && team == num_tiles - 1 ? (range.context - 1) % KEYS : -1;
    for (int i = 0; i < plan.buffers; ++i) fetch(i, skip);
  }
  const Span seen = visible<EXTRAS>(range.context - 1, p);
  // Absent rows get the row's span, too: their queries do no harm, and their results are not stored.
  const Span span[2] = {{held(seen.begin), held(seen.end)}, {seen.begin, seen.end}};
  const ScoreScale scale(p);
  const int row0 = lane / 4, row1 = row0 + 8, rounds = held(ceil_div(num_tiles, teams));
  float* const partial = held(reinterpret_cast<float*>(shared + static_cast<size_t>(teams) * plan.buffers * Tile<D>::BYTES));
  float2* const partial_rows = held(reinterpret_cast<float2*>(partial + (teams + 1) * plan.rows * DecodeShared<D>::ROW));
  const MergeSpace space{partial, partial_rows, partial + teams * plan.rows * DecodeShared<D>::ROW, partial_rows + teams * ROWS};
  char* const exchange = held(shared + static_cast<size_t>(teams) * DecodeShared<D>::per_team(plan.buffers, plan.rows) +
                              DecodeShared<D>::fixed(plan.rows) + team * DecodeShared<D>::exchange);
  // Where a tile's results go: those of row0, and the distances to row1 and to the next tile.
  float* tile_o = partial + (team * plan.rows + row0) * DecodeShared<D>::ROW;
  float2* tile_row = partial_rows + team * ROWS + row0;
  int row_step = 8, tile_step = 0, o_row_step = 8 * DecodeShared<D>::ROW;
  if (!tiles.direct) {
    const Partials partials(p, gridDim.z, plan.max_tiles);
    const size_t at = (static_cast<size_t>(seq) * p.num_heads + head + row0) * plan.max_tiles - range.first;
    tile_o = partials.o + at * p.kv.head_dim, tile_row = partials.row + at;
    row_step = 8 * plan.max_tiles, tile_step = 1, o_row_step = row_step * p.kv.head_dim;
  }
  tile_o = held(tile_o), tile_row = held(tile_row), row_step = held(row_step), o_row_step = held(o_row_step);
  const int token = num_tiles == 0 ? 0 : step.cu_seqlens_q[seq];
  const __half* query_rows = p.q + (static_cast<size_t>(token) * p.num_heads + head) * p.kv.head_dim;
  int query_stride = p.kv.head_dim;
  if (fresh.qkv == nullptr) {
    wait_for_previous();
    if (num_tiles == 0) return;
  } else {
    __half* queries = reinterpret_cast<__half*>(shared + static_cast<size_t>(teams) * DecodeShared<D>::per_team(plan.buffers, plan.rows) +
                                                DecodeShared<D>::partial(plan.rows) + 2 * sizeof(float2) * ROWS);
    query_rows = queries, query_stride = DecodeShared<D>::ROW;
    const uint32_t last_tile = shared_of(shared) + (num_tiles - 1) * plan.buffers * Tile<D>::BYTES;
    const FreshRows fresh_rows{head, rows, kv_head, range.context - 1, token, sees, num_tiles > 0, shared_of(queries), query_stride,
                               sees_first ? last_tile : NOWHERE, sees_first && plan.buffers == 2 ? last_tile + Tile<D>::BYTES : NOWHERE};
    fresh_rows.finish<D>(fresh, step);
    if (num_tiles == 0) return;
    __syncthreads();
  }
  if (!early) {
    for (int i = 0; i < plan.buffers; ++i) fetch(i);
  }

  uint32_t q[D / 16][4];
  if (mine > 0) load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
  for (int round = 0; round < rounds; ++round) {
    if (round < mine) {
      const int tile = my_first + round * teams;
      copies_wait(plan.buffers - 1);
      team_sync();
      float maximum[2], sum[2];
      const TeamPlace place{member, lane, exchange};
      uint32_t probabilities[KEYS / 16][4];
      attend_keys<D, TEAM>(probabilities, maximum, q, ring, span, tile, scale, place, team_sync, [&] {
        team_sync();
        // With one buffer this is V of the same tile.
        fetch(2 * round + plan.buffers);
      });
      tile_sums(sum, probabilities);
      copies_wait(plan.buffers - 1);
      team_sync();

      float* const o = tile_o + static_cast<size_t>(tile * tile_step) * p.kv.head_dim;
      if (lane % 4 == 0 && member == 0) put_rows(tile_row + tile * tile_step, row_step, maximum, sum, row0, rows);
      constexpr int ELEMENTS = D / 8 / TEAM;
      tile_values<D, ELEMENTS>(probabilities, ring + (plan.buffers - 1) * Tile<D>::BYTES, lane, [&](int n, const float(&acc)[4]) {
        const int dim = n * 8 + lane % 4 * 2;
        if (dim >= p.kv.head_dim) return;
        if (row0 < rows) *reinterpret_cast<float2*>(o + dim) = make_float2(acc[0], acc[1]);
        if (row1 < rows) *reinterpret_cast<float2*>(o + o_row_step + dim) = make_float2(acc[2], acc[3]);
      }, member * ELEMENTS);
      team_sync();
      fetch(2 * round + 1 + plan.buffers);
    }
    if (tiles.direct) {
      __syncthreads();
      const bool last = round + 1 == rounds;
      merge_round<D, EXTRAS>(p, space, plan.rows, min(teams, num_tiles - round * teams), rows, round, last, head,
                     p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim);
      if (!last) __syncthreads();
    }
  }
  copies_wait(0);
}

}  // namespace pen
