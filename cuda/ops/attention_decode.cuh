// Decode attention: sequences with one row. The heads that share a K/V head are the rows of the products, and a block's teams of warps
// take tiles of their own, each through its own ring of shared memory; no team waits for another until the partial results meet. A
// team is one warp where there are blocks enough to fill the device, and four where a tile's latency counts: then each scores a
// quarter of the keys and sums a quarter of the head's elements, which changes the order of nothing.
#pragma once

#include "attention.cuh"
#include "qkv_finish.cuh"

namespace pen {

constexpr int DECODE_WARPS = 8;   // teams of one, at most
constexpr int DECODE_TEAMS = 4;   // teams of four, at most
template <int TEAM>
constexpr int decode_threads() {
  return WARP * (TEAM == 1 ? DECODE_WARPS : TEAM * DECODE_TEAMS);
}

// How the host spreads a step. Free of numeric meaning.
struct DecodePlan {
  int buffers;       // tiles of K or V that a team holds: 1 or 2
  int direct_tiles;  // up to so many, one block takes all of a sequence and writes the output
  int split_tiles;   // else each block takes so many and leaves partial results in the workspace
  int max_tiles;     // of a sequence
  int rows;          // of a block: heads of the group, at most ROWS; larger groups take several blocks
};

// Shared memory of a block: rings, each warp's partial O, the merged O, (maximum, sum) of the warps' and of the merged rows, fresh Q, K and V.
template <int D>
struct DecodeShared {
  static constexpr int ROW = D + 8;  // floats: eight rows fall into different banks
  __host__ __device__ static constexpr size_t partial(int rows) { return sizeof(float) * static_cast<size_t>(rows) * ROW; }
  __host__ __device__ static constexpr size_t per_team(int buffers, int rows) {
    return static_cast<size_t>(buffers) * Tile<D>::BYTES + partial(rows) + sizeof(float2) * ROWS;
  }
  // What the warps of a team of four tell each other: fragments of P, and the rows' largest scores.
  static constexpr size_t exchange = KEYS / 16 * WARP * 16 + KEYS / 16 * ROWS * 4;
  __host__ __device__ static constexpr size_t queries(int rows) { return sizeof(__half) * static_cast<size_t>(rows + 2) * ROW; }
  __host__ __device__ static constexpr size_t fixed(int rows) { return partial(rows) + 2 * sizeof(float2) * ROWS + queries(rows); }
};

// Partial results in the workspace, tiles counted from the first that a sequence's row sees.
struct Partials {
  float* o;     // [num_seqs, num_heads, max_tiles, head_dim]
  float2* row;  // [num_seqs, num_heads, max_tiles] maximum and sum
  __device__ Partials(const Attention& p, int num_seqs, int max_tiles)
      : o(p.workspace),
        row(reinterpret_cast<float2*>(p.workspace + static_cast<size_t>(num_seqs) * p.num_heads * max_tiles * p.kv.head_dim)) {}
};

// The tiles that the one row of a sequence sees: [first, first + count), none for padding and for sequences with more rows.
struct DecodeRange {
  int context, first, count;
  __device__ DecodeRange(const StepView& step, int seq, uint32_t window) : context(step.context_lens[seq]), first(0), count(0) {
    if (context == 0 || step.cu_seqlens_q[seq + 1] - step.cu_seqlens_q[seq] != 1) return;
    first = visible(context - 1, window).begin / KEYS;
    count = ceil_div(context, KEYS) - first;
  }
};

// Where a block keeps partial results and what they merge into.
struct MergeSpace {
  const float* partial;        // [tiles, plan.rows, ROW]
  const float2* partial_rows;  // [tiles, ROWS] maximum and sum
  float* state;                // [plan.rows, ROW]
  float2* state_rows;          // two sets of ROWS: read one, write the other
};

// Merges `tiles` partial results of shared memory into the block's state, in order; the last time the output is written.
template <int D>
__device__ __forceinline__ void merge_round(const Attention& p, const MergeSpace& space, int plan_rows, int tiles, int rows, int round,
                                            bool last, __half* out) {
  using Shared = DecodeShared<D>;
  const int row_floats = plan_rows * Shared::ROW;
  const auto [partial, partial_rows, state, state_rows] = space;
  for (int i = threadIdx.x; i < rows * (D / 4); i += blockDim.x) {
    const int row = i / (D / 4), dim = i % (D / 4) * 4;
    if (dim >= p.kv.head_dim) continue;
    Running running;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (round > 0) {
      const float2 before = state_rows[(round % 2) * ROWS + row];
      running.maximum = before.x, running.sum = before.y;
      o = *reinterpret_cast<const float4*>(state + row * Shared::ROW + dim);
    }
    constexpr int BATCH = 4;  // tiles whose results are read together
    for (int t = 0; t < tiles; t += BATCH) {
      float2 tile_row[BATCH];
      float4 tile_o[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const int at = min(t + k, tiles - 1);
        tile_row[k] = partial_rows[at * ROWS + row];
        tile_o[k] = *reinterpret_cast<const float4*>(partial + at * row_floats + row * Shared::ROW + dim);
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (t + k >= tiles) break;
        float keep, add;
        merge(running, tile_row[k].x, tile_row[k].y, keep, add);
        o = make_float4(merged(o.x, tile_o[k].x, keep, add), merged(o.y, tile_o[k].y, keep, add), merged(o.z, tile_o[k].z, keep, add),
                        merged(o.w, tile_o[k].w, keep, add));
      }
    }
    if (last) {
      const float inverse = inverse_sum(running.sum);
      __half2* dst = reinterpret_cast<__half2*>(out + row * p.kv.head_dim + dim);
      dst[0] = finished(o.x, o.y, inverse);
      dst[1] = finished(o.z, o.w, inverse);
    } else {
      *reinterpret_cast<float4*>(state + row * Shared::ROW + dim) = o;
      if (dim == 0) state_rows[((round + 1) % 2) * ROWS + row] = make_float2(running.maximum, running.sum);
    }
  }
}

// The query fragments of `rows` rows, from shared memory (whole rows of D) or from p.q. Absent rows become zeros or another row.
template <int D>
__device__ __forceinline__ void load_rows(uint32_t (&q)[D / 16][4], const Attention& p, bool shared, const __half* from, int stride, int rows,
                                          int lane) {
  if (shared) {
    const uint32_t at = shared_of(from + min(lane % 16, rows - 1) * stride + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) load_matrices(q[k], at + k * 32);
  } else {
    const int row0 = lane / 4, row1 = row0 + 8;
    load_query<D>(q, row0 < rows ? from + row0 * stride : nullptr, row1 < rows ? from + row1 * stride : nullptr, p.kv.head_dim, lane);
  }
}

// A warp within the team that shares a tile.
struct TeamPlace {
  int member, lane;
  char* exchange;  // DecodeShared::exchange bytes of the team's, for TEAM > 1
};

// The probabilities of a tile's keys, on every warp of the team; `scored` is called when the keys are not needed any more.
template <int D, int TEAM, class Sync, class Scored>
__device__ __forceinline__ void attend_keys(uint32_t (&probabilities)[KEYS / 16][4], float (&maximum)[2], const uint32_t (&q)[D / 16][4],
                                            uint32_t keys, const Span (&span)[2], int tile, const ScoreScale& scale, const TeamPlace& at, Sync team_sync,
                                            Scored scored) {
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

constexpr uint32_t NOWHERE = 0xffffffffu;  // no address of shared memory; 0 may be one
__device__ __forceinline__ void store_half(uint32_t shared, __half x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(__half_as_ushort(x)) : "memory");
}

// What the blocks of a sequence do about its fresh row: the block's heads of Q into shared memory and, where the block sees them, K and
// V into the pages and into the tiles of shared memory that hold their row.
struct FreshRows {
  int head, rows, kv_head;  // Q: heads [head, head + rows)
  int position, token;
  bool sees, exists;
  uint32_t queries;              // shared: [rows, stride] halves
  int stride;
  uint32_t key_tile, value_tile;  // shared, or NOWHERE
  // Waits for the step's products on the way. Visible to the block after a __syncthreads().
  template <int D>
  __device__ __forceinline__ void finish(const QkvFinish& fresh, const StepView& step) const {
    constexpr int PAIRS = (D + 63) / 64;
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const int items = !exists ? 0 : sees ? rows + 2 : rows, padding = D - fresh.kv.head_dim;
    for (int i = threadIdx.x; i < rows * padding; i += blockDim.x) {
      store_half(queries + (i / padding * stride + fresh.kv.head_dim + i % padding) * 2, __ushort_as_half(0));
    }
    bool waited = false;
#pragma unroll 1
    for (int item = warp; item < items || !waited; item += warps) {
      const bool mine = item < items;
      const Head kind = item < rows ? Head::Q : item == rows ? Head::K : Head::V;
      FreshHead<PAIRS> fresh_head;
      fresh_head.prepare(fresh, kind, kind == Head::Q ? head + item : kv_head, token, position, mine, lane);
      const uint32_t tile = kind == Head::Q ? queries + item * stride * 2 : kind == Head::K ? key_tile : value_tile;
      __half* const page = mine && kind != Head::Q ? held(page_row(fresh.kv, kind == Head::K ? fresh.kv.k : fresh.kv.v, step.slot_mapping[token], kv_head))
                                                   : nullptr;
      uint32_t to[PAIRS][2];
#pragma unroll
      for (int j = 0; j < PAIRS; ++j) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const int dim = which == 0 ? fresh_head.first[j] : fresh_head.second[j];
          to[j][which] = held(tile + (kind == Head::Q ? dim * 2 : Tile<D>::at(position % KEYS, dim / 8) + dim % 8 * 2));
        }
      }
      if (!waited) wait_for_previous();
      waited = true;
      fresh_head.finish([&](int j, int which, __half y) {
        if (tile != NOWHERE) store_half(to[j][which], y);
        if (page != nullptr) page[which == 0 ? fresh_head.first[j] : fresh_head.second[j]] = y;
      });
    }
  }
};

// grid [splits, num_kv_heads * ceil(group / plan.rows), num_seqs], block [32 TEAM * teams]
template <int D, int TEAM>
__global__ void __launch_bounds__(decode_threads<TEAM>()) attention_decode_kernel(const __grid_constant__ Attention p, const __grid_constant__ StepView step,
                                                                                  const __grid_constant__ DecodePlan plan,
                                                                                  const __grid_constant__ QkvFinish fresh) {
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int seq = blockIdx.z, group = p.num_heads / p.kv.num_kv_heads, row_blocks = ceil_div(group, plan.rows);
  const int kv_head = blockIdx.y / row_blocks, row_block = blockIdx.y % row_blocks;
  const int head = kv_head * group + row_block * plan.rows, rows = min(group - row_block * plan.rows, plan.rows);
  const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
  const int team = warp / TEAM, member = warp % TEAM, teams = warps / TEAM;
  const auto team_sync = [&] {
    if constexpr (TEAM == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(TEAM * WARP) : "memory");
    }
  };

  // The step's metadata is the host's copy, and what earlier steps put into the pages was there before this step began: so a team
  // fetches its first tile before the wait. Where the fresh row is in it, that row is put over it afterwards (or, where qkv_finish is
  // a kernel of its own, the tile waits).
  const DecodeRange range(step, seq, p.window);
  const bool direct = range.count <= plan.direct_tiles;
  const int begin = direct ? 0 : min(static_cast<int>(blockIdx.x) * plan.split_tiles, range.count);
  const int end = direct ? (blockIdx.x == 0 ? range.count : 0) : min(begin + plan.split_tiles, range.count);
  const int num_tiles = max(end - begin, 0);  // of this block
  const int mine = team < num_tiles ? ceil_div(num_tiles - team, teams) : 0;
  const int my_first = range.first + begin + team;
  const bool early = fresh.qkv != nullptr || (my_first + 1) * KEYS < range.context;

  const uint32_t ring = shared_of(shared) + team * plan.buffers * Tile<D>::BYTES;
  const Pages pages(p.kv, step, seq, range.context, kv_head);
  TilePlace place;
  // Item 2 t is K of this team's tile t, item 2 t + 1 its V. Every call commits a group, so that the count of groups tells.
  auto fetch = [&](int item, int skip = -1) {
    if (item < 2 * mine) {
      int thread = member * WARP + lane;
      if constexpr (TEAM > 1) thread = held(thread);  // or what follows from it is computed where no tile is left, too
      if (item % 2 == 0) place.find(pages, my_first + item / 2 * teams);
      copy_tile<D>(ring + (item & (plan.buffers - 1)) * Tile<D>::BYTES, item % 2 == 0 ? p.kv.k : p.kv.v, place, p.kv.head_dim, thread, TEAM * WARP, skip);
    }
    copy_commit();
  };
  const bool sees = end == range.count;  // the fresh row lies in the block's tiles
  const bool sees_first = sees && num_tiles <= teams;  // in the first tile of its team
  if (early) {
    const int skip = fresh.qkv != nullptr && sees_first && team == num_tiles - 1 ? (range.context - 1) % KEYS : -1;
    for (int i = 0; i < plan.buffers; ++i) fetch(i, skip);
  }
  const Span seen = visible(range.context - 1, p.window);
  // Absent rows get the row's span too: their queries do no harm, and their results are not stored.
  const Span span[2] = {{held(seen.begin), held(seen.end)}, {seen.begin, seen.end}};
  const ScoreScale scale(p);
  const int row0 = lane / 4, row1 = row0 + 8, rounds = held(ceil_div(num_tiles, teams));
  float* const partial = held(reinterpret_cast<float*>(shared + static_cast<size_t>(teams) * plan.buffers * Tile<D>::BYTES));
  float2* const partial_rows = held(reinterpret_cast<float2*>(partial + (teams + 1) * plan.rows * DecodeShared<D>::ROW));
  const MergeSpace space{partial, partial_rows, partial + teams * plan.rows * DecodeShared<D>::ROW, partial_rows + teams * ROWS};
  char* const exchange = held(shared + static_cast<size_t>(teams) * DecodeShared<D>::per_team(plan.buffers, plan.rows) +
                              DecodeShared<D>::fixed(plan.rows) + team * DecodeShared<D>::exchange);
  // Where a tile's results go: those of row0, and how far it is to row1 and to the next tile.
  float* tile_o = partial + (team * plan.rows + row0) * DecodeShared<D>::ROW;
  float2* tile_row = partial_rows + team * ROWS + row0;
  int row_step = 8, tile_step = 0, o_row_step = 8 * DecodeShared<D>::ROW;
  if (!direct) {
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
      if (lane % 4 == 0 && member == 0) {
        float2* const row_out = tile_row + tile * tile_step;
        if (row0 < rows) row_out[0] = make_float2(maximum[0], sum[0]);
        if (row1 < rows) row_out[row_step] = make_float2(maximum[1], sum[1]);
      }
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
    if (direct) {
      __syncthreads();
      const bool last = round + 1 == rounds;
      merge_round<D>(p, space, plan.rows, min(teams, num_tiles - round * teams), rows, round, last,
                     p.out + static_cast<size_t>(token) * p.out_stride + head * p.kv.head_dim);
      if (!last) __syncthreads();
    }
  }
  copies_wait(0);
}

constexpr int MERGE_BATCH = 16;  // tiles whose partial results are requested together

// The outputs of sequences that were split: merges their tiles in order. grid [num_seqs, num_heads], block [128]: two elements a
// thread.
__global__ void __launch_bounds__(128) attention_merge_kernel(Attention p, StepView step, DecodePlan plan) {
  let_next_start();
  const int seq = blockIdx.x, head = blockIdx.y, dim = threadIdx.x * 2;
  const DecodeRange range(step, seq, p.window);
  wait_for_previous();
  if (range.count <= plan.direct_tiles || dim >= p.kv.head_dim) return;
  const Partials partials(p, gridDim.x, plan.max_tiles);
  const size_t at = (static_cast<size_t>(seq) * p.num_heads + head) * plan.max_tiles;
  const float* o = partials.o + at * p.kv.head_dim + dim;
  const float2* rows = partials.row + at;
  Running running;
  float2 out = make_float2(0.0f, 0.0f);
  for (int first = 0; first < range.count; first += MERGE_BATCH) {
    float2 row[MERGE_BATCH], tile_o[MERGE_BATCH];
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; ++i) {
      const int tile = min(first + i, range.count - 1);
      row[i] = rows[tile];
      tile_o[i] = *reinterpret_cast<const float2*>(o + static_cast<size_t>(tile) * p.kv.head_dim);
    }
#pragma unroll
    for (int i = 0; i < MERGE_BATCH; ++i) {
      if (first + i >= range.count) break;
      float keep, add;
      merge(running, row[i].x, row[i].y, keep, add);
      out.x = merged(out.x, tile_o[i].x, keep, add);
      out.y = merged(out.y, tile_o[i].y, keep, add);
    }
  }
  __half* dst = p.out + static_cast<size_t>(step.cu_seqlens_q[seq]) * p.out_stride + head * p.kv.head_dim + dim;
  *reinterpret_cast<__half2*>(dst) = finished(out.x, out.y, inverse_sum(running.sum));
}

}  // namespace pen
