// y = W · x for many tokens on sm_90a: the numeric definition of linear.h on warpgroup products (wgmma). Each of a warpgroup's four warps
// streams the records of one row tile through a ring of its own. While one product runs, it dequantises the next record straight into the
// A registers, which have the layout of mma.m16n8k16. A third warpgroup copies the tokens' chunks into shared memory, in the 128-byte
// swizzle. If there are too few tiles to fill the device, SPLIT blocks share each: every block takes some of the slices, their sums meet in
// a workspace, and the warp that comes last adds them in ascending order. It is not documented whether m64nNk16 accumulates as m16n8k16
// does: bench/linear.cu checks it.
#pragma once

#include "prefill.cuh"
#include "warpgroup.cuh"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8;
constexpr int HOPPER_CONSUMERS = 256;  // two warpgroups of 64 rows each
constexpr int HOPPER_PRODUCERS = 128;  // a whole warpgroup, since registers move only between warpgroups
constexpr int HOPPER_THREADS = HOPPER_CONSUMERS + HOPPER_PRODUCERS;
constexpr int HOPPER_RING = 4096;  // bytes of records that a warp has in flight, at least
__host__ __device__ constexpr int hopper_records(int record_bytes) { return HOPPER_RING / record_bytes + 2; }

// How a block of TOKENS × 128 rows uses shared memory.
template <int TOKENS>
struct HopperShared {
  static constexpr int STAGES = TOKENS == 64 ? 8 : 6, AHEAD = STAGES - 2;
  static constexpr int STAGE = TOKENS * CHUNK;  // halves
  static constexpr size_t stages = size_t(STAGES) * STAGE * 2;
  static constexpr size_t bytes(int record_bytes) {
    return 1024 + stages + size_t(HOPPER_ROW_TILES) * hopper_records(record_bytes) * record_bytes;
  }
};
// The number of sums that SPLIT blocks leave in the workspace for a tile: that of the first block, and one per slice of the others.
__host__ __device__ constexpr int hopper_slabs(int split) { return split == 1 ? 0 : 1 + SLICES - SLICES / split; }
__host__ __device__ constexpr size_t hopper_workspace(int blocks, int tokens, int split) {
  return size_t(blocks) * HOPPER_ROW_TILES * hopper_slabs(split) * TILE_ROWS * tokens * 4;
}

#ifdef PEN_HOPPER_DEVICE
// Copies the chunks [begin, end) of x, up to AHEAD of them at a time.
template <class Shared>
__device__ __forceinline__ void produce(const Linear& p, int begin, int end, int first_token, uint32_t stages, Ring& ring) {
  constexpr int TOKENS = Shared::STAGE / CHUNK, STAGES = Shared::STAGES, AHEAD = Shared::AHEAD;
  wait_for_previous();
  // Each thread always copies the same 16-byte column of every sixteenth token.
  const int thread = threadIdx.x % HOPPER_PRODUCERS, token = thread / 8, column = thread % 8;
  const __half* from = p.x + size_t(first_token + token) * p.ldx + size_t(begin) * CHUNK + column * 8;
  const uint32_t to = stages + (token * CHUNK + (column ^ (token % 8)) * 8) * 2;
  const int valid = p.num_tokens - first_token - token, ldx = p.ldx;
  int stage = 0, done = 0;
  uint32_t phase = 1;
  for (int i = 0; i < end - begin + AHEAD; i++) {
    if (i < end - begin) {
      barrier_wait(&ring.empty[stage], phase);
#pragma unroll
      for (int n = 0; n < TOKENS; n += 16) {
        const bool real = n < valid;
        const __half* at = real ? from + size_t(n) * ldx : p.x;
        copy_async(to + (stage * Shared::STAGE + n * CHUNK) * 2, at, real);
      }
      from += CHUNK;
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    copy_commit();
    copy_wait<AHEAD>();
    if (i >= AHEAD) {
      fence_async_proxy();
      barrier_arrive(&ring.full[done]);
      if (++done == STAGES) done = 0;
    }
  }
}

// Multiplies the slices [first, last) for one warp's row tile. `take(slice, acc)` gets each slice's sum.
template <class Format, class Shared, int NT, class Take>
__device__ __forceinline__ void consume(float (&acc)[NT][4], const Matrix& w, int tile, int first, int last, uint32_t stages,
                                        uint32_t records, Ring& ring, Take take) {
  constexpr int R = hopper_records(Format::record_bytes), STAGES = Shared::STAGES;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int chunks = w.chunks(), begin = slice_begin(first, chunks), end = slice_begin(last, chunks);
  records += warp * (R * Format::record_bytes);
  const uint8_t* next = w.data + (size_t(min(tile, w.tiles() - 1)) * chunks + begin) * Format::record_bytes + lane * 16;
  int left = end - begin, slot = 0, refill = R - 1, stage = 0, slice = first;
  uint32_t phase = 0;
  const auto request = [&](int to) {
    if (left-- > 0) {
#pragma unroll
      for (int i = 0; i < Format::record_bytes / 16; i += WARP) {
        if (i + lane < Format::record_bytes / 16) copy_async(records + to * Format::record_bytes + (i + lane) * 16, next + i * 16);
      }
      next += Format::record_bytes;
    }
    copy_commit();
  };
#pragma unroll 1
  for (int i = 0; i < R - 1; i++) request(i);
  // Turns the next record into operands.
  const auto operands = [&](uint32_t (&a)[STEPS][4]) {
    copy_wait<R - 2>();
    __syncwarp();
    typename Format::Raw raw;
    raw.load_shared(records + slot * Format::record_bytes, lane);
    request(refill);
    refill = slot;
    slot = slot + 1 == R ? 0 : slot + 1;
#pragma unroll
    for (int s = 0; s < STEPS; s++) raw.fragment(s, a[s]);
  };
  bool fresh = true;
  int slice_end = 0;
  // Finds the end of the slice that holds a chunk; small matrices have empty slices.
  const auto find_slice = [&](int chunk) {
    while (slice < last && (slice_end = slice_begin(slice + 1, chunks)) <= chunk) slice++;
  };
  find_slice(begin);
  const auto step = [&](int chunk, uint32_t (&a)[STEPS][4], uint32_t (&other)[STEPS][4]) {
    barrier_wait(&ring.full[stage], phase);
    const uint64_t b = tile_descriptor(stages + stage * (Shared::STAGE * 2));
    warpgroup_arrive();
#pragma unroll
    for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], b + 2 * s, fresh && s == 0);
    warpgroup_commit();
    fresh = false;
    if (chunk + 1 < end) operands(other);
    warpgroup_wait<0>();
    if (lane == 0) barrier_arrive(&ring.empty[stage]);
    if (++stage == STAGES) stage = 0, phase ^= 1;
    if (chunk + 1 == slice_end) {
      take(slice, acc);
      find_slice(chunk + 1);
      fresh = true;
    }
  };
  uint32_t even[STEPS][4], odd[STEPS][4];
  if (begin < end) operands(even);
#pragma unroll 1
  for (int chunk = begin; chunk < end; chunk += 2) {
    step(chunk, even, odd);
    if (chunk + 1 < end) step(chunk + 1, odd, even);
  }
  copy_wait<0>();
}

// A warp's place in the workspace for the sums of a split tile: fragments side by side.
struct Slabs {
  float4* place;  // the lane's part of the tile's first slab
  template <int NT>
  __device__ __forceinline__ void put(int slab, const float (&y)[NT][4]) const {
#pragma unroll
    for (int n = 0; n < NT; n++) place[(slab * NT + n) * WARP] = make_float4(y[n][0], y[n][1], y[n][2], y[n][3]);
  }
  // Reads past L1, which may still hold what an earlier kernel read at this address.
  template <int NT>
  __device__ __forceinline__ void add(int slab, float (&y)[NT][4]) const {
    float4 part[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) part[n] = __ldcg(place + (slab * NT + n) * WARP);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      y[n][0] = __fadd_rn(y[n][0], part[n].x), y[n][1] = __fadd_rn(y[n][1], part[n].y);
      y[n][2] = __fadd_rn(y[n][2], part[n].z), y[n][3] = __fadd_rn(y[n][3], part[n].w);
    }
  }
};
#endif

// Grid: (groups of TOKENS tokens, groups of eight row tiles of all segments, SPLIT): neighbours in x share weights in L2.
template <int TOKENS, int SPLIT>
__global__ void __launch_bounds__(HOPPER_THREADS, 1) linear_hopper_kernel(const __grid_constant__ Linear p) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = HopperShared<TOKENS>;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::STAGES; i++) {
      barrier_init(&ring.full[i], HOPPER_PRODUCERS);
      barrier_init(&ring.empty[i], HOPPER_CONSUMERS / WARP);
    }
  }
  __syncthreads();
  int group = blockIdx.y, segment = 0;
  const auto groups = [&](int i) { return ceil_div(p.w[i].tiles(), HOPPER_ROW_TILES); };
  while (segment + 1 < p.num_segments && group >= groups(segment)) group -= groups(segment++);
  const Matrix& w = p.w[segment];
  constexpr int EACH = SLICES / SPLIT;
  const int first_token = blockIdx.x * TOKENS, first = blockIdx.z * EACH, last = first + EACH;
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<Shared>(p, slice_begin(first, w.chunks()), slice_begin(last, w.chunks()), first_token, stages, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  constexpr int NT = TOKENS / 8;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, tile = group * HOPPER_ROW_TILES + warp;
  float acc[NT][4] = {}, sums[NT][4] = {};
  const int unit = (blockIdx.x * gridDim.y + blockIdx.y) * HOPPER_ROW_TILES + warp;
  const Slabs slabs{reinterpret_cast<float4*>(p.slabs) + size_t(unit) * hopper_slabs(SPLIT) * NT * WARP + lane};
  const auto take = [&](int slice, const float (&y)[NT][4]) {
    if (SPLIT > 1 && blockIdx.z > 0) return slabs.put<NT>(1 + slice - EACH, y);
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], y[n][i]);
    }
  };
  with_format(w.format, [&](auto format) {
    consume<decltype(format), Shared, NT>(acc, w, tile, first, last, stages, stages + uint32_t(Shared::stages), ring, take);
  });
  wait_for_previous();
  if (tile >= w.tiles()) return;
  if constexpr (SPLIT > 1) {
    if (blockIdx.z == 0) slabs.put<NT>(0, sums);
    __threadfence();
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) before = atomicAdd(p.arrivals + unit, 1);
    if (__shfl_sync(0xffffffffu, before, 0) != SPLIT - 1) return;
    __threadfence();
    if (lane == 0) p.arrivals[unit] = 0;  // for the next kernel
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[n][i] = 0;
    }
#pragma unroll 2
    for (int k = 0; k < hopper_slabs(SPLIT); k++) slabs.add<NT>(k, sums);
  }
  write_sums<NT>(p, segment, tile, first_token, lane, sums);
#endif
}

}  // namespace pen
