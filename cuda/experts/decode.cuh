// The kernels of decode.h.
#pragma once

#include "../linear/stream.cuh"
#include "activated.cuh"
#include "lists.cuh"

namespace pen {

constexpr int DOWN_TEAMS = 2;

// The records that a warp holds: as many as registers allow with UP_EACH or DOWN_EACH blocks per multiprocessor.
template <class Format>
constexpr int UP_PIECE = Format::words >= 16 ? 2 : Format::words > 10 ? 3 : 4;
template <class Format>
constexpr int DOWN_PIECE = Format::words >= 16 ? 1 : 2;

// Chooses the experts of all rows and lists them. Grid: one block.
inline __global__ void __launch_bounds__(DECODE_THREADS) expert_choose_kernel(const __grid_constant__ ExpertDecode p) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ Lists lists;
  const Routing& r = p.routing;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  let_next_start();
  wait_for_previous();
  lists.make(r, p.shared_down != nullptr, reinterpret_cast<uint32_t*>(shared));
  if (threadIdx.x < LIST_PIECES) static_cast<uint4*>(p.lists)[threadIdx.x] = reinterpret_cast<const uint4*>(&lists)[threadIdx.x];
  if (!r.shared_router || warp >= r.num_rows) return;
  const float share = share_of_row(r, warp, lane);
  if (lane == 0) r.share[warp] = share;
}

// hidden = activation(gate · x) · (up · x) for all choices. Grid: (blocks), each with its share of the tiles of all groups.
template <class Format>
__global__ void __launch_bounds__(DECODE_THREADS, UP_EACH)
    expert_up_kernel(const __grid_constant__ ExpertDecode p, const __grid_constant__ ExpertPlan plan) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  __shared__ int2 places[MAX_UP_COLUMNS];  // choice and tile of the columns whose sums are pending
  auto* const partial = reinterpret_cast<float*>(shared);
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Routing& r = p.routing;
  const Matrix w = p.gate_up;
  const int tiles = held(w.tiles()), k_tiles = held(w.k_tiles()), ffn = held(w.rows / 2), rows = held(r.num_rows);
  const int choices = held(rows * r.used);
  const Slice slice(warp, k_tiles);
  const size_t tile_bytes = size_t(k_tiles) * Format::record_bytes;
  uint8_t* const buffer = shared + plan.x_at + warp * (plan.x_rows * plan.x_stride);
  const uint32_t own_x = shared_of(buffer) + lane % 4 * 32;
  // Waits before it lets the next kernel start: that kernel reads the lists before its own wait.
  wait_for_previous();
  let_next_start();
  Stream<Format, UP_PIECE<Format>> stream(lane, slice.length);
  // The block's units are the tiles of all groups, starting at `first`. Each pass takes as many units as there is room for their sums.
  int group = 0, tile = 0, ahead_group = 0, ahead_tile = 0, units = 0;
  const int most = plan.columns / rows;
  const auto at = [&] {
    const int expert = lists.expert_of[ahead_group];
    const uint8_t* from = (expert >= 0 ? w.data + size_t(expert) * tiles * tile_bytes : p.shared_gate_up) + ahead_tile * tile_bytes;
    if (++ahead_tile == tiles) ahead_tile = 0, ahead_group++;
    return from + slice.begin * Format::record_bytes;
  };
  const auto x_of = [&] {
    const int start = lists.start[group], column = lane / 4 < lists.start[group + 1] - start ? lane / 4 : 0;
    return own_x + lists.row_of[start + column] * plan.x_stride;
  };
  // Copies x while the lists arrive.
  uint4 listed = {};
  if (threadIdx.x < LIST_PIECES) listed = __ldcg(static_cast<const uint4*>(p.lists) + threadIdx.x);
  copy_rows(buffer, plan.x_stride, rows, slice, lane, [&](int row) { return p.x + size_t(row) * p.ldx; });
  if (threadIdx.x < LIST_PIECES) reinterpret_cast<uint4*>(&lists)[threadIdx.x] = listed;
  __syncthreads();
  const int total = lists.groups * tiles, first = share_begin(blockIdx.x, total, gridDim.x);
  units = share_begin(blockIdx.x + 1, total, gridDim.x) - first;
  group = ahead_group = first / tiles, tile = ahead_tile = first % tiles;
  stream.fill(min(units, most), at);
#pragma unroll 1
  while (units > 0) {
    const int now = min(units, most);
    int columns = 0;
    stream.multiply(now, at, x_of, [&](const float (&acc)[4]) {
      const int start = lists.start[group], count = lists.start[group + 1] - start;
      float* const first = partial + (slice_of(warp) * plan.columns + columns) * PARTIAL_STRIDE;
      store_sums(acc, lane, count, [&](int column) { return first + column * PARTIAL_STRIDE; });
      if (warp == 0 && lane < count) places[columns + lane] = make_int2(lists.sorted[start + lane], tile);
      columns += count;
      if (++tile == tiles) tile = 0, group++;
    });
    units -= now;
    if (units > 0) stream.fill(min(units, most), at);
    __syncthreads();
    for (int i = threadIdx.x; i < columns * 8; i += DECODE_THREADS) {
      const int column = i / 8, row = i % 8, choice = places[column].x, place = places[column].y * 8 + row;
      if (place >= ffn) continue;
      const float gate = sum_slices(partial, plan.columns, column, row), up = sum_slices(partial, plan.columns, column, row + 8);
      const int expert = choice < choices ? lists.chosen[choice] : -1;
      p.hidden[size_t(choice) * p.ld_hidden + place] = activated(p, expert, ffn, place, gate, up);
    }
    if (units > 0) __syncthreads();
  }
}

// out = the experts' outputs, weighted and summed. Grid: (blocks), each with its share of the row tiles. Two teams, each with a warp per
// slice, share the groups.
template <class Format>
__global__ void __launch_bounds__(DOWN_TEAMS* DECODE_THREADS, DOWN_EACH)
    expert_down_kernel(const __grid_constant__ ExpertDecode p, const __grid_constant__ ExpertPlan plan) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  __shared__ uint8_t eighths[DECODE_CHOICES];
  const Routing& r = p.routing;
  const Combine& sums = p.combine;
  const bool has_shared = p.shared_down != nullptr;
  const int rows = held(r.num_rows), used = held(r.used), choices = rows * used, all = choices + (has_shared ? rows : 0);
  auto* const partial = reinterpret_cast<float*>(shared);
  let_next_start();
  const int warp = threadIdx.x / WARP % SLICES, team = threadIdx.x / DECODE_THREADS, lane = threadIdx.x % WARP;
  // Reads before the wait: expert_up_kernel waited for these lists before it let this kernel start.
  if (threadIdx.x < LIST_PIECES) reinterpret_cast<uint4*>(&lists)[threadIdx.x] = __ldcg(static_cast<const uint4*>(p.lists) + threadIdx.x);
  __syncthreads();
  if (threadIdx.x < choices) eighths[threadIdx.x] = uint8_t(eighth_of(lists.chosen[threadIdx.x], sums.num_experts));
  const int groups = held(lists.groups), own_groups = (groups - team + DOWN_TEAMS - 1) / DOWN_TEAMS;
  const Matrix w = p.down;
  const int tiles = held(w.tiles()), k_tiles = held(w.k_tiles()), hidden = held(w.rows);
  const Slice slice(warp, k_tiles);
  const size_t tile_bytes = size_t(k_tiles) * Format::record_bytes;
  const int begin = share_begin(blockIdx.x, tiles, gridDim.x), end = share_begin(blockIdx.x + 1, tiles, gridDim.x);
  int ahead = team, group = team, tile = begin;
  const auto at = [&] {
    const int expert = lists.expert_of[ahead];
    ahead += DOWN_TEAMS;
    return (expert >= 0 ? w.data + size_t(expert) * tiles * tile_bytes : p.shared_down) + tile * tile_bytes +
           slice.begin * Format::record_bytes;
  };
  Stream<Format, DOWN_PIECE<Format>> stream(lane, slice.length);
  if (tile < end) stream.fill(own_groups, at);
  // The bias of an output of a tile. Outputs are numbered by choice, TILE_ROWS per choice.
  const auto bias_of = [&](int tile, int place) {
    const int c = place / TILE_ROWS, i = tile * TILE_ROWS + place % TILE_ROWS;
    if (!sums.down_bias || c >= choices || lists.chosen[c] < 0 || i >= hidden) return 0.0f;
    return sums.down_bias[size_t(lists.chosen[c]) * hidden + i];
  };
  // The thread's own output in a tile.
  const int row = threadIdx.x / TILE_ROWS, own = threadIdx.x % TILE_ROWS;
  const bool owns = row < rows && __ldcg(r.slot_mapping + min(row, rows - 1)) != NO_SLOT;
  uint8_t* const buffer = shared + plan.x_at + warp * (plan.x_rows * plan.x_stride);
  const uint32_t own_x = shared_of(buffer) + lane % 4 * 32;
  const auto x_of = [&] {
    const int start = lists.start[group], column = lane / 4 < lists.start[group + 1] - start ? lane / 4 : 0;
    return own_x + (start + column) * plan.x_stride;
  };
  wait_for_previous();
  if (tile < end && groups > 0) {
    // Each team copies its part of the rows of the sorted choices.
    const int sorted = lists.start[groups], from = share_begin(team, sorted, DOWN_TEAMS), to = share_begin(team + 1, sorted, DOWN_TEAMS);
    copy_rows(buffer + from * plan.x_stride, plan.x_stride, to - from, slice, lane,
              [&](int i) { return p.hidden + size_t(lists.sorted[from + i]) * p.ld_hidden; });
  }
  __syncthreads();
  const float share = owns && sums.share && (has_shared || sums.shared) ? __ldcg(sums.share + row) : 1.0f;
  while (tile < end) {
    const int here = tile, i = here * TILE_ROWS + own;
    const bool writes = owns && i < hidden;
    float* const out = sums.out + size_t(row) * hidden + i;
    // Requested before the products, because it is needed right after them.
    const float kept = writes && sums.add ? *out : 0.0f, bias = bias_of(here, threadIdx.x);
    float given = writes && sums.shared ? sums.shared[size_t(row) * hidden + i] : 0.0f;
    group = team;
    stream.multiply(own_groups, at, x_of, [&](const float (&acc)[4]) {
      const int start = lists.start[group], count = lists.start[group + 1] - start;
      float* const first = partial + slice_of(warp) * all * PARTIAL_STRIDE;
      store_sums(acc, lane, count, [&](int column) { return first + lists.sorted[start + column] * PARTIAL_STRIDE; });
      group += DOWN_TEAMS;
    });
    tile++, ahead = team;
    if (tile < end) stream.fill(own_groups, at);
    __syncthreads();
    for (int place = threadIdx.x; place < all * TILE_ROWS; place += DOWN_TEAMS * DECODE_THREADS) {
      const int c = place / TILE_ROWS, o = place % TILE_ROWS;
      float y = sum_slices(partial, all, c, o);
      if (sums.down_bias && c < choices) y = __fadd_rn(y, place == threadIdx.x ? bias : bias_of(here, place));
      partial[c * PARTIAL_STRIDE + o] = y;  // no other thread has read this element
    }
    __syncthreads();
    if (writes) {
      EighthSums by_eighth;
      for (int rank = 0; rank < used; rank++) {
        const int c = row * used + rank;
        by_eighth.add(eighths[c], __fmul_rn(__fmul_rn(lists.weights[c], sums.factor), partial[c * PARTIAL_STRIDE + own]));
      }
      float sum = by_eighth.total();
      if (has_shared) given = partial[(choices + row) * PARTIAL_STRIDE + own];
      if (has_shared || sums.shared) sum = __fadd_rn(sum, __fmul_rn(share, given));
      if (sums.mean_shared) sum = __fmul_rn(sum, 0.5f);
      sum = __fmul_rn(sum, sums.scale);
      *out = sums.add ? __fadd_rn(kept, sum) : sum;
    }
    if (tile < end) __syncthreads();
  }
}

}  // namespace pen
