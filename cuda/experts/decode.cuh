// The kernels of decode.h.
#pragma once

#include "activated.cuh"
#include "stream.cuh"

namespace pen {

constexpr int PARTIAL_STRIDE = TILE_ROWS + 4;
// Columns of products whose sums the first kernel adds up together: no less than two of as many as there are rows.
constexpr int UP_COLUMNS = 24;
static_assert(UP_COLUMNS >= 2 * DECODE_ROWS);
__host__ __device__ constexpr size_t up_partial_bytes() { return size_t(SLICES) * UP_COLUMNS * PARTIAL_STRIDE * 4; }
__host__ __device__ constexpr size_t down_partial_bytes(int columns) { return size_t(SLICES) * columns * PARTIAL_STRIDE * 4; }

// Adds up the slices of a row of a column.
__device__ __forceinline__ float sum_slices(const float* partial, int columns, int column, int row) {
  float total = 0;
#pragma unroll
  for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[(s * columns + column) * PARTIAL_STRIDE + row]);
  return total;
}

// hidden = activation(gate · x) · (up · x) of all choices. Grid: (blocks), each with its share of the tiles of all groups.
template <class Format>
__global__ void __launch_bounds__(DECODE_THREADS, 3)
    expert_up_kernel(const __grid_constant__ ExpertDecode p, const __grid_constant__ StreamPlan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // takes_decode() asks for it: older code would never run
  using Units = Stream<Format, GroupsOfTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  __shared__ uint64_t barriers[SLICES * MAX_RING_SLOTS];
  __shared__ int2 places[UP_COLUMNS];  // choice and tile of the columns whose sums wait
  auto* const partial = reinterpret_cast<float*>(shared);
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Units::set_up(barriers, plan.slots, warp, lane);
  const Routing& r = p.routing;
  const Matrix w = p.gate_up;
  const int tiles = held(w.tiles()), chunks = held(w.chunks()), ffn = held(w.rows / 2), rows = held(r.num_rows);
  const int choices = held(rows * r.used);
  const size_t tile_bytes = size_t(chunks) * Format::record_bytes;
  uint8_t* const buffer = shared + plan.x_at + warp * (plan.x_rows * plan.x_stride);
  const uint32_t own_x = shared_of(buffer) + lane % 4 * 32;
  const auto at = [&](const GroupsOfTiles& u) {
    const int expert = lists.expert_of[u.group];
    return expert >= 0 ? w.data + (size_t(expert) * tiles + u.tile) * tile_bytes : p.shared_gate_up + u.tile * tile_bytes;
  };
  const auto x_of = [&](const GroupsOfTiles& u) {
    const int at = lists.start[u.group], column = lane / 4 < lists.count(u.group) ? lane / 4 : 0;
    return own_x + lists.row_of[at + column] * plan.x_stride;
  };
  // In this order: the kernel after this one reads the scores before it waits.
  wait_for_previous();
  let_next_start();
  Units stream(plan, {0, 0, tiles, 0}, chunks, warp, lane, shared_of(shared), barriers);
  // While some warps choose, the others copy x; those that chose do so when their weights are on the way.
#pragma unroll 1
  for (int turn = 0; turn < 2; turn++) {
    if ((warp < rows) == turn) stream.copy_rows(buffer, plan.x_stride, rows, [&](int row) { return p.x + size_t(row) * p.ldx; });
    if (turn == 1) break;
    const int total = lists.make<false>(r, p.shared_gate_up != nullptr) * tiles;
    const int first = int(int64_t(blockIdx.x) * total / gridDim.x), units = int(int64_t(blockIdx.x + 1) * total / gridDim.x) - first;
    stream.here = stream.ahead = {first / tiles, first % tiles, tiles, units};
    stream.fill(at);
  }
  __syncwarp();
  if (r.shared_router && blockIdx.x == gridDim.x - 1 && warp < rows) {
    const float share = share_of_row(r, warp, lane);
    if (lane == 0) r.share[warp] = share;
  }
  while (stream.here.more()) {
    int columns = 0;
    while (stream.here.more() && columns + 2 * rows <= UP_COLUMNS) {
      stream.multiply(at, x_of, [&](const GroupsOfTiles& u, const float (&acc)[4]) {
        const int start = lists.start[u.group], count = lists.start[u.group + 1] - start;
        float* const slice = partial + (slice_of(warp) * UP_COLUMNS + columns) * PARTIAL_STRIDE;
        const int row = lane / 4, n = 2 * (lane % 4);
        if (n < count) slice[n * PARTIAL_STRIDE + row] = acc[0], slice[n * PARTIAL_STRIDE + row + 8] = acc[2];
        if (n + 1 < count) slice[(n + 1) * PARTIAL_STRIDE + row] = acc[1], slice[(n + 1) * PARTIAL_STRIDE + row + 8] = acc[3];
        if (warp == 0 && lane < count) places[columns + lane] = make_int2(lists.sorted[start + lane], u.tile);
        columns += count;
      });
    }
    __syncthreads();
    static_assert(UP_COLUMNS * 8 <= DECODE_THREADS, "a thread per output");
    if (threadIdx.x < columns * 8) {
      const int column = threadIdx.x / 8, row = threadIdx.x % 8, choice = places[column].x, i = places[column].y * 8 + row;
      if (i < ffn) {
        const float gate = sum_slices(partial, UP_COLUMNS, column, row), up = sum_slices(partial, UP_COLUMNS, column, row + 8);
        p.hidden[size_t(choice) * p.ld_hidden + i] = activated(p, choice < choices ? lists.chosen[choice] : -1, ffn, i, gate, up);
      }
    }
    if (stream.here.more()) __syncthreads();
  }
#endif
}

// out = what the experts give, weighted and added up. Grid: (blocks), each with its share of the row tiles.
template <class Format>
__global__ void __launch_bounds__(DECODE_THREADS, 3)
    expert_down_kernel(const __grid_constant__ ExpertDecode p, const __grid_constant__ StreamPlan plan) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // takes_decode() asks for it: older code would never run
  using Units = Stream<Format, TilesOfGroups>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  __shared__ uint64_t barriers[SLICES * MAX_RING_SLOTS];
  const Routing& r = p.routing;
  const Combine& sums = p.combine;
  const bool has_shared = p.shared_down != nullptr;
  const int rows = held(r.num_rows), used = held(r.used), choices = rows * used, all = choices + (has_shared ? rows : 0);
  auto* const partial = reinterpret_cast<float*>(shared);
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Units::set_up(barriers, plan.slots, warp, lane);
  // Before the wait: the scores are those that expert_up_kernel waited for before it let this kernel start.
  const int groups = lists.make<true>(r, has_shared);
  const Matrix w = p.down;
  const int tiles = held(w.tiles()), chunks = held(w.chunks()), hidden = held(w.rows);
  const size_t tile_bytes = size_t(chunks) * Format::record_bytes;
  const int first = int(int64_t(blockIdx.x) * tiles / gridDim.x);
  const int end = groups > 0 ? int(int64_t(blockIdx.x + 1) * tiles / gridDim.x) : first;
  const auto at = [&](const TilesOfGroups& u) {
    const int expert = lists.expert_of[u.group];
    return expert >= 0 ? w.data + (size_t(expert) * tiles + u.tile) * tile_bytes : p.shared_down + u.tile * tile_bytes;
  };
  Units stream(plan, {0, first, groups, end}, chunks, warp, lane, shared_of(shared), barriers);
  stream.fill(at);
  // The bias of a place among a tile's products: TILE_ROWS for each choice.
  const auto bias_of = [&](int tile, int place) {
    const int c = place / TILE_ROWS, i = tile * TILE_ROWS + place % TILE_ROWS;
    if (!sums.down_bias || c >= choices || lists.chosen[c] < 0 || i >= hidden) return 0.0f;
    return sums.down_bias[size_t(lists.chosen[c]) * hidden + i];
  };
  // The thread's own output of a tile.
  const int row = threadIdx.x / TILE_ROWS, own = threadIdx.x % TILE_ROWS;
  const bool owns = row < rows && __ldcg(r.slot_mapping + min(row, rows - 1)) != NO_SLOT;
  uint8_t* const buffer = shared + plan.x_at + warp * (plan.x_rows * plan.x_stride);
  const uint32_t own_x = shared_of(buffer) + lane % 4 * 32;
  wait_for_previous();
  int from = 0, to = 0;  // the sorted choices whose rows the buffer holds
  const auto hold_rows = [&] {
    const TilesOfGroups& u = stream.here;
    const int start = lists.start[u.group], last = lists.start[u.group + (u.both() ? 2 : 1)];
    if (start >= from && last <= to) return;
    from = start, to = min(from + plan.x_rows, int(lists.start[groups]));
    __syncwarp();
    stream.copy_rows(buffer, plan.x_stride, to - from, [&](int i) { return p.hidden + size_t(lists.sorted[from + i]) * p.ld_hidden; });
    __syncwarp();
  };
  const auto x_of = [&](const TilesOfGroups& u) {
    const int column = lane / 4 < lists.count(u.group) ? lane / 4 : 0;
    return own_x + (lists.start[u.group] - from + column) * plan.x_stride;
  };
  const float share = owns && sums.share && (has_shared || sums.shared) ? __ldcg(sums.share + row) : 1.0f;
  for (int tile = first; tile < end; tile++) {
    const int i = tile * TILE_ROWS + own;
    const bool writes = owns && i < hidden;
    float* const out = sums.out + size_t(row) * hidden + i;
    // Requested before the products, needed after them.
    const float kept = writes && sums.add ? *out : 0.0f, bias = bias_of(tile, threadIdx.x);
    float given = writes && sums.shared ? sums.shared[size_t(row) * hidden + i] : 0.0f;
    while (stream.here.tile == tile) {
      hold_rows();
      stream.multiply(at, x_of, [&](const TilesOfGroups& u, const float (&acc)[4]) {
        const int o = lane / 4, n = 2 * (lane % 4), start = lists.start[u.group], count = lists.start[u.group + 1] - start;
        float* const slice = partial + slice_of(warp) * all * PARTIAL_STRIDE + o;
        if (n < count) {
          const int c = lists.sorted[start + n];
          slice[c * PARTIAL_STRIDE] = acc[0], slice[c * PARTIAL_STRIDE + 8] = acc[2];
        }
        if (n + 1 < count) {
          const int c = lists.sorted[start + n + 1];
          slice[c * PARTIAL_STRIDE] = acc[1], slice[c * PARTIAL_STRIDE + 8] = acc[3];
        }
      });
    }
    __syncthreads();
    for (int place = threadIdx.x; place < all * TILE_ROWS; place += DECODE_THREADS) {
      const int c = place / TILE_ROWS, o = place % TILE_ROWS;
      float y = sum_slices(partial, all, c, o);
      if (sums.down_bias && c < choices) y = __fadd_rn(y, place == threadIdx.x ? bias : bias_of(tile, place));
      partial[c * PARTIAL_STRIDE + o] = y;  // which no other thread has read
    }
    __syncthreads();
    if (writes) {
      float sum = 0.0f;
      for (int rank = 0; rank < used; rank++) {
        const int c = row * used + rank;
        sum = __fadd_rn(sum, __fmul_rn(__fmul_rn(lists.weights[c], sums.factor), partial[c * PARTIAL_STRIDE + own]));
      }
      if (has_shared) given = partial[(choices + row) * PARTIAL_STRIDE + own];
      if (has_shared || sums.shared) sum = __fadd_rn(sum, __fmul_rn(share, given));
      if (sums.mean_shared) sum = __fmul_rn(sum, 0.5f);
      sum = __fmul_rn(sum, sums.scale);
      *out = sums.add ? __fadd_rn(kept, sum) : sum;
    }
    if (tile + 1 < end) __syncthreads();
  }
#endif
}

}  // namespace pen
