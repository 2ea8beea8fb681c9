// y = W · x for up to 64 tokens on sm_90a: the numeric definition of linear.h on warpgroup products, one of which takes all tokens at once.
// Each warp streams the records of one row tile through registers and turns them into operands. A further warpgroup copies the tokens' K
// tiles into a ring in shared memory, from which all row tiles of the block read. Warpgroups do not wait for one another, so some
// dequantise while the products of others run. If there are too few tiles to fill the device, several blocks share each tile: every block
// takes some of the slices, and their sums meet in a workspace (slice_sums.cuh).
#pragma once

#include "../device/warpgroup.cuh"
#include "../quant/format.cuh"
#include "rows.h"
#include "slice_sums.cuh"

namespace pen {

constexpr int ROWS_PRODUCERS = 128;  // a whole warpgroup, because registers move only between warpgroups
constexpr int ROWS_THREADS = ROWS_WARPGROUPS * 128 + ROWS_PRODUCERS;

// Shared memory of a block: the ring of x, in stages of PIECE K tiles, then, for WIDE products, the sums of slices.
template <int NT, int PIECE>
struct RowsShared {
  // AHEAD: stages that are being copied. The others are full or in use. A stage is reported full once AHEAD later ones have been requested.
  static constexpr int STAGES = 8, AHEAD = PIECE == 1 ? 4 : 3;
  static constexpr int TILE = NT * 8 * K_TILE * 2, STAGE = PIECE * TILE;  // bytes of a K tile, and of a stage
  static constexpr bool WIDE = NT > 4;  // too many sums for registers
  static constexpr size_t bytes(int warps) { return 1024 + size_t(STAGES) * STAGE + (WIDE ? size_t(warps) * NT * WARP * 16 : 0); }
};

#ifdef PEN_HOPPER_DEVICE
// Copies the K tiles [begin, end) of x, up to AHEAD stages at a time.
template <int NT, int PIECE>
__device__ __forceinline__ void produce_rows(const Linear& p, int begin, int end, uint32_t stages, Ring& ring) {
  using Shared = RowsShared<NT, PIECE>;
  constexpr int STAGES = Shared::STAGES, AHEAD = Shared::AHEAD, TOKENS = NT * 8;
  wait_for_previous();
  // Each thread always copies the same 16-byte column of every sixteenth token.
  const int thread = threadIdx.x % ROWS_PRODUCERS, token = thread / 8, column = thread % 8, ldx = p.ldx, valid = p.num_tokens - token;
  const __half* from = p.x + size_t(token) * ldx + size_t(begin) * K_TILE + column * 8;
  const uint32_t to = stages + (token * K_TILE + (column ^ (token % 8)) * 8) * 2;
  const int pieces = (end - begin) / PIECE;
  int stage = 0, done = 0;
  uint32_t phase = 1;
#pragma unroll 1
  for (int i = 0; i < pieces + AHEAD; i++) {
    if (i < pieces) {
      barrier_wait(&ring.empty[stage], phase);
#pragma unroll
      for (int k = 0; k < PIECE; k++) {
#pragma unroll
        for (int n = 0; n < TOKENS; n += 16) {
          const bool real = n < valid, wanted = n + 16 <= TOKENS || token + n < TOKENS;
          copy_async(to + stage * Shared::STAGE + k * Shared::TILE + n * K_TILE * 2, real ? from + size_t(n) * ldx : p.x, real, wanted);
        }
        from += K_TILE;
      }
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

// A consuming warp's position in the ring of stages.
template <int NT, int PIECE>
struct RowsPlace {
  using Shared = RowsShared<NT, PIECE>;
  const uint32_t origin, full, full_end;  // descriptor of the first stage, its barrier, and the end of the barriers
  uint32_t stage, barrier, phase = 0;

  __device__ __forceinline__ RowsPlace(uint32_t stages, Ring& ring)
      : origin(uint32_t(tile_descriptor(stages))), full(held(shared_of(ring.full))), full_end(full + Shared::STAGES * 8), stage(origin),
        barrier(full) {}
  // Multiplies a piece: acc += raw · x, or acc = raw · x if `fresh`. Calls `request(k)` once the operands of raw[k] are made.
  template <class Raw, int N, class Request>
  __device__ __forceinline__ void multiply(float (&acc)[N][4], const Raw (&raw)[PIECE], bool fresh, Request request) const {
    constexpr uint64_t UPPER = tile_descriptor(0) & ~uint64_t(0xffffffff);
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
      uint32_t a[STEPS][4];
#pragma unroll
      for (int s = 0; s < STEPS; s++) raw[k].fragment(s, a[s]);
      request(k);
      if (k == 0) barrier_wait(barrier, phase);
      warpgroup_arrive();
#pragma unroll
      for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], UPPER | (stage + (k * Shared::TILE >> 4) + 2 * s), fresh && k == 0 && s == 0);
      warpgroup_commit();
    }
  }
  // Waits for the piece's products, frees its stage and advances to the next one.
  __device__ __forceinline__ void release(int lane) {
    constexpr uint32_t EMPTY = offsetof(Ring, empty) - offsetof(Ring, full);
    warpgroup_wait<0>();
    if (lane == 0) barrier_arrive(barrier + EMPTY);
    stage += Shared::STAGE >> 4;
    barrier += 8;
    if (barrier == full_end) barrier = full, stage = origin, phase ^= 1;
  }
};

// Pieces of a row tile that a lane holds ahead of its products.
__host__ __device__ constexpr int rows_ahead(int words, int nt, int piece) {
  const int records = words <= 8 ? (nt > 4 ? 3 : 4) : words <= 10 ? (nt > 1 ? 3 : 4) : 2;
  return records / piece > 0 ? records / piece : 1;
}

// Multiplies the slices [first, last) of one warp's row tile. PIECE divides the number of K tiles of each slice. Calls `take(slice, acc)`
// with each slice's sum.
template <class Format, int NT, int PIECE, class Take>
__device__ __forceinline__ void stream_slices(const Matrix& w, Slicing slicing, int tile, int first, int last, uint32_t stages, Ring& ring,
                                              Take take) {
  using Shared = RowsShared<NT, PIECE>;
  constexpr int HELD = rows_ahead(Format::words, NT, PIECE), RECORD = Format::record_bytes;
  const int lane = threadIdx.x % WARP, k_tiles = w.k_tiles(), begin = slicing.begin(first, k_tiles);
  const uint8_t* next = w.data + (size_t(min(tile, w.tiles() - 1)) * k_tiles + begin) * RECORD;
  int left = (slicing.begin(last, k_tiles) - begin) / PIECE;  // in pieces
  typename Format::Raw raw[HELD][PIECE];
  const auto request = [&](int i, int k) { raw[i][k].load(next + (PIECE * i + k) * RECORD, lane); };
#pragma unroll
  for (int i = 0; i < HELD; i++) {
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
      if (i < left) request(i, k);
    }
  }
  next += HELD * PIECE * RECORD;
  float acc[NT][4] = {};
  bool fresh = true;
  int slice = first - 1, until = 0;  // pieces up to the slice's end
  const auto next_slice = [&] {
    do {  // small matrices have empty slices
      slice++;
      until = (slicing.begin(slice + 1, k_tiles) - slicing.begin(slice, k_tiles)) / PIECE;
    } while (until == 0);
  };
  if (left > 0) next_slice();
  RowsPlace<NT, PIECE> place(stages, ring);
#pragma unroll 1
  while (left > 0) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      if (i > 0 && left == 0) break;
      place.multiply(acc, raw[i], fresh, [&](int k) {
        if (left > HELD) request(i, k);
      });
      left--;
      place.release(lane);
      fresh = --until == 0;
      if (fresh) {
        take(slice, acc);
        if (left > 0) next_slice();
      }
    }
    next = held(next + HELD * PIECE * RECORD);
  }
}

template <int NT>
__device__ __forceinline__ void move_sums(float (&to)[NT][4], float (&from)[NT][4]) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) to[n][i] = from[n][i], from[n][i] = 0.0f;
  }
}
// Writes a lane's sums of a row tile. The first half is zero unless the product is added in halves.
template <int NT>
__device__ __forceinline__ void write_halves(const Linear& p, int segment, int tile, int lane, const float (&first)[NT][4],
                                             const float (&second)[NT][4]) {
  const SumsPlace<NT> place(p, segment, tile, 0, lane, adds_sums(p, false));
  float before[NT][4];
  place.read(before);
  add_sums(before, first);
  place.write(second, before);
}

__device__ __forceinline__ void load_four(float (&y)[4], uint32_t at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3]) : "r"(at));
}
__device__ __forceinline__ void store_four(uint32_t at, const float (&y)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(y[0]), "f"(y[1]), "f"(y[2]), "f"(y[3]) : "memory");
}
#endif

// Grid: (groups of four row tiles per warpgroup of the block, over all segments; shares of the slices, at least least_shares()).
template <int NT, int PIECE>
__global__ void __launch_bounds__(ROWS_THREADS, 1) linear_rows_kernel(const __grid_constant__ Linear p) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = RowsShared<NT, PIECE>;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  let_next_start();
  const int warps = (blockDim.x - ROWS_PRODUCERS) / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::STAGES; i++) {
      barrier_init(&ring.full[i], ROWS_PRODUCERS);
      barrier_init(&ring.empty[i], warps);
    }
  }
  __syncthreads();
  int group = blockIdx.x, segment = 0;
  const auto groups = [&](int i) { return ceil_div(p.w[i].tiles(), warps); };
  while (segment + 1 < p.num_segments && group >= groups(segment)) group -= groups(segment++);
  const Matrix& w = p.w[segment];
  const int shares = gridDim.y, each = SLICES / shares, first = int(blockIdx.y) * each, last = first + each;
  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    produce_rows<NT, PIECE>(p, p.slicing.begin(first, w.k_tiles()), p.slicing.begin(last, w.k_tiles()), stages, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
  const int tile = group * warps + warp, unit = blockIdx.x * warps + warp;
  const SliceSums<NT, 2> slabs(p.slabs, unit);
  const uint32_t place = stages + Shared::STAGES * Shared::STAGE + (warp * NT * WARP + lane) * 16;
  float sums[NT][4] = {}, first_half[holds_halves(NT) ? NT : 1][4] = {};
  bool empty = true;  // shared memory holds no sums yet
  with_format(w.format, [&](auto format) {
    stream_slices<decltype(format), NT, PIECE>(w, p.slicing, tile, first, last, stages, ring, [&](int slice, const float (&y)[NT][4]) {
      if (shares > 1) {
        slabs.put(slice, y);
      } else if constexpr (Shared::WIDE) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
          float sum[4] = {};
          if (!empty) load_four(sum, place + n * WARP * 16);
#pragma unroll
          for (int i = 0; i < 4; i++) sum[i] = __fadd_rn(sum[i], y[n][i]);
          store_four(place + n * WARP * 16, sum);
        }
        empty = false;
      } else {
        if constexpr (holds_halves(NT)) {
          if (slice == HALF && p.slicing.halves) move_sums(first_half, sums);
        }
        add_sums(sums, y);
      }
    });
  });
  wait_for_previous();
  if (tile >= w.tiles()) return;
  if (shares > 1) {
    return with_part<NT>(shares, [&](auto part) {
      slabs.template finish<decltype(part)::value, 1>(p, p.arrivals + unit, blockIdx.y, shares, p.max_wait_cycles, segment, tile, 0, lane);
    });
  }
  if constexpr (Shared::WIDE) {
    if (!empty) {
#pragma unroll
      for (int n = 0; n < NT; n++) load_four(sums[n], place + n * WARP * 16);
    }
  }
  if constexpr (holds_halves(NT)) write_halves(p, segment, tile, lane, first_half, sums);
  else write_sums<NT>(p, segment, tile, 0, lane, sums, adds_sums(p, false));
#endif
}

template <int NT, int PIECE>
void start_rows(const Launch& launch, const Linear& args, const RowsPlan& plan) {
  using Shared = RowsShared<NT, PIECE>;
  const auto kernel = linear_rows_kernel<NT, PIECE>;
  const int warps = 4 * plan.warpgroups;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(Shared::bytes(4 * ROWS_WARPGROUPS))), prefer_shared(kernel); });
  launch(kernel, dim3(row_blocks(shape_of(args), plan.warpgroups), plan.shares), dim3(warps * WARP + ROWS_PRODUCERS),
         Shared::bytes(plan.shares > 1 ? 0 : warps), args);
}
template <int NT>
void run_rows(const Launch& launch, const Linear& args, const RowsPlan& plan) {
  // Two K tiles at a time take fewer instructions, if they divide every slice.
  if (args.w[0].k_tiles() % (2 * args.slicing.count()) == 0) return start_rows<NT, 2>(launch, args, plan);
  start_rows<NT, 1>(launch, args, plan);
}
// In separate files, because they take long to compile.
extern template void run_rows<1>(const Launch&, const Linear&, const RowsPlan&);
extern template void run_rows<2>(const Launch&, const Linear&, const RowsPlan&);
extern template void run_rows<4>(const Launch&, const Linear&, const RowsPlan&);
extern template void run_rows<8>(const Launch&, const Linear&, const RowsPlan&);

}  // namespace pen
