// The kernels of decode.h. As in linear/decode.cuh, each of a block's eight warps streams one slice of the block's row tiles through a ring
// of records in shared memory.
#pragma once

#include "../linear/decode.cuh"
#include "activated.cuh"
#include "lists.cuh"

namespace pen {

constexpr int DECODE_THREADS = SLICES * WARP;
constexpr int PARTIAL_STRIDE = DecodeLinearShared::STRIDE;
// Columns of products whose sums the first kernel adds up together.
constexpr int UP_COLUMNS = 16;
__host__ __device__ constexpr size_t up_partial_bytes() { return size_t(SLICES) * UP_COLUMNS * PARTIAL_STRIDE * 4; }
__host__ __device__ constexpr size_t down_partial_bytes(int columns) { return size_t(SLICES) * columns * PARTIAL_STRIDE * 4; }

// The rows of x that a block multiplies: copied to shared memory, or where they are if `staged` is 0.
struct ExpertInput {
  const __half* x;
  int ldx;
  uint32_t staged;  // shared memory: [rows, stride] halves
  int stride;

  // Copies the columns of a warp's slice of all rows; its lanes see them after the next __syncwarp().
  __device__ __forceinline__ void stage(__half* to, int rows, int begin, int length, int lane) const {
    if (!staged) return;
    constexpr int BATCH = 4;  // requested together
    const int pieces = length * (CHUNK / 8), total = rows * pieces, from = begin * (CHUNK / 8);
    for (int base = lane; base < total; base += BATCH * WARP) {
      uint4 piece[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int i = min(base + k * WARP, total - 1), row = i / pieces;
        piece[k] = *reinterpret_cast<const uint4*>(x + size_t(row) * ldx + (from + i - row * pieces) * 8);
      }
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int i = base + k * WARP, row = i / pieces, at = (from + i - row * pieces) * 8;
        if (i >= total) break;
        const StagedRow out{to + row * stride};
        out.put(at, piece[k].x, piece[k].y);
        out.put(at + 4, piece[k].z, piece[k].w);
      }
    }
  }
  // Where the lane's part of a row's chunk is.
  __device__ __forceinline__ uint64_t at(int row, int chunk, int lane) const {
    if (staged) return staged + (row * stride + chunk * CHUNK + lane % 4 * 16) * 2;
    return reinterpret_cast<uint64_t>(x + size_t(row) * ldx + chunk * CHUNK + lane % 4 * 2);
  }
  __device__ __forceinline__ void load(uint32_t (&b)[STEPS][2], uint64_t at) const {
    if (staged) {
#pragma unroll
      for (int s = 0; s < STEPS; s += 2) {
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[s][0]), "=r"(b[s][1]), "=r"(b[s + 1][0]), "=r"(b[s + 1][1])
                     : "r"(uint32_t(at) + 8 * s));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * STEPS; i++) b[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(at + 16 * i);
    }
  }
};

// A place in the order of a block's units, each of them a row tile of a group: all tiles of a group, then those of the next one.
struct GroupsOfTiles {
  int group, tile, tiles;
  __device__ __forceinline__ void step() {
    if (++tile == tiles) tile = 0, group++;
  }
};
// A tile of all groups, then the next tile.
struct TilesOfGroups {
  int group, tile, groups;
  __device__ __forceinline__ void step() {
    if (++group == groups) group = 0, tile++;
  }
};

// A warp's slice of the units from `here` on, `left` of them. `ahead` and what follows it: the next record to request.
template <class Place>
struct UnitRecords {
  Place here, ahead;
  int left, to_request, begin, length, lane;
  uint32_t ring;
  int chunk = 0, slot = 0;
  const uint8_t* next = nullptr;

  __device__ __forceinline__ UnitRecords(Place first, int units, int chunks, int warp, int lane, uint32_t ring)
      : here(first), ahead(first), left(units), begin(slice_begin(warp, chunks)), length(slice_begin(warp + 1, chunks) - begin), lane(lane),
        ring(ring) {
    to_request = length > 0 ? units : 0;
  }
  // Requests the next record for a slot of the ring, if there is one, and commits a group in any case. at(place) is where a tile begins.
  template <class Format, class At>
  __device__ __forceinline__ void request(int to_slot, At at) {
    if (to_request > 0) {
      if (chunk == 0) next = at(ahead) + begin * Format::record_bytes + lane * 16;
      const uint32_t to = ring + to_slot * Format::record_bytes + lane * 16;
#pragma unroll
      for (int i = 0; i < Format::record_bytes / 16; i += WARP) {
        if (i + lane < Format::record_bytes / 16) copy_async(to + i * 16, next + i * 16);
      }
      next += Format::record_bytes;
      if (++chunk == length) chunk = 0, to_request--, ahead.step();
    }
    copy_commit();
  }
  template <class Format>
  static constexpr int slots = ring_records(Format::record_bytes, RingSize::USUAL);

  template <class Format, class At>
  __device__ __forceinline__ void fill(At at) {
    for (int i = 0; i < slots<Format> - 1; i++) request<Format>(i, at);
  }
  // Multiplies units in their order until there are none or finish(place, sums) says that it is enough. The ring is full but for one slot.
  template <class Format, class At, class RowOf, class Finish>
  __device__ __forceinline__ void multiply(const ExpertInput& input, At at, RowOf row_of, Finish finish) {
    constexpr int R = slots<Format>;
    bool enough = false;
#pragma unroll 1
    while (left > 0 && !enough) {
      uint64_t x = input.at(row_of(here), begin, lane);
      float acc[4] = {};
#pragma unroll 1
      for (int c = 0; c < length; c++, x += CHUNK * sizeof(__half)) {
        uint32_t b[STEPS][2];
        typename Format::Raw raw;
        copy_wait<R - 2>();
        __syncwarp();
        raw.load_shared(ring + slot * Format::record_bytes, lane);
        request<Format>(slot == 0 ? R - 1 : slot - 1, at);  // every lane has read that slot
        slot = slot + 1 == R ? 0 : slot + 1;
        input.load(b, x);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          uint32_t a[4];
          raw.fragment(s, a);
          mma(acc, a, b[s]);
        }
      }
      enough = finish(here, acc);
      left--;
      here.step();
    }
  }
};

// Adds up the slices of a row of a column.
__device__ __forceinline__ float sum_slices(const float* partial, int columns, int column, int row) {
  float total = 0;
#pragma unroll
  for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[(s * columns + column) * PARTIAL_STRIDE + row]);
  return total;
}

// hidden = activation(gate · x) · (up · x) of all choices. Grid: (blocks), each with its share of the tiles of all groups. `staged_rows`:
// 0 if the rows of x stay where they are.
__global__ void __launch_bounds__(DECODE_THREADS, 3)
    expert_up_kernel(const __grid_constant__ ExpertDecode p, int staged_rows, int ring_at, int ring_bytes) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  __shared__ int2 places[UP_COLUMNS];  // choice and tile of the columns whose sums wait
  auto* const partial = reinterpret_cast<float*>(shared);
  auto* const staged = reinterpret_cast<__half*>(shared + up_partial_bytes());
  // In this order: the kernel after this one reads the scores before it waits.
  wait_for_previous();
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Routing& r = p.routing;
  const int groups = lists.make(r, p.shared_gate_up != nullptr), choices = held(r.num_rows * r.used);
  const Matrix w = p.gate_up;
  const int tiles = held(w.tiles()), chunks = held(w.chunks()), ffn = w.rows / 2, total = groups * tiles;
  const size_t tile_bytes = size_t(chunks) * w.record_bytes;
  const int first = int(int64_t(blockIdx.x) * total / gridDim.x), units = int(int64_t(blockIdx.x + 1) * total / gridDim.x) - first;
  const ExpertInput input{p.x, p.ldx, staged_rows ? shared_of(staged) : 0, staged_stride(w.cols)};
  const auto at = [&](const GroupsOfTiles& u) {
    const int expert = lists.expert_of[u.group];
    return expert >= 0 ? w.data + (size_t(expert) * tiles + u.tile) * tile_bytes : p.shared_gate_up + u.tile * tile_bytes;
  };
  UnitRecords<GroupsOfTiles> records({first / tiles, first % tiles, tiles}, units, chunks, warp, lane,
                                     shared_of(shared) + ring_at + warp * ring_bytes);
  with_format(w.format, [&](auto format) { records.fill<decltype(format)>(at); });
  input.stage(staged, staged_rows, records.begin, records.length, lane);
  if (r.shared_router && blockIdx.x == gridDim.x - 1 && warp < r.num_rows) {
    const float share = share_of_row(r, warp, lane);
    if (lane == 0) r.share[warp] = share;
  }
  const auto row_of = [&](const GroupsOfTiles& u) { return int(lists.rows[u.group][lane / 4]); };
  while (records.left > 0) {
    int columns = 0;
    with_format(w.format, [&](auto format) {
      records.multiply<decltype(format)>(input, at, row_of, [&](const GroupsOfTiles& u, const float (&acc)[4]) {
        const int own = lists.order[u.group][lane % DECODE_ROWS], count = __popc(__ballot_sync(ALL_LANES, own >= 0) & 0xff);
        float* const slice = partial + (warp * UP_COLUMNS + columns) * PARTIAL_STRIDE;
        const int row = lane / 4, n = 2 * (lane % 4);
        if (n < count) slice[n * PARTIAL_STRIDE + row] = acc[0], slice[n * PARTIAL_STRIDE + row + 8] = acc[2];
        if (n + 1 < count) slice[(n + 1) * PARTIAL_STRIDE + row] = acc[1], slice[(n + 1) * PARTIAL_STRIDE + row + 8] = acc[3];
        if (warp == 0 && lane < count) places[columns + lane] = make_int2(own, u.tile);
        columns += count;
        return columns + DECODE_ROWS > UP_COLUMNS;
      });
    });
    __syncthreads();
    static_assert(UP_COLUMNS * 8 <= DECODE_THREADS, "a thread per output");
    if (threadIdx.x < columns * 8) {
      const int column = threadIdx.x / 8, row = threadIdx.x % 8, choice = places[column].x, i = places[column].y * 8 + row;
      if (i < ffn) {
        const float gate = sum_slices(partial, UP_COLUMNS, column, row), up = sum_slices(partial, UP_COLUMNS, column, row + 8);
        p.hidden[size_t(choice) * p.ld_hidden + i] = activated(p, choice < choices ? lists.chosen[choice] : -1, ffn, i, gate, up);
      }
    }
    if (records.left > 0) __syncthreads();
  }
  copy_wait<0>();
}

// out = what the experts give, weighted and added up. Grid: (blocks), each with its share of the row tiles.
__global__ void __launch_bounds__(DECODE_THREADS, 3)
    expert_down_kernel(const __grid_constant__ ExpertDecode p, int staged_rows, int ring_at, int ring_bytes) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Lists lists;
  const Routing& r = p.routing;
  const Combine& sums = p.combine;
  const bool has_shared = p.shared_down != nullptr;
  const int rows = held(r.num_rows), used = held(r.used), choices = rows * used, all = choices + (has_shared ? rows : 0);
  auto* const partial = reinterpret_cast<float*>(shared);
  auto* const staged = reinterpret_cast<__half*>(shared + down_partial_bytes(all));
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  // Before the wait: the scores are those that expert_up_kernel waited for before it let this kernel start.
  const int groups = lists.make(r, has_shared);
  const Matrix w = p.down;
  const int tiles = held(w.tiles()), chunks = held(w.chunks()), hidden = held(w.rows);
  const size_t tile_bytes = size_t(chunks) * w.record_bytes;
  const int first = int(int64_t(blockIdx.x) * tiles / gridDim.x), end = int(int64_t(blockIdx.x + 1) * tiles / gridDim.x);
  const ExpertInput input{p.hidden, p.ld_hidden, staged_rows ? shared_of(staged) : 0, staged_stride(w.cols)};
  const auto at = [&](const TilesOfGroups& u) {
    const int expert = lists.expert_of[u.group];
    return expert >= 0 ? w.data + (size_t(expert) * tiles + u.tile) * tile_bytes : p.shared_down + u.tile * tile_bytes;
  };
  UnitRecords<TilesOfGroups> records({0, first, groups}, groups * (end - first), chunks, warp, lane,
                                     shared_of(shared) + ring_at + warp * ring_bytes);
  with_format(w.format, [&](auto format) { records.fill<decltype(format)>(at); });
  // The bias of a place among a tile's products: TILE_ROWS for each choice.
  const auto bias_of = [&](int tile, int place) {
    const int c = place / TILE_ROWS, i = tile * TILE_ROWS + place % TILE_ROWS;
    if (!sums.down_bias || c >= choices || lists.chosen[c] < 0 || i >= hidden) return 0.0f;
    return sums.down_bias[size_t(lists.chosen[c]) * hidden + i];
  };
  // The thread's own output of a tile.
  const int row = threadIdx.x / TILE_ROWS, own = threadIdx.x % TILE_ROWS;
  const bool owns = row < rows && __ldcg(r.slot_mapping + min(row, rows - 1)) != NO_SLOT;
  float bias = bias_of(first, threadIdx.x);
  wait_for_previous();
  input.stage(staged, staged_rows, records.begin, records.length, lane);
  const float share = owns && sums.share && (has_shared || sums.shared) ? sums.share[row] : 1.0f;
  const auto row_of = [&](const TilesOfGroups& u) { return max(int(lists.order[u.group][lane / 4]), 0); };
  for (int tile = first; tile < end && groups > 0; tile++) {
    const int i = tile * TILE_ROWS + own;
    const bool writes = owns && i < hidden;
    float* const out = sums.out + size_t(row) * hidden + i;
    // Requested before the products, needed after them.
    const float kept = writes && sums.add ? *out : 0.0f;
    float given = writes && sums.shared ? sums.shared[size_t(row) * hidden + i] : 0.0f;
    if (tile > first) bias = bias_of(tile, threadIdx.x);
    with_format(w.format, [&](auto format) {
      records.multiply<decltype(format)>(input, at, row_of, [&](const TilesOfGroups& u, const float (&acc)[4]) {
        const int o = lane / 4, n = 2 * (lane % 4), a = lists.order[u.group][n], b = lists.order[u.group][n + 1];
        float* const slice = partial + warp * all * PARTIAL_STRIDE + o;
        if (a >= 0) slice[a * PARTIAL_STRIDE] = acc[0], slice[a * PARTIAL_STRIDE + 8] = acc[2];
        if (b >= 0) slice[b * PARTIAL_STRIDE] = acc[1], slice[b * PARTIAL_STRIDE + 8] = acc[3];
        return u.group + 1 == groups;
      });
    });
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
  copy_wait<0>();
}

}  // namespace pen
