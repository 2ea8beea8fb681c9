// The kernel of among.h for sm_90a: warpgroup products over long spans. It computes the same bits as among.cuh, which bench/pictures.cu
// checks. A warpgroup has 64 rows. The block's warpgroups share the tiles of K and V, which a further warp fetches as boxes. While a tile's
// values are summed, the scores and the softmax of the next tile are computed (FlashAttention-3, Shah et al. 2024).
#pragma once

#include <type_traits>

#include "../device/boxes.h"
#include "../device/cluster.cuh"
#include "../device/warpgroup.cuh"
#include "../attention/tile.cuh"
#include "among.h"

namespace pen {

// A tile of 64 rows: boxes of 64 elements, and behind them boxes of the other `REST` elements, whose rows are shorter.
template <int D>
struct WideTile {
  static constexpr int REST = D - BOX_DIM, FIRST_BYTES = AMONG_KEYS * BOX_DIM * 2, BYTES = AMONG_KEYS * D * 2;
};

// The boxes of queries, keys and values: of the first 64 elements of each head, and of the others.
struct AmongMaps {
  CUtensorMap first[3], rest[3];
};

template <int D>
struct AmongWideShared {
  static constexpr int TILE = WideTile<D>::BYTES, ring = AMONG_WIDE_GROUPS * TILE, barriers = ring + 2 * AMONG_WIDE_STAGES * TILE;
  static_assert(1024 + barriers + sizeof(Ring) + sizeof(uint64_t) == among_wide_bytes(D), "shared memory");
};

#ifdef PEN_HOPPER_DEVICE
// A stage of one of the two rings, and the parity of its barriers' phase.
template <int FIRST>
struct AmongStage {
  int buffer = FIRST;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++buffer == FIRST + AMONG_WIDE_STAGES) buffer = FIRST, phase ^= 1;
  }
};

// Starts to copy the tile of one head whose first row is `row`. `which`: 0 queries, 1 keys, 2 values.
template <int D>
__device__ __forceinline__ void copy_tile(uint32_t to, const AmongMaps& maps, int which, int head, int row, uint64_t* barrier) {
  copy_box(to, maps.first[which], 0, head, row, barrier);
  if constexpr (WideTile<D>::REST > 0) copy_box(to + WideTile<D>::FIRST_BYTES, maps.rest[which], BOX_DIM, head, row, barrier);
}

// Zeroes the rows of a tile of values from row `keys` on: NaN times a probability of 0 is NaN.
template <int D>
__device__ __forceinline__ void clear_rows(uint32_t values, int keys, int thread) {
  constexpr int FIRST = BOX_DIM / 8, REST = WideTile<D>::REST / 8;  // vectors of a row
  const int rows = AMONG_KEYS - keys;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  for (int i = thread; i < rows * FIRST; i += 4 * WARP) store_vector(values + (keys * FIRST + i) * 16, zero);
  for (int i = thread; i < rows * REST; i += 4 * WARP) store_vector(values + WideTile<D>::FIRST_BYTES + (keys * REST + i) * 16, zero);
}

// The state of a thread's two rows.
template <int D>
struct AmongWideRows {
  static constexpr int REST = WideTile<D>::REST;
  static constexpr bool KEPT = D <= 96;  // queries stay in registers, which saves reading them from shared memory
  float s[AMONG_KEYS / 8][4], o[BOX_DIM / 8][4], rest[REST > 0 ? REST / 8 : 1][4];
  float sums[4];  // columns of equal sums
  float maximum[2], factor[2];
  uint32_t p[AMONG_KEYS / 16][4];
  uint32_t q[KEPT ? D / 16 : 1][4];

  // Reads the warp's queries, whose tile begins at `query`.
  __device__ __forceinline__ void read_queries(uint32_t query, int row, int vector) {
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < BOX_DIM / 16; ++k) load_matrices(q[k], query + row * 128 + ((2 * k + vector) ^ (row & 7)) * 16);
#pragma unroll
      for (int k = 0; k < REST / 16; ++k) {
        const int v = 2 * k + vector;
        const int at = REST == 32 ? v ^ (row >> 1 & 3) : v ^ (row >> 2 & 1);
        load_matrices(q[BOX_DIM / 16 + k], query + WideTile<D>::FIRST_BYTES + row * REST * 2 + at * 16);
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < BOX_DIM / 2; ++i) o[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < REST / 2; ++i) rest[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
    maximum[0] = maximum[1] = MASKED;
  }
  // Starts s = q Kᵀ of a tile.
  __device__ __forceinline__ void start_scores(uint32_t query, uint32_t keys) {
    const uint32_t first = WideTile<D>::FIRST_BYTES;
    const auto product = [&](int k, int at, uint64_t a, uint64_t b) {
      if constexpr (KEPT) wgmma(s, q[k], moved(b, 2 * at), k == 0); else wgmma_shared(s, moved(a, 2 * at), moved(b, 2 * at), k == 0);
    };
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < BOX_DIM / 16; ++k) product(k, k, tile_descriptor(query), tile_descriptor(keys));
#pragma unroll
    for (int k = 0; k < REST / 16; ++k) {
      product(BOX_DIM / 16 + k, k, row_descriptor<REST * 2>(query + first), row_descriptor<REST * 2>(keys + first));
    }
    warpgroup_commit();
  }
  // Turns scores, of which `keys` are real, into probabilities that are not rounded yet. CUT: some are not real.
  template <bool CUT>
  __device__ __forceinline__ void raise(int keys, float c, int lane) {
    if constexpr (CUT) {
      const Span span[2] = {{0, keys}, {0, keys}};
      hide_scores(s, span, 0, lane);
    }
    float minus[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = MASKED;
#pragma unroll
      for (int n = 0; n < AMONG_KEYS / 8; ++n) x = fmaxf(x, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
      const float now = fmaxf(maximum[h], x);
      factor[h] = exp2_fast(__fmul_rn(c, __fsub_rn(maximum[h], now)));
      minus[h] = -__fmul_rn(c, now);
      maximum[h] = now;
    }
#pragma unroll
    for (int n = 0; n < AMONG_KEYS / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = held(exp2_fast(__fmaf_rn(s[n][i], c, minus[i / 2])));
    }
  }
  // Waits for the values, rounds the probabilities, scales what was summed before, and adds to the sums. Most tiles change no maximum, and
  // a factor of 1 changes no bit. The branch keeps the compiler from waiting before the probabilities are computed.
  __device__ __forceinline__ void take() {
    if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
      warpgroup_wait<0>();
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = __fmul_rn(sums[i], factor[i / 2]);
#pragma unroll
      for (int i = 0; i < BOX_DIM / 2; ++i) o[i / 4][i % 4] = __fmul_rn(o[i / 4][i % 4], factor[i / 2 % 2]);
#pragma unroll
      for (int i = 0; i < REST / 2; ++i) rest[i / 4][i % 4] = __fmul_rn(rest[i / 4][i % 4], factor[i / 2 % 2]);
    } else {
      asm volatile("wgmma.wait_group.sync.aligned 0;  // without scaling" ::: "memory");
    }
#pragma unroll
    for (int n = 0; n < AMONG_KEYS / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) p[n / 2][n % 2 * 2 + h] = half2_bits(__floats2half2_rn(s[n][2 * h], s[n][2 * h + 1]));
    }
    // A warp's products behind those of the warpgroup would wait for them.
    const uint32_t ones[2] = {0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (int k = 0; k < AMONG_KEYS / 16; ++k) mma(sums, p[k], ones);
  }
  // Starts o = o + P V of a tile.
  __device__ __forceinline__ void start_values(uint32_t values) {
    const uint64_t b = transposed_descriptor(values, AMONG_KEYS * 128);
    const uint64_t more = row_descriptor<REST * 2>(values + WideTile<D>::FIRST_BYTES);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < AMONG_KEYS / 16; ++k) {
      wgmma<true>(o, p[k], moved(b, k * 16 * 128 / 16), false);
      if constexpr (REST > 0) wgmma<true>(rest, p[k], moved(more, k * 16 * REST * 2 / 16), false);
    }
    warpgroup_commit();
  }
  // Writes the warp's rows, of which `count` are real. `out` is the head's first row.
  __device__ __forceinline__ void write(__half* out, int ld, int value_dim, int count, int lane) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = h * 8 + lane / 4;
      if (row >= count) continue;
      const float inverse = inverse_sum(sums[2 * h]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int dim = n * 8 + lane % 4 * 2;
        if (dim >= value_dim) continue;
        const float(&from)[4] = n < BOX_DIM / 8 ? o[n % (BOX_DIM / 8)] : rest[n % (BOX_DIM / 8)];
        *reinterpret_cast<__half2*>(out + static_cast<size_t>(row) * ld + dim) = finished(from[2 * h], from[2 * h + 1], inverse);
      }
    }
  }
};
#endif

// Grid: (tiles, num_heads). Block: AMONG_WIDE_GROUPS warpgroups, and one that fetches.
template <int D>
__global__ void __launch_bounds__((AMONG_WIDE_GROUPS + 1) * 4 * WARP, 1)
    among_wide_kernel(const __grid_constant__ Among p, const AmongTile* __restrict__ tiles, const __grid_constant__ AmongMaps maps) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = AmongWideShared<D>;
  constexpr int GROUPS = AMONG_WIDE_GROUPS, TILE = Shared::TILE, STAGES = AMONG_WIDE_STAGES;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  uint8_t* const shared = dynamic + (base - shared_of(dynamic));
  Ring& ring = *reinterpret_cast<Ring*>(shared + Shared::barriers);
  uint64_t* const queries = reinterpret_cast<uint64_t*>(&ring + 1);
  wait_for_previous();
  const AmongTile tile = tiles[blockIdx.x];
  const int groups = ceil_div(tile.rows, AMONG_KEYS), count = ceil_div(tile.keys, AMONG_KEYS), head = blockIdx.y;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES; ++i) barrier_init(&ring.full[i], 1), barrier_init(&ring.empty[i], groups * 4);
    barrier_init(queries, 1);
    fence_barriers();
  }
  __syncthreads();
  AmongStage<0> keys;
  AmongStage<STAGES> values;
  const auto at = [&](const auto& stage) { return base + Shared::ring + stage.buffer * TILE; };
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / (4 * WARP), 0);  // so that the compiler knows it is uniform in the warp
  if (group == GROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x != GROUPS * 4 * WARP) return;
    const int kv_head = head / (p.num_heads / p.num_kv_heads);
    expect_bytes(queries, groups * TILE);
    for (int g = 0; g < groups; ++g) copy_tile<D>(base + g * TILE, maps, 0, head, tile.first + g * AMONG_KEYS, queries);
    const auto fill = [&](auto& stage, int which, int i) {
      barrier_wait(&ring.empty[stage.buffer], stage.phase ^ 1);
      expect_bytes(&ring.full[stage.buffer], TILE);
      copy_tile<D>(at(stage), maps, which, kv_head, tile.first_key + i * AMONG_KEYS, &ring.full[stage.buffer]);
      stage.next();
    };
    for (int i = 0; i < count; ++i) fill(keys, 1, i), fill(values, 2, i);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
  if (group >= groups) return;
  const int thread = threadIdx.x % (4 * WARP), lane = thread % WARP;
  const auto wait = [&](const auto& stage) { barrier_wait(&ring.full[stage.buffer], stage.phase); };
  const auto leave = [&](auto& stage) {
    if (lane == 0) barrier_arrive(&ring.empty[stage.buffer]);
    stage.next();
  };
  const uint32_t query = base + group * TILE;
  const float c = held(__fmul_rn(p.scale, LOG2_E));
  AmongWideRows<D> rows;
  rows.clear();
  barrier_wait(queries, 0);
  rows.read_queries(query, thread / WARP * 16 + lane % 16, lane / 16);
  wait(keys);
  rows.start_scores(query, at(keys));
  warpgroup_wait<0>();
  leave(keys);
  rows.template raise<true>(tile.keys, c, lane);
  rows.take();
  // Sums the values of a tile that is not the last one, and computes the probabilities of the next tile. A branch around the masks would
  // make the compiler wait for the values too early.
  int i = 0;
  const auto step = [&](auto cut) {
    wait(keys);
    wait(values);
    rows.start_scores(query, at(keys));
    rows.start_values(at(values));
    warpgroup_wait<1>();
    leave(keys);
    ++i;
    rows.template raise<decltype(cut)::value>(tile.keys - i * AMONG_KEYS, c, lane);
    rows.take();
    leave(values);
  };
  const int whole = tile.keys / AMONG_KEYS;
#pragma unroll 1
  while (i + 1 < whole) step(std::false_type{});
  if (i + 1 < count) step(std::true_type{});
  wait(values);
  const int left = tile.keys - (count - 1) * AMONG_KEYS;
  if (left < AMONG_KEYS) {
    clear_rows<D>(at(values), left, thread);
    fence_async_proxy();
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(4 * WARP) : "memory");
  }
  rows.start_values(at(values));
  warpgroup_wait<0>();
  const int first = group * AMONG_KEYS + thread / WARP * 16;
  rows.write(p.out + static_cast<size_t>(tile.first + first) * p.ld_out + head * p.value_dim, p.ld_out, p.value_dim, tile.rows - first,
             lane);
#endif
}

}  // namespace pen
