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
    for (int t = 0; t < tiles; ++t) {
      const float2 tile_row = partial_rows[t * ROWS + row];
      const float4 tile_o = *reinterpret_cast<const float4*>(partial + t * row_floats + row * Shared::ROW + dim);
      float keep, add;
      merge(running, tile_row.x, tile_row.y, keep, add);
      o = make_float4(merged(o.x, tile_o.x, keep, add), merged(o.y, tile_o.y, keep, add), merged(o.z, tile_o.z, keep, add),
                      merged(o.w, tile_o.w, keep, add));
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

// The query fragments of `rows` rows, from shared memory or from p.q. Absent rows become zeros or another row.
template <int D>
__device__ __forceinline__ void load_rows(uint32_t (&q)[D / 16][4], const Attention& p, bool shared, const __half* from, int stride, int rows,
                                          int lane) {
  if (shared) {
    const uint32_t at = shared_of(from + min(lane % 16, rows - 1) * stride + lane / 16 * 8);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      if (k * 16 < p.kv.head_dim) load_matrices(q[k], at + k * 32);
      if (k * 16 >= p.kv.head_dim) q[k][0] = q[k][1] = q[k][2] = q[k][3] = 0;
      // an odd number of eights: the rest of the row is not there
      if (k * 16 + 8 == p.kv.head_dim) q[k][2] = q[k][3] = 0;
    }
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

// What the blocks of a sequence do about its fresh row: the block's heads of Q into shared memory and, where the block sees them, K and
// V, which follow them there, into the pages, too.
struct FreshRows {
  int head, rows, kv_head;  // Q: heads [head, head + rows)
  int position, token;
  bool sees, exists;
  // Waits for the step's products on the way. Rows of `stride` halves; visible to the block after a __syncthreads().
  template <int D>
  __device__ __forceinline__ void finish(const QkvFinish& fresh, const StepView& step, __half* queries, int stride) const {
    const int num_heads = fresh.num_heads, kv_heads = fresh.kv.num_kv_heads, head_dim = fresh.kv.head_dim;
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    const int heads = num_heads + 2 * kv_heads, items = sees ? rows + 2 : rows;
    const uint32_t slot = exists ? step.slot_mapping[token] : NO_SLOT;
    FreshHead<(D + 63) / 64> item_head;
    const auto head_of = [&](int item) { return item < rows ? head + item : num_heads + (item - rows) * kv_heads + kv_head; };
    item_head.prepare(fresh, head_of(min(warp, items - 1)), position, exists && warp < items, lane);
    wait_for_previous();
    if (!exists) return;
    for (int item = warp; item < items; item += warps) {
      if (item != warp) item_head.prepare(fresh, head_of(item), position, true, lane);
      __half* to = queries + item * stride;
      item_head.finish(fresh, fresh.qkv + (static_cast<size_t>(token) * heads + head_of(item)) * head_dim, to, lane);
      if (item < rows) continue;
      __syncwarp();
      __half* page = page_row(fresh.kv, item == rows ? fresh.kv.k : fresh.kv.v, slot, kv_head);
      for (int i = lane * 8; i < head_dim; i += WARP * 8) *reinterpret_cast<uint4*>(page + i) = *reinterpret_cast<const uint4*>(to + i);
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
  auto fetch = [&](int item) {
    if (item < 2 * mine) {
      if (item % 2 == 0) place.find(pages, my_first + item / 2 * teams);
      copy_tile<D>(ring + item % plan.buffers * Tile<D>::BYTES, item % 2 == 0 ? p.kv.k : p.kv.v, place, p.kv.head_dim, member * WARP + lane, TEAM * WARP);
    }
    copy_commit();
  };
  if (early) {
    for (int i = 0; i < plan.buffers; ++i) fetch(i);
  }
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
    const bool sees = end == range.count;  // the fresh row lies in its tiles
    const FreshRows fresh_rows{head, rows, kv_head, range.context - 1, token, sees, num_tiles > 0};
    fresh_rows.finish<D>(fresh, step, queries, query_stride);
    if (num_tiles == 0) return;
    __syncthreads();
    if (sees && team == num_tiles - 1) {  // the fresh row's tile is this team's first
      copies_wait(0);
      team_sync();
      const int row = (range.context - 1) % KEYS;
      for (int i = member * WARP + lane; i < p.kv.head_dim / 8 * plan.buffers; i += TEAM * WARP) {
        const int which = i / (p.kv.head_dim / 8), chunk = i % (p.kv.head_dim / 8);  // K, then V where it is there already
        *reinterpret_cast<uint4*>(shared + (static_cast<size_t>(team) * plan.buffers + which) * Tile<D>::BYTES + Tile<D>::at(row, chunk)) =
            *reinterpret_cast<const uint4*>(queries + (rows + which) * query_stride + chunk * 8);
      }
      team_sync();
    }
  }
  if (!early) {
    for (int i = 0; i < plan.buffers; ++i) fetch(i);
  }

  const int row0 = lane / 4, row1 = row0 + 8;
  uint32_t q[D / 16][4];
  if (mine > 0) load_rows<D>(q, p, fresh.qkv != nullptr, query_rows, query_stride, rows, lane);
  // Absent rows get the row's span too: their queries do no harm, and their results are not stored.
  const Span seen = visible(range.context - 1, p.window);
  const Span span[2] = {seen, seen};
  const ScoreScale scale(p);

  const Partials partials(p, gridDim.z, plan.max_tiles);
  float* partial = reinterpret_cast<float*>(shared + static_cast<size_t>(teams) * plan.buffers * Tile<D>::BYTES);
  float2* partial_rows = reinterpret_cast<float2*>(partial + (teams + 1) * plan.rows * DecodeShared<D>::ROW);
  const MergeSpace space{partial, partial_rows, partial + teams * plan.rows * DecodeShared<D>::ROW, partial_rows + teams * ROWS};
  char* exchange = shared + static_cast<size_t>(teams) * DecodeShared<D>::per_team(plan.buffers, plan.rows) +
                   DecodeShared<D>::fixed(plan.rows) + team * DecodeShared<D>::exchange;
  const int rounds = ceil_div(num_tiles, teams);
  for (int round = 0; round < rounds; ++round) {
    if (round < mine) {
      const int tile = my_first + round * teams;
      copies_wait(plan.buffers - 1);
      team_sync();
      float maximum[2], sum[2];
      const TeamPlace place{member, lane, exchange};
      uint32_t probabilities[KEYS / 16][4];
      attend_keys<D, TEAM>(probabilities, maximum, q, ring + 2 * round % plan.buffers * Tile<D>::BYTES, span, tile, scale, place, team_sync, [&] {
        team_sync();
        // With one buffer this is V of the same tile.
        fetch(2 * round + plan.buffers);
      });
      tile_sums(sum, probabilities);
      copies_wait(plan.buffers - 1);
      team_sync();

      float* o[2];
      float2* row_out[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + 8 * h;
        if (direct) {
          o[h] = partial + (team * plan.rows + row) * DecodeShared<D>::ROW;
          row_out[h] = partial_rows + team * ROWS + row;
        } else {
          const size_t at = (static_cast<size_t>(seq) * p.num_heads + head + row) * plan.max_tiles + (tile - range.first);
          o[h] = partials.o + at * p.kv.head_dim;
          row_out[h] = partials.row + at;
        }
        if (row < rows && lane % 4 == 0 && member == 0) *row_out[h] = make_float2(maximum[h], sum[h]);
      }
      constexpr int ELEMENTS = D / 8 / TEAM;
      tile_values<D, ELEMENTS>(probabilities, ring + (2 * round + 1) % plan.buffers * Tile<D>::BYTES, lane, [&](int n, const float(&acc)[4]) {
        const int dim = n * 8 + lane % 4 * 2;
        if (dim >= p.kv.head_dim) return;
        if (row0 < rows) *reinterpret_cast<float2*>(o[0] + dim) = make_float2(acc[0], acc[1]);
        if (row1 < rows) *reinterpret_cast<float2*>(o[1] + dim) = make_float2(acc[2], acc[3]);
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
