// y = W · x for many tokens on sm_90a: the numeric definition of linear.h on warpgroup products (wgmma). A block computes TOKENS tokens of
// eight row tiles, one for each consuming warp. A producing warp copies the tokens' chunks as boxes into a ring of stages, in the 128-byte
// swizzle; the two blocks of a cluster work on the same tokens, and each copies half of a chunk into both. Other warps copy the
// records of the eight row tiles into the same stages. The consumers dequantise a record straight into the A registers, which have the
// layout of mma.m16n8k16, while the product of the record before runs. A cluster computes one pair of tiles after another, and the stages
// know no ends of tiles: copies for the next tile run, and its first product is issued, before the sums of this one are written. If the
// tiles do not fill the device's last turn, several blocks share each: every block takes some of the slices, and their sums meet in a
// workspace (hopper_plan.cu, slice_sums.cuh). It is not documented whether m64nNk16 accumulates as m16n8k16 does: bench/linear.cu checks
// it.
#pragma once

#include <algorithm>

#include "../device/boxes.h"
#include "../device/cluster.cuh"
#include "../device/warpgroup.cuh"
#include "../quant/format.cuh"
#include "hopper.h"
#include "slice_sums.cuh"
#include "write_boxes.cuh"

namespace pen {

constexpr int HOPPER_CONSUMERS = 256;  // two warpgroups of 64 rows each
constexpr int HOPPER_PRODUCERS = 128;  // a whole warpgroup, since registers move only between warpgroups
constexpr int HOPPER_THREADS = HOPPER_CONSUMERS + HOPPER_PRODUCERS;
constexpr int HOPPER_SHARED_LIMIT = 226 << 10;

// How a block of TOKENS × 128 rows uses shared memory.
template <class Format, int TOKENS>
struct HopperShared {
  static constexpr int STAGE = TOKENS * CHUNK * 2, BOX = STAGE / HOPPER_CLUSTER;  // bytes of x
  static constexpr int RECORD = Format::record_bytes, RECORDS = HOPPER_ROW_TILES * RECORD;
  static constexpr int SUMS = 2 * boxed_bytes(TOKENS), ROOM = (HOPPER_SHARED_LIMIT - 1024 - SUMS) / (STAGE + RECORDS);
  static constexpr int STAGES = ROOM < 8 ? ROOM : 8;  // a Ring has barriers for eight
  static constexpr int boxes = STAGES * STAGE, records = boxes + SUMS;  // behind the stages of x
  static constexpr size_t bytes = 1024 + records + STAGES * RECORDS;
  static_assert(STAGES >= 4 && RECORD % 16 == 0, "room for copies to run ahead");
};

#ifdef PEN_HOPPER_DEVICE
// What a block computes of a unit.
struct HopperUnit {
  int first_token, segment, group;
  int first, last, share;  // slices, and which of the tile's shares they are
  int number;       // of the block's tile among those that are shared
  __device__ __forceinline__ HopperUnit(const Linear& p, const HopperGrid& grid, int tokens, int unit, int rank) {
    int tile = unit;
    first = 0, last = SLICES, share = 0, number = 0;
    if (unit >= grid.whole) {
      const int rest = grid.tiles() - grid.whole, each = SLICES / grid.shares;
      share = (unit - grid.whole) / rest;
      tile -= share * rest;
      first = share * each, last = first + each;
      number = (tile - grid.whole) * HOPPER_CLUSTER + rank;
    }
    const int pair = tile / grid.token_groups;
    first_token = (tile - pair * grid.token_groups) * tokens;
    group = pair * HOPPER_CLUSTER + rank;
    segment = 0;
    while (segment + 1 < p.num_segments && group >= row_groups(p.w[segment])) group -= row_groups(p.w[segment++]);
  }
};

// A place in the ring of stages.
template <int STAGES>
struct HopperStage {
  int index = 0;
  uint32_t phase;
  __device__ __forceinline__ void advance() {
    if (++index == STAGES) index = 0, phase ^= 1;
  }
  __device__ __forceinline__ void retreat() {
    if (index-- == 0) index = STAGES - 1, phase ^= 1;
  }
};

// Calls copy(chunk, stage) for each chunk of each of the block's units as soon as a stage is free. `begin(unit, chunk)` precedes them.
template <class Shared, class Begin, class Copy>
__device__ __forceinline__ void produce(const Linear& p, const HopperGrid& grid, int tokens, Ring& ring, Begin begin, Copy copy) {
  const int chunks = p.w[0].chunks(), clusters = gridDim.x / HOPPER_CLUSTER, rank = blockIdx.x % HOPPER_CLUSTER;
  HopperStage<Shared::STAGES> stage{0, 1};
#pragma unroll 1
  for (int i = blockIdx.x / HOPPER_CLUSTER; i < grid.units; i += clusters) {
    const HopperUnit unit(p, grid, tokens, i, rank);
    const int first = slice_begin(unit.first, chunks), end = slice_begin(unit.last, chunks);
    begin(unit, first);
#pragma unroll 1
    for (int chunk = first; chunk < end; chunk++) {
      barrier_wait(&ring.empty[stage.index], stage.phase);
      copy(chunk, stage.index);
      stage.advance();
    }
  }
}

// Copies this block's half of every chunk of x into both blocks, by one thread.
template <class Shared>
__device__ __forceinline__ void produce_x(const Linear& p, const HopperGrid& grid, int tokens, const CUtensorMap& x, uint32_t stages,
                                          Ring& ring) {
  const int rank = blockIdx.x % HOPPER_CLUSTER;
  int row = 0;
  prefetch_map(x);
  wait_for_previous();
  produce<Shared>(
      p, grid, tokens, ring, [&](const HopperUnit& unit, int) { row = unit.first_token + rank * (tokens / HOPPER_CLUSTER); },
      [&](int chunk, int stage) {
        const uint32_t to = stages + stage * Shared::STAGE + rank * Shared::BOX;
        expect_bytes(&ring.full[stage], Shared::STAGE);
        copy_box_to((1 << HOPPER_CLUSTER) - 1, to, x, chunk * CHUNK, row, &ring.full[stage]);
      });
}

// Copies the records of one of the block's row tiles, by one thread. Weights may be copied before earlier kernels have ended.
template <class Shared>
__device__ __forceinline__ void produce_records(const Linear& p, const HopperGrid& grid, int tokens, uint32_t records, Ring& ring,
                                                int row_tile) {
  const uint8_t* next = nullptr;
  produce<Shared>(
      p, grid, tokens, ring,
      [&](const HopperUnit& unit, int first) {
        const Matrix& w = p.w[unit.segment];
        const int tile = min(unit.group * HOPPER_ROW_TILES + row_tile, w.tiles() - 1);
        next = w.data + (size_t(tile) * w.chunks() + first) * Shared::RECORD;
      },
      [&](int, int stage) {
        expect_bytes(&ring.full[stage], Shared::RECORD);
        copy_bytes(records + stage * Shared::RECORDS + row_tile * Shared::RECORD, next, Shared::RECORD, &ring.full[stage]);
        next += Shared::RECORD;
      });
}

// What a warp multiplies.
template <class Format, int TOKENS>
struct HopperConsumer {
  using Shared = HopperShared<Format, TOKENS>;
  static constexpr int NT = TOKENS / 8;
  using Sums = float[NT][4];
  using Operands = uint32_t[STEPS][4];

  uint32_t origin;               // the lower half of the first stage's descriptor; the upper half is the same for all
  uint32_t records, full, empty;  // shared: the row tile's record in the first stage, and the barriers of both blocks' first stages
  int lane, chunks;
  HopperStage<Shared::STAGES> stage{0, 0};

  __device__ __forceinline__ HopperConsumer(uint32_t stages, Ring& ring, int chunks) : chunks(chunks) {
    // Through a shuffle, since the compiler would read the thread's number again for each record.
    lane = __shfl_sync(0xffffffffu, int(threadIdx.x), int(threadIdx.x)) % WARP;
    origin = held(uint32_t(tile_descriptor(stages)));
    records = held(uint32_t(stages + Shared::records + threadIdx.x / WARP * Shared::RECORD));
    full = held(shared_of(ring.full));
    empty = held(in_block(shared_of(ring.empty), lane % HOPPER_CLUSTER));
  }
  __device__ __forceinline__ int length(int slice) const { return slice_begin(slice + 1, chunks) - slice_begin(slice, chunks); }

  __device__ __forceinline__ void wait() const { barrier_wait(full + stage.index * 8, stage.phase); }
  // Turns the record of the present stage into operands.
  __device__ __forceinline__ void operands(Operands& a) const {
    typename Format::Raw raw;
    raw.load_shared(records + stage.index * Shared::RECORDS, lane);
#pragma unroll
    for (int s = 0; s < STEPS; s++) raw.fragment(s, a[s]);
  }
  // Tells both blocks' producers that this warp is done with a stage.
  __device__ __forceinline__ void release(int index) const {
    if (lane < HOPPER_CLUSTER) barrier_arrive_cluster(empty + index * 8);
  }

  // Multiplies the slices [first, last) of units that have `left` chunks together. `take(slice, acc)` gets each slice's sum; `end()` is
  // called behind each unit, while the next one's first product runs, and returns whether there is a next one.
  template <class Take, class End>
  __device__ __forceinline__ void run(int left, int first, int last, Take take, End end) {
    constexpr uint64_t UPPER = tile_descriptor(0) & ~uint64_t(0xffffffff);
    Sums acc;
    Operands even, odd;
    int before = 0;
    wait();
    operands(even);
    // Multiplies the next chunk, whose operands are `a`, and makes those of the chunk after it, `other`. Unless the slice begins (`fresh`),
    // the chunk before has ended then: its operands and its stage are free.
    const auto step = [&](bool fresh, Operands& a, Operands& other) {
      const uint32_t b = origin + stage.index * (Shared::STAGE >> 4);
      warpgroup_arrive();
#pragma unroll
      for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], UPPER | (b + 2 * s), fresh && s == 0);
      warpgroup_commit();
      const int ended = before;
      before = stage.index;
      stage.advance();
      const bool more = --left > 0;
      if (more) wait();
      if (!fresh) {
        warpgroup_wait<1>();
        release(ended);
      }
      if (more) operands(other);
    };
    int slice = first;
    while (length(slice) == 0) slice++;  // small matrices have empty slices; the last is none
    step(true, even, odd);
#pragma unroll 1
    for (;;) {
      int count = length(slice);
#pragma unroll 1
      for (count -= 2; count > 0; count -= 2) {
        step(false, odd, even);
        step(false, even, odd);
      }
      if (count == 0) step(false, odd, even);
      warpgroup_wait<0>();
      release(before);
      take(slice, acc);
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) even[s][i] = count == 0 ? even[s][i] : odd[s][i];
      }
      const bool ends = ++slice == last;
      // Behind the last unit, this multiplies what happens to lie in shared memory: the compiler serialises products behind a branch.
      step(true, even, odd);
      if (ends) {
        if (!end()) break;
        slice = first;
      }
      while (length(slice) == 0) slice++;
    }
    warpgroup_wait<0>();
    stage.retreat();
  }
};
#endif

// Grid: clusters of two blocks along x. All segments have this format: a kernel for all formats would be short of registers. `x`: boxes of
// TOKENS / 2 rows of p.x. `out`: as write_boxes() takes it.
template <class Format, int TOKENS>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    linear_hopper_kernel(const __grid_constant__ Linear p, const __grid_constant__ HopperGrid grid, const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ CUtensorMap out) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = HopperShared<Format, TOKENS>;
  constexpr int NT = TOKENS / 8;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::STAGES; i++) {
      barrier_init(&ring.full[i], 1 + HOPPER_ROW_TILES);
      barrier_init(&ring.empty[i], HOPPER_CLUSTER * HOPPER_CONSUMERS / WARP);
    }
  }
  __syncthreads();
  cluster_arrive();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  cluster_wait();
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    constexpr int FIRST = HOPPER_CONSUMERS / WARP, OTHERS = HOPPER_PRODUCERS / WARP - 1;
    // The copies of a warp's lanes start one after another, so all warps take part.
    const int row_tile = warp - FIRST - 1 + OTHERS * lane;
    if (warp == FIRST && lane == 0) produce_x<Shared>(p, grid, TOKENS, x, stages, ring);
    if (warp > FIRST && row_tile < HOPPER_ROW_TILES) produce_records<Shared>(p, grid, TOKENS, stages + Shared::records, ring, row_tile);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int clusters = gridDim.x / HOPPER_CLUSTER, rank = blockIdx.x % HOPPER_CLUSTER, chunks = p.w[0].chunks();
    HopperConsumer<Format, TOKENS> consumer(stages, ring, chunks);
    if (grid.boxed && threadIdx.x == 0) prefetch_map(out);
    int unit = blockIdx.x / HOPPER_CLUSTER;
    if (unit < grid.whole) {
      float sums[NT][4] = {};
      const auto take = [&](int, const float (&y)[NT][4]) { add_sums(sums, y); };
      const auto end = [&] {
        const HopperUnit at(p, grid, TOKENS, unit, rank);
        const int tile = at.group * HOPPER_ROW_TILES + warp, first_tile = tile - warp % 4;
        const Matrix& w = p.w[at.segment];
        wait_for_previous();
        if (grid.boxed && (first_tile + 4) * TILE_ROWS <= w.rows) {
          const uint32_t boxes = stages + Shared::boxes + warp / 4 * boxed_bytes(TOKENS);
          write_boxes<NT>(p, out, at.segment, first_tile, at.first_token, boxes, sums);
        } else if (tile < w.tiles()) {
          write_sums<NT, 4>(p, at.segment, tile, at.first_token, lane, sums);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
        }
        return (unit += clusters) < grid.whole;
      };
      consumer.run(ceil_div(grid.whole - unit, clusters) * chunks, 0, SLICES, take, end);
    }
    for (; unit < grid.units; unit += clusters) {
      const HopperUnit at(p, grid, TOKENS, unit, rank);
      const int tile = at.group * HOPPER_ROW_TILES + warp, number = at.number * HOPPER_ROW_TILES + warp;
      const SliceSums<NT, 4> slices(p.slabs, number);
      // The first share adds its slices, and the others leave that to those who add up parts.
      float sums[NT][4] = {};
      const auto take = [&](int slice, const float (&y)[NT][4]) {
        if (at.first == 0) add_sums(sums, y);
        else slices.put(slice, y);
      };
      const int left = slice_begin(at.last, chunks) - slice_begin(at.first, chunks);
      consumer.run(left, at.first, at.last, take, [] { return false; });
      if (at.first == 0) slices.put(0, sums);
      wait_for_previous();
      if (tile >= p.w[at.segment].tiles()) continue;
      // Only behind its last unit does a cluster wait: another may be waiting for a unit that this one has yet to compute.
      const int patience = unit + clusters < grid.units ? -1 : p.patience;
      with_part<NT>(grid.shares, [&](auto part) {
        constexpr int EACH = decltype(part)::value, TOGETHER = SLICES * EACH / NT;
        slices.template finish<EACH, TOGETHER>(p, p.arrivals + number, at.share, grid.shares, patience, at.segment, tile, at.first_token,
                                               lane);
      });
    }
    boxes_wait();
  }
  // The other block may still copy into this one's shared memory, and arrive at its barriers.
  cluster_arrive();
  cluster_wait();
#endif
}

// False: boxes would begin between multiples of 16 bytes.
inline bool map_sums(CUtensorMap& out, const Linear& args, int tokens) {
  const bool gated = is_gated(args.epilogue);
  for (int i = 0; i < args.num_segments; i++) {
    if (args.out_offset[i] % (gated ? 8 : 4) != 0) return false;
  }
  const auto map = [&](auto* data) { return map_boxes(out, data, args.num_tokens, args.ldo, args.ldo, tokens, gated ? 64 : 128); };
  return gated ? map(args.out16) : map(args.out);
}

template <class Format, int TOKENS>
void start_hopper(const Launch& launch, const Linear& args, const CUtensorMap& x) {
  const auto kernel = linear_hopper_kernel<Format, TOKENS>;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, HOPPER_SHARED_LIMIT), prefer_shared(kernel); });
  HopperGrid grid = plan_hopper(launch.device, args, TOKENS).grid;
  CUtensorMap out{};
  grid.boxed = grid.whole > 0 && map_sums(out, args, TOKENS);
  const int blocks = std::min(grid.units, hopper_clusters(launch.device)) * HOPPER_CLUSTER;
  const Launch paired{launch.device, launch.stream, launch.overlap, HOPPER_CLUSTER};
  paired(kernel, dim3(blocks), dim3(HOPPER_THREADS), HopperShared<Format, TOKENS>::bytes, args, grid, x, out);
}

template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args) {
  CUtensorMap x;
  if (!map_boxes(x, args.x, args.num_tokens, size_t(args.w[0].chunks()) * CHUNK, args.ldx, TOKENS / HOPPER_CLUSTER)) return false;
  const auto start = [&](auto each) { start_hopper<decltype(each), TOKENS>(launch, args, x); };
  std::apply([&](auto... each) { ((decltype(each)::id == args.w[0].format ? start(each) : void()), ...); }, AllFormats{});
  return true;
}

}  // namespace pen
