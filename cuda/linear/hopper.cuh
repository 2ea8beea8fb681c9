// y = W · x for many tokens on sm_90a: the numeric definition of linear.h on warpgroup products (wgmma). A block computes TOKENS tokens of
// eight row tiles, one per consuming warp. A producing warp copies the tokens' K tiles as boxes into a ring of stages, in the 128-byte
// swizzle. The two blocks of a cluster work on the same tokens, and each copies half of a K tile into both. Other warps copy the records of
// the eight row tiles into the same stages. The consumers dequantise a record straight into the A registers, which have the layout of
// mma.m16n8k16, while the product of the previous record runs. A cluster computes one pair of tiles after the other, and the stages
// continue across tiles: copies for the next tile run, and its first product is issued, before the sums of the current tile are written.
// Parts of the sums are written between the first products of the next tile. If the tiles do not fill the device's last wave, several
// blocks share each tile: every block takes some of the slices, and their sums meet in a workspace (hopper_plan.cu, slice_sums.cuh). NVIDIA
// does not document whether m64nNk16 accumulates as m16n8k16 does, so bench/linear.cu checks it.
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
constexpr int HOPPER_PRODUCERS = 128;  // a whole warpgroup, because registers move only between warpgroups
constexpr int HOPPER_THREADS = HOPPER_CONSUMERS + HOPPER_PRODUCERS;
constexpr int HOPPER_SHARED_LIMIT = 226 << 10;

// Shared memory of a block of TOKENS_ × 128 rows. A stage holds a piece of PIECE_ K tiles.
template <class Format, int TOKENS_, int PIECE_ = 1>
struct HopperShared {
  static constexpr int TOKENS = TOKENS_, PIECE = PIECE_;
  static constexpr int X = TOKENS * K_TILE * 2, BOX = X / HOPPER_CLUSTER, STAGE = PIECE * X;  // bytes of x
  static constexpr int RECORD = Format::record_bytes, TILE = PIECE * RECORD, RECORDS = HOPPER_ROW_TILES * TILE;
  static constexpr int SUMS = 2 * boxed_bytes(TOKENS), ROOM = (HOPPER_SHARED_LIMIT - 1024 - SUMS) / (STAGE + RECORDS);
  static constexpr int STAGES = ROOM < 8 ? ROOM : 8;  // a Ring has barriers for eight
  static constexpr int boxes = STAGES * STAGE, records = boxes + SUMS;  // after the stages of x
  static constexpr size_t bytes = 1024 + records + STAGES * RECORDS;
  static_assert(STAGES >= (PIECE > 1 ? 3 : 4) && RECORD % 16 == 0, "room for copies to run ahead");
};

#ifdef PEN_HOPPER_DEVICE
// The units that a cluster computes: every `step`th, starting at `first`.
struct HopperUnits {
  int first, step;
};

// The part of a unit that a block computes.
struct HopperUnit {
  int first_token, segment, group;
  int first, last, share;  // slices, and the number of the share that has them
  int number;       // number of the block's tile among those that are shared
  __device__ __forceinline__ HopperUnit(const Linear& p, const HopperGrid& grid, int tokens, int unit, int rank) {
    int tile = unit;
    first = 0, last = p.slicing.count(), share = 0, number = 0;
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

// A position in the ring of stages.
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

// Calls copy(k_tile, stage) for the first K tile of each piece of the block's units as soon as a stage is free. Calls `begin(unit, k_tile)`
// before the pieces of each unit.
template <class Shared, class Begin, class Copy>
__device__ __forceinline__ void produce(const Linear& p, const HopperGrid& grid, HopperUnits own_units, Ring& ring, Begin begin,
                                        Copy copy) {
  const int k_tiles = p.w[0].k_tiles(), rank = blockIdx.x % HOPPER_CLUSTER;
  HopperStage<Shared::STAGES> stage{0, 1};
#pragma unroll 1
  for (int i = own_units.first; i < grid.units; i += own_units.step) {
    const HopperUnit unit(p, grid, Shared::TOKENS, i, rank);
    const int first = p.slicing.begin(unit.first, k_tiles), end = p.slicing.begin(unit.last, k_tiles);
    begin(unit, first);
#pragma unroll 1
    for (int k_tile = first; k_tile < end; k_tile += Shared::PIECE) {
      barrier_wait(&ring.empty[stage.index], stage.phase);
      copy(k_tile, stage.index);
      stage.advance();
    }
  }
}

// Copies this block's half of every K tile of x into both blocks, by one thread.
template <class Shared>
__device__ __forceinline__ void produce_x(const Linear& p, const HopperGrid& grid, HopperUnits own_units, const CUtensorMap& x,
                                          uint32_t stages, Ring& ring) {
  const int rank = blockIdx.x % HOPPER_CLUSTER;
  int row = 0, column = 0;
  prefetch_map(x);
  wait_for_previous();
  produce<Shared>(
      p, grid, own_units, ring,
      [&](const HopperUnit& unit, int) {
        row = unit.first_token + rank * (Shared::TOKENS / HOPPER_CLUSTER);
        if (p.stacked > 1) column = unit.group / (row_groups(p.w[0]) / p.stacked) * p.w[0].k_tiles() * K_TILE;
      },
      [&](int k_tile, int stage) {
        const uint32_t to = stages + stage * Shared::STAGE + rank * Shared::BOX;
        expect_bytes(&ring.full[stage], Shared::STAGE);
#pragma unroll
        for (int k = 0; k < Shared::PIECE; k++) {
          copy_box_to((1 << HOPPER_CLUSTER) - 1, to + k * Shared::X, x, column + (k_tile + k) * K_TILE, row, &ring.full[stage]);
        }
      });
}

// Copies the records of one of the block's row tiles, by one thread. Weights may be copied before earlier kernels have ended.
template <class Shared>
__device__ __forceinline__ void produce_records(const Linear& p, const HopperGrid& grid, HopperUnits own_units, uint32_t records,
                                                Ring& ring, int row_tile) {
  const uint8_t* next = nullptr;
  produce<Shared>(
      p, grid, own_units, ring,
      [&](const HopperUnit& unit, int first) {
        const Matrix& w = p.w[unit.segment];
        const int tile = min(unit.group * HOPPER_ROW_TILES + row_tile, w.tiles() - 1);
        next = w.data + (size_t(tile) * w.k_tiles() + first) * Shared::RECORD;
      },
      [&](int, int stage) {
        expect_bytes(&ring.full[stage], Shared::TILE);
        copy_bytes(records + stage * Shared::RECORDS + row_tile * Shared::TILE, next, Shared::TILE, &ring.full[stage]);
        next += Shared::TILE;
      });
}

// The work that follows a unit: nothing, the next unit, or the next unit while parts of this unit's sums are written.
enum class Next { NONE, UNIT, PARTS };
template <int K>
using PartIndex = std::integral_constant<int, K>;

// Multiplies one row tile, by one consuming warp.
template <class Shared, class Format>
struct HopperConsumer {
  static constexpr int NT = Shared::TOKENS / 8, PIECE = Shared::PIECE, FRAGMENTS = PIECE * STEPS;
  using Sums = float[NT][4];
  using Operands = uint32_t[FRAGMENTS][4];

  uint32_t origin;               // lower half of the first stage's descriptor; all stages have the same upper half
  uint32_t records, full, empty;  // in shared memory: the row tile's record in the first stage, and the barriers of the first stages in
                                  // both blocks
  int lane, k_tiles;
  const Slicing& slicing;
  HopperStage<Shared::STAGES> stage{0, 0};

  __device__ __forceinline__ HopperConsumer(uint32_t stages, Ring& ring, int k_tiles, const Slicing& slicing)
      : k_tiles(k_tiles), slicing(slicing) {
    // Uses a shuffle: otherwise the compiler would read the thread's number again for each record.
    lane = __shfl_sync(0xffffffffu, int(threadIdx.x), int(threadIdx.x)) % WARP;
    origin = held(uint32_t(tile_descriptor(stages)));
    records = held(uint32_t(stages + Shared::records + threadIdx.x / WARP * Shared::TILE));
    full = held(shared_of(ring.full));
    empty = held(in_block(shared_of(ring.empty), lane % HOPPER_CLUSTER));
  }
  // Pieces per slice. If pieces have several K tiles, there are all slices, and every slice has the same number of pieces.
  __device__ __forceinline__ int length(int slice) const {
    return PIECE > 1 ? k_tiles / (SLICES * PIECE) : slicing.begin(slice + 1, k_tiles) - slicing.begin(slice, k_tiles);
  }

  __device__ __forceinline__ void wait() const { barrier_wait(full + stage.index * 8, stage.phase); }
  // Turns the records of the current stage into operands.
  __device__ __forceinline__ void operands(Operands& a) const {
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
      typename Format::Raw raw;
      raw.load_shared(records + stage.index * Shared::RECORDS + k * Shared::RECORD, lane);
#pragma unroll
      for (int s = 0; s < STEPS; s++) raw.fragment(s, a[k * STEPS + s]);
    }
  }
  // Tells the producers of both blocks that this warp has finished with a stage.
  __device__ __forceinline__ void release(int index) const {
    if (lane < HOPPER_CLUSTER) barrier_arrive_cluster(empty + index * 8);
  }

  // Multiplies the slices [first, last) of units that have `left` pieces in total. Calls `take(slice, acc)` with each slice's sum. Calls
  // `end(unit_ends)` after each unit, and if `halves`, in its middle, while the next product runs. It returns what follows. If parts
  // follow, calls `part(k, unit_ends)` for each of them between the products of the next slice, which must have PARTS_PIECES.
  template <class Take, class End, class Part>
  __device__ __forceinline__ void run(int left, int first, int last, bool halves, Take take, End end, Part part) {
    constexpr uint64_t UPPER = tile_descriptor(0) & ~uint64_t(0xffffffff);
    Sums acc;
    Operands even, odd;
    int before = 0;
    wait();
    operands(even);
    // Multiplies the next piece, whose operands are `a`, and prepares `other`, the operands of the piece after it. Unless the slice starts
    // (`fresh`), the previous piece has then ended, and its operands and its stage are free.
    const auto step = [&](bool fresh, Operands& a, Operands& other) {
      const uint32_t b = origin + stage.index * (Shared::STAGE >> 4);
      warpgroup_arrive();
#pragma unroll
      for (int s = 0; s < FRAGMENTS; s++) {
        wgmma(acc, a[s], UPPER | (b + s / STEPS * (Shared::X >> 4) + s % STEPS * 2), fresh && s == 0);
      }
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
    int slice = first, done = 0;  // pieces of the slice whose products have been issued, apart from the first
    while (length(slice) == 0) slice++;  // small matrices have empty slices; the last slice is never empty
    step(true, even, odd);
#pragma unroll 1
    for (;;) {
      int count = length(slice) - done;
      done = 0;
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
      for (int s = 0; s < FRAGMENTS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) even[s][i] = count == 0 ? even[s][i] : odd[s][i];
      }
      const bool ends = ++slice == last;
      // After the last unit, this multiplies stale data, and the result is discarded: the compiler serialises products after a branch.
      step(true, even, odd);
      if (ends || (halves && slice == HALF)) {
        const Next next = end(ends);
        if (next == Next::NONE) break;
        if (ends) slice = first;
        if (next == Next::PARTS) {
          // Two parts take longer than the product of one K tile, so long slices write one part at a time.
          if (length(first) >= LONG_PIECES) {
            part(PartIndex<0>{}, slice == first);
            step(false, odd, even);
            part(PartIndex<1>{}, slice == first);
            step(false, even, odd);
            part(PartIndex<2>{}, slice == first);
            step(false, odd, even);
            part(PartIndex<3>{}, slice == first);
            step(false, even, odd);
            done = LONG_PIECES - 1;
          } else {
            part(PartIndex<0>{}, slice == first);
            part(PartIndex<1>{}, slice == first);
            step(false, odd, even);
            part(PartIndex<2>{}, slice == first);
            part(PartIndex<3>{}, slice == first);
            step(false, even, odd);
            done = PARTS_PIECES - 1;
          }
        }
      }
      while (length(slice) == 0) slice++;
    }
    warpgroup_wait<0>();
    stage.retreat();
  }
};

// Runs a producing warp.
template <class Shared>
__device__ __forceinline__ void produce_units(const Linear& p, const HopperGrid& grid, HopperUnits own_units, const CUtensorMap& x,
                                              uint32_t stages, Ring& ring) {
  constexpr int FIRST = HOPPER_CONSUMERS / WARP, OTHERS = HOPPER_PRODUCERS / WARP - 1;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  // The copies of a warp's lanes are issued one after the other, so all warps take part.
  const int row_tile = warp - FIRST - 1 + OTHERS * lane;
  if (warp == FIRST && lane == 0) produce_x<Shared>(p, grid, own_units, x, stages, ring);
  if (warp > FIRST && row_tile < HOPPER_ROW_TILES) produce_records<Shared>(p, grid, own_units, stages + Shared::records, ring, row_tile);
}

// Runs a consuming warp.
template <class Shared, class Format>
__device__ __forceinline__ void consume_units(const Linear& p, const HopperGrid& grid, HopperUnits own_units, const CUtensorMap& out,
                                              uint32_t stages, Ring& ring) {
  constexpr int TOKENS = Shared::TOKENS, NT = TOKENS / 8;
  const int rank = blockIdx.x % HOPPER_CLUSTER, k_tiles = p.w[0].k_tiles(), lane = threadIdx.x % WARP;
  // Uniform across the warp, and the compiler must know that for values that control products.
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x), 0) / WARP;
  HopperConsumer<Shared, Format> consumer(stages, ring, k_tiles, p.slicing);
  if (grid.boxed && threadIdx.x == 0) prefetch_map(out);
  int unit = own_units.first;
  if (unit < grid.whole) {
    float sums[NT][4] = {};
    const auto take = [&](int, const float (&y)[NT][4]) { add_sums(sums, y); };
    const bool in_parts = p.num_tokens > HOPPER_FEW_TOKENS && consumer.length(0) >= PARTS_PIECES;
    BoxWriter<NT> writer(p, out, stages + Shared::boxes + warp / 4 * boxed_bytes(TOKENS));
    const auto part = [&](auto k, bool unit_ends) { writer.template write<decltype(k)::value>(sums, unit_ends && p.slicing.halves); };
    const auto end = [&](bool unit_ends) {
      const HopperUnit at(p, grid, TOKENS, unit, rank);
      const int tile = at.group * HOPPER_ROW_TILES + warp, first_tile = tile - warp % 4;
      const Matrix& w = p.w[at.segment];
      wait_for_previous();
      if (unit_ends) unit += own_units.step;
      const bool more = unit < grid.whole;
      if (grid.boxed && (first_tile + 4) * TILE_ROWS <= w.rows) {
        writer.begin(at.segment, first_tile, at.first_token);
        if (more && in_parts) return Next::PARTS;
        part(PartIndex<0>{}, unit_ends);
        part(PartIndex<1>{}, unit_ends);
        part(PartIndex<2>{}, unit_ends);
        part(PartIndex<3>{}, unit_ends);
      } else {
        const bool adds = adds_sums(p, unit_ends && p.slicing.halves);
        if (tile < w.tiles()) write_sums<NT, 4>(p, at.segment, tile, at.first_token, lane, sums, adds);
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
        }
      }
      return more ? Next::UNIT : Next::NONE;
    };
    const int left = ceil_div(grid.whole - unit, own_units.step) * (k_tiles / Shared::PIECE);
    consumer.run(left, 0, Shared::PIECE > 1 ? SLICES : p.slicing.count(), p.slicing.halves, take, end, part);
  }
  for (; unit < grid.units; unit += own_units.step) {
    const HopperUnit at(p, grid, TOKENS, unit, rank);
    const int tile = at.group * HOPPER_ROW_TILES + warp, number = at.number * HOPPER_ROW_TILES + warp;
    const SliceSums<NT, 4> slices(p.slabs, number);
    // The first share adds up its slices. The other shares leave that to the warps that add up parts.
    float sums[NT][4] = {};
    const auto take = [&](int slice, const float (&y)[NT][4]) {
      if (at.first == 0) add_sums(sums, y);
      else slices.put(slice, y);
    };
    const int left = p.slicing.begin(at.last, k_tiles) - p.slicing.begin(at.first, k_tiles);
    consumer.run(left / Shared::PIECE, at.first, at.last, false, take, [](bool) { return Next::NONE; }, [](auto, bool) {});
    if (at.first == 0) slices.put(0, sums);
    wait_for_previous();
    if (tile >= p.w[at.segment].tiles()) continue;
    // A cluster waits only after its last unit: before that, another cluster may be waiting for a unit that this one has yet to compute.
    const int max_wait_cycles = unit + own_units.step < grid.units ? -1 : p.max_wait_cycles;
    with_part<NT>(grid.shares, [&](auto part) {
      constexpr int EACH = decltype(part)::value, TOGETHER = SLICES * EACH / NT;
      slices.template finish<EACH, TOGETHER>(p, p.arrivals + number, at.share, grid.shares, max_wait_cycles, at.segment, tile,
                                             at.first_token, lane);
    });
  }
  boxes_wait();
}

template <int STAGES>
__device__ __forceinline__ void begin_block(Ring& ring) {
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&ring.full[i], 1 + HOPPER_ROW_TILES);
      barrier_init(&ring.empty[i], HOPPER_CLUSTER * HOPPER_CONSUMERS / WARP);
    }
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
}
// The producing warps leave registers to the consumers, which need more for the operands of larger pieces.
template <int PIECE = 1>
__device__ __forceinline__ void become_producer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PIECE > 1 ? 24 : 40));
}
template <int PIECE = 1>
__device__ __forceinline__ void become_consumer() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(PIECE > 1 ? 240 : 232));
}
// Waits for the other block, which may still copy into this block's shared memory and arrive at its barriers.
__device__ __forceinline__ void end_block() {
  cluster_arrive();
  cluster_wait();
}
#endif

// Grid: clusters of two blocks along x. All segments have this format: a kernel for all formats would run short of registers. `x`: boxes of
// TOKENS / 2 rows of p.x. `out`: as for BoxWriter. Slices are whole pieces of PIECE K tiles.
template <class Format, int TOKENS, int PIECE = 1>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    linear_hopper_kernel(const __grid_constant__ Linear p, const __grid_constant__ HopperGrid grid, const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ CUtensorMap out) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = HopperShared<Format, TOKENS, PIECE>;
  extern __shared__ uint8_t dynamic[];
  __shared__ Ring ring;
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  const HopperUnits own_units{int(blockIdx.x / HOPPER_CLUSTER), int(gridDim.x / HOPPER_CLUSTER)};
  begin_block<Shared::STAGES>(ring);
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    become_producer<PIECE>();
    produce_units<Shared>(p, grid, own_units, x, stages, ring);
  } else {
    become_consumer<PIECE>();
    consume_units<Shared, Format>(p, grid, own_units, out, stages, ring);
  }
  end_block();
#endif
}

// Returns false if boxes would not start at multiples of 16 bytes.
inline bool map_sums(CUtensorMap& out, const Linear& args, int tokens) {
  const bool gated = is_gated(args.epilogue);
  for (int i = 0; i < args.num_segments; i++) {
    if (args.out_offset[i] % (gated ? 8 : 4) != 0) return false;
  }
  const auto map = [&](auto* data) {
    return map_boxes(out, data, args.num_tokens, args.ldo, args.ldo, tokens / BOXED_ROUNDS, gated ? 64 : 128);
  };
  return gated ? map(args.out16) : map(args.out);
}

inline bool map_tokens(CUtensorMap& x, const Linear& args, int tokens) {
  return map_boxes(x, args.x, args.num_tokens, size_t(args.stacked) * args.w[0].k_tiles() * K_TILE, args.ldx, tokens / HOPPER_CLUSTER);
}

template <class Format, int TOKENS, int PIECE = 1>
void start_hopper(const Launch& launch, const Linear& args, HopperGrid grid, const CUtensorMap& x) {
  const auto kernel = linear_hopper_kernel<Format, TOKENS, PIECE>;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, HOPPER_SHARED_LIMIT), prefer_shared(kernel); });
  CUtensorMap out{};
  grid.boxed = grid.whole > 0 && map_sums(out, args, TOKENS);
  const int blocks = std::min(grid.units, product_device(launch.device).clusters) * HOPPER_CLUSTER;
  const Launch paired{launch.device, launch.stream, launch.overlap, HOPPER_CLUSTER};
  paired(kernel, dim3(blocks), dim3(HOPPER_THREADS), HopperShared<Format, TOKENS, PIECE>::bytes, args, grid, x, out);
}

template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args, const HopperPlan& plan) {
  CUtensorMap x;
  if (!map_tokens(x, args, TOKENS)) return false;
  const auto start = [&](auto each) { start_hopper<decltype(each), TOKENS>(launch, args, plan.grid, x); };
  std::apply([&](auto... each) { ((decltype(each)::id == args.w[0].format ? start(each) : void()), ...); }, AllFormats{});
  return true;
}

}  // namespace pen
