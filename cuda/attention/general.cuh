// General attention. A block computes sixteen or thirty-two (token, head) rows of one sequence and K/V head, so that all query heads of a
// latent vector read the same tiles. Four warps share sixteen rows: each scores a quarter of a tile's keys and sums a quarter of the
// values' elements. K and V come through a ring of buffers, a tile or a part of one at a time.
#pragma once

#include "general_ring.cuh"

namespace pen {

// s += q Kᵀ for this warp's sixteen keys and up to one piece of the head's elements.
__device__ __forceinline__ void piece_scores(float (&s)[2][4], uint32_t query, uint32_t keys, int elements, int member, int lane) {
  const int row = member * 16 + lane / 16 * 8 + lane % 8, vector = lane / 8 % 2;
#pragma unroll
  for (int k = 0; k < PIECE / 16; ++k) {
    if (k * 16 >= elements) break;
    uint32_t a[4], r[4];
    load_matrices(a, query + Tile<PIECE>::at(lane % 16, 2 * k + lane / 16));
    load_matrices(r, keys + Tile<PIECE>::at(row, 2 * k + vector));
    const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
    mma(s[0], a, low);
    mma(s[1], a, high);
  }
}

// ALiBi's slope of a head. If the number of heads is not a power of two, heads past the largest power of two below it take the odd powers
// of the next one's slopes.
__device__ __forceinline__ float alibi_slope(const GeneralAttention& p, int head) {
  const int whole = 1 << (31 - __clz(p.num_heads));
  const float base = head < whole ? p.alibi : p.alibi * 0.5f;
  const int power = head < whole ? head + 1 : 2 * (head - whole) + 1;
  return exp2f(-base / static_cast<float>(whole) * static_cast<float>(power));
}

// Turns a product of q and k into the score that enters the softmax.
struct GeneralScale {
  ScoreScale scale;
  float c, factor;  // factor: from a product (or its tanh) to a score, under ALiBi
  float minus_slope[2];
  int position[2];

  __device__ __forceinline__ GeneralScale(const GeneralAttention& p, const GeneralRows& rows, int row) : scale(p.scale, p.soft_cap) {
    factor = 0.0f, c = scale.c;
    if (p.alibi == 0.0f) return;
    factor = p.soft_cap > 0.0f ? p.soft_cap : p.scale, c = LOG2_E;
#pragma unroll
    for (int h = 0; h < 2; ++h) minus_slope[h] = -alibi_slope(p, rows.head(row + 8 * h)), position[h] = rows.position(row + 8 * h);
  }
  // Applies the cap and the slopes to the scores of keys from position `base`.
  __device__ __forceinline__ void apply(float (&s)[2][4], int base, int lane) const {
    scale.cap(s);
    if (factor == 0.0f) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int distance = abs(position[i / 2] - (base + n * 8 + lane % 4 * 2 + i % 2));
        s[n][i] = __fmaf_rn(s[n][i], factor, __fmul_rn(minus_slope[i / 2], static_cast<float>(distance)));
      }
    }
  }
};

// Turns the team's scores into the probabilities of all keys of the tile, on every warp of the team.
__device__ __forceinline__ void team_softmax(uint32_t (&probabilities)[KEYS / 16][4], float (&maximum)[2], float (&s)[2][4],
                                             const Span (&span)[2], int tile, float c, int team, int member, int lane, char* exchange) {
  const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(GENERAL_TEAM * WARP) : "memory"); };
  float largest[2];
  mask_scores(largest, s, span, tile * KEYS + member * 16, lane);
  uint4* fragments = reinterpret_cast<uint4*>(exchange);                     // [KEYS / 16, WARP]
  float* maxima = reinterpret_cast<float*>(exchange + KEYS / 16 * WARP * 16);  // [GENERAL_TEAM, ROWS]
  if (lane % 4 == 0) maxima[member * ROWS + lane / 4] = largest[0], maxima[member * ROWS + lane / 4 + 8] = largest[1];
  sync();
#pragma unroll
  for (int w = 0; w < GENERAL_TEAM; ++w) {
    largest[0] = fmaxf(largest[0], maxima[w * ROWS + lane / 4]);
    largest[1] = fmaxf(largest[1], maxima[w * ROWS + lane / 4 + 8]);
  }
  uint32_t own[1][4];
  score_probabilities(own, maximum, largest, s, c);
  fragments[member * WARP + lane] = make_uint4(own[0][0], own[0][1], own[0][2], own[0][3]);
  sync();
#pragma unroll
  for (int k = 0; k < KEYS / 16; ++k) {
    const uint4 f = fragments[k * WARP + lane];
    probabilities[k][0] = f.x, probabilities[k][1] = f.y, probabilities[k][2] = f.z, probabilities[k][3] = f.w;
  }
}

// The state of a lane's two rows: its part of O, sixteen elements of each of VP pieces.
template <int VP>
struct GeneralState {
  Running running[2];
  float o[VP][2][4];
  __device__ __forceinline__ void clear() {
    running[0] = running[1] = Running{};
#pragma unroll
    for (int v = 0; v < VP; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o[v][i / 4][i % 4] = 0.0f;
    }
  }
  __device__ __forceinline__ void add(const GeneralState& other) {
    float keep[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) merge(running[h], other.running[h].maximum, other.running[h].sum, keep[h], add[h]);
#pragma unroll
    for (int v = 0; v < VP; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = o[v][i / 4][i % 4];
        x = merged(x, other.o[v][i / 4][i % 4], keep[i % 4 / 2], add[i % 4 / 2]);
      }
    }
  }
  // O = merged(O, P V) for the warp's sixteen elements of a piece.
  __device__ static __forceinline__ void add_values(float (&piece)[2][4], const uint32_t (&p)[KEYS / 16][4], uint32_t values,
                                             const float (&keep)[2], const float (&add)[2], int member, int lane) {
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      uint32_t r[4];
      load_matrices_transposed(r, values + Tile<PIECE>::at(k * 16 + lane % 16, 2 * member + lane / 16));
      const uint32_t b_low[2] = {r[0], r[1]}, b_high[2] = {r[2], r[3]};
      mma(low, p[k], b_low);
      mma(high, p[k], b_high);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      piece[0][i] = merged(piece[0][i], low[i], keep[i / 2], add[i / 2]);
      piece[1][i] = merged(piece[1][i], high[i], keep[i / 2], add[i / 2]);
    }
  }
};

// Writes a team's results for its rows, after merging the sinks.
template <int VP>
__device__ __forceinline__ void write_rows(const GeneralAttention& p, const GeneralPlan& plan, const GeneralRows& rows,
                                           GeneralState<VP>& all, int row0, int slice, int member, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + 8 * h;
    if (row >= rows.count) continue;
    float keep = 1.0f, add = 0.0f;
    if (p.sinks != nullptr) merge_sink(all.running[h], p.sinks[rows.head(row)], keep, add);
    const float inverse = inverse_sum(all.running[h].sum);
    __half* out = p.out + static_cast<size_t>(rows.token(row)) * p.ld_out + rows.head(row) * p.value_dim;
#pragma unroll
    for (int i = 0; i < 2 * VP; ++i) {
      const int dim = slice * GENERAL_VALUES + i / 2 * PIECE + member * 16 + i % 2 * 8 + lane % 4 * 2;
      if (dim >= p.value_dim) continue;
      float x = all.o[i / 2][i % 2][2 * h], y = all.o[i / 2][i % 2][2 * h + 1];
      if (p.sinks != nullptr) x = merged(x, 0.0f, keep, add), y = merged(y, 0.0f, keep, add);
      const __half2 pair = finished(x, y, inverse);
      if (plan.even_out) {
        *reinterpret_cast<__half2*>(out + dim) = pair;
      } else {
        out[dim] = pair.x;
        if (dim + 1 < p.value_dim) out[dim + 1] = pair.y;
      }
    }
  }
}

// Grid: (row_blocks · splits, num_kv_heads · slices, num_seqs). Block: four warps per sixteen rows. Shared memory: the ring, the queries
// and what the teams exchange. VP: the most pieces of the values that a block computes.
template <int M, int VP>
__global__ void __launch_bounds__(GENERAL_TEAM* WARP* M, 1)
    attention_general_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                             const __grid_constant__ GeneralPlan plan) {
  extern __shared__ __align__(128) char shared[];
  let_next_start();
  const int seq = step.sequence(blockIdx.z), kv_head = blockIdx.y / plan.slices, slice = blockIdx.y % plan.slices;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, team = warp / GENERAL_TEAM, member = warp % GENERAL_TEAM;
  const int row_block = blockIdx.x % plan.row_blocks, split = blockIdx.x / plan.row_blocks;
  const GeneralRows rows(p, step, seq, kv_head);
  wait_for_previous();
  const int row_tiles = ceil_div(rows.count, ROWS * M);
  if (row_block >= row_tiles) return;
  // Rows with the longest contexts come first, because they take the most time.
  const int block_row = (row_tiles - 1 - row_block) * ROWS * M, team_row = block_row + team * ROWS;
  const Span block_span = rows.spans(p, block_row, ROWS * M), team_span = rows.spans(p, team_row, ROWS);
  const Parts parts(plan, block_span);
  const bool direct = general_direct(plan, parts);
  const int share = direct ? parts.count() : ceil_div(parts.count(), plan.splits), part_tiles = plan.part_tiles();
  const int first_part = parts.begin + split * share, end_part = min(first_part + share, parts.end);
  if (first_part >= end_part) return;
  const int first_tile = max(block_span.begin / KEYS, first_part * part_tiles);
  const int end_tile = min(ceil_div(block_span.end, KEYS), end_part * part_tiles);

  const uint32_t base = shared_of(shared);
  GeneralRing ring(p, plan, step, seq, rows.context, kv_head, slice, base, first_tile, end_tile);
  ring.start();
  const int query_pieces = ceil_div(p.head_dim, PIECE);
  const uint32_t queries = base + plan.buffers * plan.width * PIECE_BYTES;
  copy_queries(p, plan, rows, block_row, queries);
  const uint32_t team_queries = queries + team * query_pieces * QUERY_PIECE_BYTES;
  char* const exchange = shared + plan.buffers * plan.width * PIECE_BYTES + M * query_pieces * QUERY_PIECE_BYTES + team * EXCHANGE_BYTES;
  const int row0 = team_row + lane / 4;
  const Span span[2] = {rows.span(p, row0), rows.span(p, row0 + 8)};
  const GeneralScale scale(p, rows, row0);
  const int value_pieces = min(VP, ceil_div(p.value_dim - slice * GENERAL_VALUES, PIECE));

  GeneralState<VP> all, state;  // KV splits are merged into `all`; `state` is the current one
  all.clear();
  state.clear();
  for (int tile = first_tile; tile < end_tile; ++tile) {
    const bool seen = tile * KEYS < team_span.end && (tile + 1) * KEYS > team_span.begin;
    float s[2][4] = {};
    uint32_t part = 0;
    for (int i = 0; i < ring.key_parts; ++i) {
      part = ring.arrive();
      if (!seen) continue;
      const int first = i * plan.width, end = min(first + plan.width, query_pieces);
      for (int piece = first; piece < end; ++piece) {
        piece_scores(s, team_queries + piece * QUERY_PIECE_BYTES, part + (piece - first) * PIECE_BYTES, p.head_dim - piece * PIECE, member,
                     lane);
      }
    }
    uint32_t probabilities[KEYS / 16][4];
    float keep[2], add[2];
    if (seen) {
      float maximum[2], sum[2];
      scale.apply(s, tile * KEYS + member * 16, lane);
      team_softmax(probabilities, maximum, s, span, tile, scale.c, team, member, lane, exchange);
      tile_sums(sum, probabilities);
#pragma unroll
      for (int h = 0; h < 2; ++h) merge(state.running[h], maximum[h], sum[h], keep[h], add[h]);
    }
    // Pieces [first, end) of the slice's values, of which the first is at `at`.
    const auto values = [&](int first, int end, uint32_t at) {
      if (!seen) return;
#pragma unroll
      for (int v = 0; v < VP; ++v) {
        if (v < first || v >= end) continue;
        state.add_values(state.o[v], probabilities, at + (v - first) * PIECE_BYTES, keep, add, member, lane);
      }
    };
    if (plan.shared_values) values(0, value_pieces, part + ring.first_value * PIECE_BYTES);
    for (int i = 0; i < ring.value_parts; ++i) {
      const uint32_t at = ring.arrive();
      values(i * plan.width, min((i + 1) * plan.width, value_pieces), at);
    }
    if ((tile + 1) % (direct ? KV_SPLIT_TILES : part_tiles) != 0 && tile + 1 != end_tile) continue;
    if (direct) {
      all.add(state);
    } else {
      const GeneralPartials partials(p, plan);
      const int left = tile / part_tiles;  // the part whose result goes to the workspace
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row0 + 8 * h;
        const Parts own(plan, span[h]);
        if (row >= rows.count || left < own.begin || left >= own.end) continue;
        const size_t at = partials.at(rows, row, blockIdx.z) + (left - own.begin);
        if (slice == 0 && member == 0 && lane % 4 == 0) partials.row[at] = make_float2(state.running[h].maximum, state.running[h].sum);
#pragma unroll
        for (int i = 0; i < 2 * VP; ++i) {
          const int dim = slice * GENERAL_VALUES + i / 2 * PIECE + member * 16 + i % 2 * 8 + lane % 4 * 2;
          const float(&o)[4] = state.o[i / 2][i % 2];
          if (dim < p.value_dim) *reinterpret_cast<float2*>(partials.o + at * partials.stride + dim) = make_float2(o[2 * h], o[2 * h + 1]);
        }
      }
    }
    state.clear();
  }
  copies_wait(0);
  if (!direct) return;

  write_rows(p, plan, rows, all, row0, slice, member, lane);
}

}  // namespace pen
