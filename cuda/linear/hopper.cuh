// y = W · x for many tokens on sm_90a: the numeric definition of linear.h on warpgroup products (wgmma). Each of a warpgroup's four warps
// streams the records of one row tile through a ring of its own, and dequantises a record straight into the A registers, which have the
// layout of mma.m16n8k16, while the product of the record before runs. The tokens' chunks come as boxes into shared memory, in the 128-byte
// swizzle; the two blocks of a cluster work on the same tokens, and each copies half of a chunk into both. A cluster computes one pair of
// tiles after another, so that copies for the next begin while sums are written. If there are too few tiles to fill the device, several
// blocks share each: every block takes some of the slices, their sums meet in a workspace, and the warp that comes last adds them in
// ascending order. It is not documented whether m64nNk16 accumulates as m16n8k16 does: bench/linear.cu checks it.
#pragma once

#include <algorithm>

#include "../device/boxes.h"
#include "../device/cluster.cuh"
#include "../device/warpgroup.cuh"
#include "../quant/format.cuh"
#include "slice_sums.cuh"
#include "write_boxes.cuh"
#include "write_sums.cuh"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8;
constexpr int HOPPER_CONSUMERS = 256;  // two warpgroups of 64 rows each
constexpr int HOPPER_PRODUCERS = 128;  // a whole warpgroup, since registers move only between warpgroups
constexpr int HOPPER_THREADS = HOPPER_CONSUMERS + HOPPER_PRODUCERS;
constexpr int HOPPER_CLUSTER = 2;
constexpr int HOPPER_RING = 4096;  // bytes of records that a warp has in flight, at least
__host__ __device__ constexpr int hopper_records(int record_bytes) { return HOPPER_RING / record_bytes + 2; }

// How a block of TOKENS × 128 rows uses shared memory.
template <int TOKENS>
struct HopperShared {
  static constexpr int STAGES = TOKENS == 64 ? 8 : 6;
  static constexpr int STAGE = TOKENS * CHUNK * 2, BOX = STAGE / HOPPER_CLUSTER;  // bytes
  static constexpr int boxes = STAGES * STAGE, records = boxes + 2 * boxed_bytes(TOKENS);  // behind the stages
  static constexpr size_t bytes(int record_bytes) {
    return 1024 + records + HOPPER_ROW_TILES * hopper_records(record_bytes) * record_bytes;
  }
};

// The units of work: groups of tokens × pairs of groups of eight row tiles × shares of the slices. A cluster takes one after another. Units
// that run at the same time share weights in L2.
struct HopperGrid {
  int token_groups, pairs, shares, units;
  bool boxed = false;  // sums can be written as boxes
  __host__ __device__ HopperGrid(const Linear& p, int tokens, int shares) : token_groups(ceil_div(p.num_tokens, tokens)), shares(shares) {
    int groups = 0;
    for (int i = 0; i < p.num_segments; i++) groups += ceil_div(p.w[i].tiles(), HOPPER_ROW_TILES);
    pairs = ceil_div(groups, HOPPER_CLUSTER);
    units = token_groups * pairs * shares;
  }
};

#ifdef PEN_HOPPER_DEVICE
// What a block computes of a unit.
struct HopperUnit {
  int first_token, segment, group;
  int first, last;  // slices
  int number;       // of the block's tile among those of all tokens and segments
  __device__ __forceinline__ HopperUnit(const Linear& p, const HopperGrid& grid, int tokens, int unit, int rank) {
    const int token_group = unit % grid.token_groups, pair = unit / grid.token_groups % grid.pairs;
    const int share = unit / (grid.token_groups * grid.pairs), each = SLICES / grid.shares;
    first = share * each, last = first + each;
    first_token = token_group * tokens;
    group = pair * HOPPER_CLUSTER + rank;
    number = token_group * grid.pairs * HOPPER_CLUSTER + group;
    segment = 0;
    const auto groups = [&](int i) { return ceil_div(p.w[i].tiles(), HOPPER_ROW_TILES); };
    while (segment + 1 < p.num_segments && group >= groups(segment)) group -= groups(segment++);
  }
};

// A place in the ring of stages.
struct HopperStage {
  int index = 0;
  uint32_t phase;
  template <int STAGES>
  __device__ __forceinline__ void advance() {
    if (++index == STAGES) index = 0, phase ^= 1;
  }
};

// Copies this block's half of every chunk of x into both blocks, by one thread.
template <int TOKENS>
__device__ __forceinline__ void produce(const Linear& p, const HopperGrid& grid, const CUtensorMap& x, uint32_t stages, Ring& ring,
                                        int cluster, int clusters, int rank) {
  using Shared = HopperShared<TOKENS>;
  wait_for_previous();
  HopperStage stage{0, 1};
  for (int i = cluster; i < grid.units; i += clusters) {
    const HopperUnit unit(p, grid, TOKENS, i, rank);
    const int chunks = p.w[unit.segment].chunks(), end = slice_begin(unit.last, chunks);
#pragma unroll 1
    for (int chunk = slice_begin(unit.first, chunks); chunk < end; chunk++) {
      barrier_wait(&ring.empty[stage.index], stage.phase);
      expect_bytes(&ring.full[stage.index], Shared::STAGE);
      copy_box_to((1 << HOPPER_CLUSTER) - 1, stages + stage.index * Shared::STAGE + rank * Shared::BOX, x, chunk * CHUNK,
                  unit.first_token + rank * (TOKENS / HOPPER_CLUSTER), &ring.full[stage.index]);
      stage.advance<Shared::STAGES>();
    }
  }
}

// The records of one warp's row tile, chunks [begin, end), on their way through the warp's ring in shared memory.
template <class Format>
struct HopperRecords {
  static constexpr int R = hopper_records(Format::record_bytes), RECORD = Format::record_bytes;
  const uint8_t* next;
  uint32_t ring;
  int left, lane;
  __device__ __forceinline__ HopperRecords(const Matrix& w, int tile, int begin, int end, uint32_t ring)
      : ring(ring), left(end - begin), lane(threadIdx.x % WARP) {
    next = w.data + (size_t(min(tile, w.tiles() - 1)) * w.chunks() + begin) * RECORD + lane * 16;
  }
  __device__ __forceinline__ void request(int slot) {
    if (left-- > 0) {
#pragma unroll
      for (int i = 0; i < RECORD / 16; i += WARP) {
        if (i + lane < RECORD / 16) copy_async(ring + slot * RECORD + (i + lane) * 16, next + i * 16);
      }
      next += RECORD;
    }
    copy_commit();
  }
  // Requests the first records, before consume().
  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (int i = 0; i < R - 1; i++) request(i);
  }
  // They have been requested already.
  __device__ __forceinline__ void resume() {
    left -= R - 1;
    next += (R - 1) * RECORD;
  }
};

// Multiplies the slices [first, last) for one warp's row tile. `take(slice, acc)` gets each slice's sum.
template <class Format, class Shared, int NT, class Take>
__device__ __forceinline__ void consume(const Matrix& w, int tile, int first, int last, uint32_t stages, uint32_t ring_of_records,
                                        Ring& ring, HopperStage& stage, uint32_t empty, Take take) {
  using Records = HopperRecords<Format>;
  constexpr int R = Records::R;
  const int lane = threadIdx.x % WARP, chunks = w.chunks(), begin = slice_begin(first, chunks), end = slice_begin(last, chunks);
  Records records(w, tile, begin, end, ring_of_records);
  records.resume();
  int slot = 0, refill = R - 1;
  // Turns the next record into operands.
  const auto operands = [&](uint32_t (&a)[STEPS][4]) {
    copy_wait<R - 2>();
    __syncwarp();
    typename Format::Raw raw;
    raw.load_shared(ring_of_records + slot * Format::record_bytes, lane);
    records.request(refill);
    refill = slot;
    slot = slot + 1 == R ? 0 : slot + 1;
#pragma unroll
    for (int s = 0; s < STEPS; s++) raw.fragment(s, a[s]);
  };
  // Tells both blocks' producers that this warp is done with a stage.
  const auto release = [&](int index) {
    if (lane < HOPPER_CLUSTER) barrier_arrive_cluster(empty + index * 8);
  };
  float acc[NT][4];
  uint32_t even[STEPS][4], odd[STEPS][4];
  int left = end - begin, before = 0;
  if (left > 0) operands(even);
  // Multiplies the next chunk, whose operands are `a`, and makes those of the chunk after it, `other`. Unless the slice begins (`fresh`),
  // the chunk before has ended then: its operands and its stage are free.
  const auto step = [&](bool fresh, uint32_t (&a)[STEPS][4], uint32_t (&other)[STEPS][4]) {
    barrier_wait(&ring.full[stage.index], stage.phase);
    const uint64_t b = tile_descriptor(stages + stage.index * Shared::STAGE);
    warpgroup_arrive();
#pragma unroll
    for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], b + 2 * s, fresh && s == 0);
    warpgroup_commit();
    if (!fresh) {
      warpgroup_wait<1>();
      release(before);
    }
    if (--left > 0) operands(other);
    before = stage.index;
    stage.advance<Shared::STAGES>();
  };
#pragma unroll 1
  for (int slice = first; slice < last; slice++) {
    int count = slice_begin(slice + 1, chunks) - slice_begin(slice, chunks);
    if (count == 0) continue;  // small matrices have empty slices
    step(true, even, odd);
#pragma unroll 1
    for (count -= 2; count > 0; count -= 2) {
      step(false, odd, even);
      step(false, even, odd);
    }
    if (count == 0) step(false, odd, even);
    warpgroup_wait<0>();
    release(before);
    take(slice, acc);
    if (count == 0) continue;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
      for (int i = 0; i < 4; i++) even[s][i] = odd[s][i];
    }
  }
  copy_wait<0>();
}
#endif

// Grid: clusters of two blocks along x. All segments have this format: a kernel for all formats would be short of registers. `x`: boxes of
// TOKENS / 2 rows of p.x. `out`: as write_boxes() takes it. SHARED: grid.shares is not one.
template <class Format, int TOKENS, bool SHARED>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    linear_hopper_kernel(const __grid_constant__ Linear p, const __grid_constant__ HopperGrid grid, const __grid_constant__ CUtensorMap x,
                         const __grid_constant__ CUtensorMap out) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = HopperShared<TOKENS>;
  constexpr int NT = TOKENS / 8;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::STAGES; i++) {
      barrier_init(&ring.full[i], 1);
      barrier_init(&ring.empty[i], HOPPER_CLUSTER * HOPPER_CONSUMERS / WARP);
    }
  }
  __syncthreads();
  cluster_arrive();
  const int cluster = blockIdx.x / HOPPER_CLUSTER, clusters = gridDim.x / HOPPER_CLUSTER, rank = blockIdx.x % HOPPER_CLUSTER;
  cluster_wait();
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == HOPPER_CONSUMERS) produce<TOKENS>(p, grid, x, stages, ring, cluster, clusters, rank);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t empty = in_block(shared_of(ring.empty), lane % HOPPER_CLUSTER);
    const uint32_t records = stages + Shared::records + warp * HopperRecords<Format>::R * Format::record_bytes;
    const auto begin_records = [&](const HopperUnit& unit) {
      const Matrix& w = p.w[unit.segment];
      const int chunks = w.chunks(), tile = unit.group * HOPPER_ROW_TILES + warp;
      HopperRecords<Format>(w, tile, slice_begin(unit.first, chunks), slice_begin(unit.last, chunks), records).begin();
    };
    HopperStage stage{0, 0};
    if (cluster < grid.units) begin_records(HopperUnit(p, grid, TOKENS, cluster, rank));
#pragma unroll 1
    for (int i = cluster; i < grid.units; i += clusters) {
      const HopperUnit unit(p, grid, TOKENS, i, rank);
      const Matrix& w = p.w[unit.segment];
      const int tile = unit.group * HOPPER_ROW_TILES + warp, number = unit.number * HOPPER_ROW_TILES + warp;
      const SliceSums<NT> slices(p.slabs, number);
      float sums[NT][4] = {};
      const auto take = [&](int slice, const float (&y)[NT][4]) {
        if constexpr (SHARED) {
          slices.put(slice, y);
        } else {
          add_sums(sums, y);
        }
      };
      consume<Format, Shared, NT>(w, tile, unit.first, unit.last, stages, records, ring, stage, empty, take);
      if (i + clusters < grid.units) begin_records(HopperUnit(p, grid, TOKENS, i + clusters, rank));
      wait_for_previous();
      const int first_tile = tile - warp % 4;
      if (!SHARED && grid.boxed && (first_tile + 4) * TILE_ROWS <= w.rows) {
        const uint32_t boxes = stages + Shared::boxes + warp / 4 * boxed_bytes(TOKENS);
        write_boxes<NT>(p, out, unit.segment, first_tile, unit.first_token, boxes, sums);
        continue;
      }
      if (tile >= w.tiles()) continue;
      if constexpr (SHARED) {
        if (!slices.gather(p.arrivals + number, grid.shares, sums)) continue;
      }
      write_sums<NT>(p, unit.segment, tile, unit.first_token, lane, sums);
    }
    boxes_wait();
  }
  // The other block may still copy into this one's shared memory, and arrive at its barriers.
  cluster_arrive();
  cluster_wait();
#endif
}

constexpr int HOPPER_SHARED_LIMIT = 226 << 10;
// The clusters that run at the same time: a processing cluster of the device may have an odd number of multiprocessors.
int hopper_clusters(const Device& device);

// As many blocks per tile as the device can hold at once; no slice may be empty.
inline HopperGrid hopper_grid(const Device& device, const Linear& args, int tokens) {
  const HopperGrid whole(args, tokens, 1);
  const int tiles = whole.units * HOPPER_CLUSTER * HOPPER_ROW_TILES, clusters = hopper_clusters(device);
  const bool fits = tiles <= MAX_SHARED_TILES && args.slabs && slices_workspace(tiles, tokens / 8) <= args.slab_bytes;
  if (!fits || args.w[0].chunks() < SLICES) return whole;
  int shares = SLICES;
  while (shares > 1 && shares * whole.units > clusters) shares /= 2;
  return HopperGrid(args, tokens, shares);
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
  const auto whole = linear_hopper_kernel<Format, TOKENS, false>, shared = linear_hopper_kernel<Format, TOKENS, true>;
  // Both at once, so that warming up loads them: a prompt must not wait for that, nor find no memory for it.
  launch.device.first_use(whole, [&] {
    for (const auto kernel : {whole, shared}) allow_shared(kernel, HOPPER_SHARED_LIMIT), prefer_shared(kernel);
  });
  HopperGrid grid = hopper_grid(launch.device, args, TOKENS);
  CUtensorMap out{};
  grid.boxed = grid.shares == 1 && map_sums(out, args, TOKENS);
  const int blocks = std::min(grid.units, hopper_clusters(launch.device)) * HOPPER_CLUSTER;
  const Launch paired{launch.device, launch.stream, launch.overlap, HOPPER_CLUSTER};
  const size_t bytes = HopperShared<TOKENS>::bytes(Format::record_bytes);
  paired(grid.shares > 1 ? shared : whole, dim3(blocks), dim3(HOPPER_THREADS), bytes, args, grid, x, out);
}

// Neighbouring segments of one format share a launch. False: x cannot be described.
template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args) {
  CUtensorMap x;
  if (!map_boxes(x, args.x, args.num_tokens, size_t(args.w[0].chunks()) * CHUNK, args.ldx, TOKENS / HOPPER_CLUSTER)) return false;
  for (int begin = 0, end; begin < args.num_segments; begin = end) {
    Linear part = args;
    const int format = args.w[begin].format;
    for (end = begin; end < args.num_segments && args.w[end].format == format; end++) {
      part.w[end - begin] = args.w[end], part.out_offset[end - begin] = args.out_offset[end];
    }
    part.num_segments = end - begin;
    const auto start = [&](auto each) { start_hopper<decltype(each), TOKENS>(launch, part, x); };
    std::apply([&](auto... each) { ((decltype(each)::id == format ? start(each) : void()), ...); }, AllFormats{});
  }
  return true;
}

// In files of their own, since they take long to compile.
extern template bool run_hopper<64>(const Launch&, const Linear&);
extern template bool run_hopper<128>(const Launch&, const Linear&);

}  // namespace pen
