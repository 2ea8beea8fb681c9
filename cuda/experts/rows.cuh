// The products of experts.h on warpgroup products (sm_90a), for groups of 8 NT choices. A unit is a group and a run of row tiles, one tile
// per consuming warp. A block computes one unit after the other. Before one unit ends, the records of the next are requested, and the rows
// of x of its choices are copied into the ring. Units of the same tiles and neighbouring groups run side by side. So if an expert's choices
// form several groups, the second and later groups read the expert from L2.
#pragma once

#include "../linear/rows.cuh"
#include "activated.cuh"
#include "rows.h"

namespace pen {

// Registers per thread of consumers and producers.
__host__ __device__ constexpr int consumer_registers(int nt) { return nt > 8 ? 152 : 112; }
__host__ __device__ constexpr int producer_registers(int nt) { return nt > 8 ? 40 : 32; }

template <int NT, int PIECE>
struct ExpertRowsShared {
  using X = RowsShared<NT, PIECE>;
  static constexpr int WARPS = 4 * expert_warpgroups(NT), THREADS = WARPS * WARP + ROWS_PRODUCERS;
  static constexpr int sums = X::STAGES * X::STAGE;  // after the stages of x
  static constexpr size_t bytes = 1024 + sums + size_t(WARPS) * NT * WARP * 16;
};

// The units of a product: `groups` units per run of row tiles.
struct ExpertUnits {
  int groups, count;
  __device__ __forceinline__ int group(int unit) const { return unit % groups; }
};

// Pieces of a row tile that a lane holds ahead of its products: as many as the remaining registers allow.
__host__ __device__ constexpr int choices_ahead(int words, int nt, int piece) {
  const int others = piece > 1 ? 58 : 46, fit = (consumer_registers(nt) - others - 4 * nt) / words, fewest = nt > 8 ? 1 : 2, most = 6;
  return (fit < fewest ? fewest : fit > most ? most : fit) / piece;
}

#ifdef PEN_HOPPER_DEVICE
// Copies the rows of x of each unit's choices, up to AHEAD stages at a time, and stores the choices for the warps that write the sums.
template <int NT, int PIECE>
__device__ __forceinline__ void produce_choices(const ExpertLinear& p, const ExpertUnits& units, int pieces, uint32_t stages, Ring& ring,
                                                int32_t (&choices)[2][NT * 8]) {
  using Shared = RowsShared<NT, PIECE>;
  constexpr int STAGES = Shared::STAGES, AHEAD = Shared::AHEAD, EACH = NT / 2;
  static_assert(STAGES <= SLICES, "a unit has as many pieces as the ring has stages, so that two units' choices are enough");
  // Each thread always copies the same 16-byte column of every sixteenth choice. If a group has empty places, the product reads stale data
  // there, into columns that are not written.
  const int thread = threadIdx.x % ROWS_PRODUCERS, place = thread / 8, column = thread % 8, width = p.ldx / 8;
  const uint32_t to = stages + (place * K_TILE + (column ^ (place % 8)) * 8) * 2;
  const auto* const x = reinterpret_cast<const uint4*>(p.x) + column;
  int32_t next[EACH];
  const auto look_up = [&](int unit) {
    const int32_t* const order = p.order + size_t(units.group(unit)) * NT * 8 + place;
#pragma unroll
    for (int e = 0; e < EACH; e++) next[e] = unit < units.count ? __ldcg(order + 16 * e) : -1;
  };
  int stage = 0, done = 0, behind = 0, parity = 0;
  uint32_t phase = 1;
  look_up(blockIdx.x);
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
    uint32_t at[EACH], real = 0;  // 16 bytes each; one bit per choice
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      real |= uint32_t(next[e] >= 0) << e;
      at[e] = uint32_t(max(next[e], 0) / p.share) * width;
    }
#pragma unroll 1
    for (int piece = 0; piece < pieces; piece++) {
      barrier_wait(&ring.empty[stage], phase);
      if (piece == 0) {
        // All warps have written the sums of the unit before the last one, because they have started the last one.
        if (column == 0) {
#pragma unroll
          for (int e = 0; e < EACH; e++) choices[parity][place + 16 * e] = next[e];
        }
        look_up(unit + gridDim.x);
      }
#pragma unroll
      for (int e = 0; e < EACH; e++) {
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
          copy_async(to + stage * Shared::STAGE + k * Shared::TILE + e * 16 * K_TILE * 2, x + at[e] + k * 8, true, real >> e & 1);
        }
        at[e] += PIECE * 8;
      }
      if (++stage == STAGES) stage = 0, phase ^= 1;
      copy_commit();
      copy_wait<AHEAD>();
      if (behind < AHEAD) {
        behind++;
      } else {
        fence_async_proxy();
        barrier_arrive(&ring.full[done]);
        if (++done == STAGES) done = 0;
      }
    }
    parity ^= 1;
  }
  copy_wait<0>();
  fence_async_proxy();
#pragma unroll 1
  for (; behind > 0; behind--) {
    barrier_arrive(&ring.full[done]);
    if (++done == STAGES) done = 0;
  }
}

// Adds a slice's sums to those in shared memory, or stores them if they are the first.
template <int NT>
__device__ __forceinline__ void add_to_shared(uint32_t place, const float (&acc)[NT][4], bool first) {
  constexpr int BATCH = NT < 4 ? NT : 4;
#pragma unroll
  for (int begin = 0; begin < NT; begin += BATCH) {
    float sums[BATCH][4] = {};
    if (!first) {
#pragma unroll
      for (int n = 0; n < BATCH; n++) load_four(sums[n], place + (begin + n) * WARP * 16);
    }
#pragma unroll
    for (int n = 0; n < BATCH; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], acc[begin + n][i]);
      store_four(place + (begin + n) * WARP * 16, sums[n]);
    }
  }
}

// Writes a lane's sums of a row tile from shared memory. A group's choices come before its empty places.
template <int NT>
__device__ __forceinline__ void write_choices(const ExpertLinear& p, int expert, int tile, int lane, uint32_t sums,
                                              const int32_t* choices) {
  const Matrix& w = p.w[0];
  const int ffn = w.rows / 2, row = lane / 4, i = tile * (p.glu ? TILE_ROWS / 2 : TILE_ROWS) + row;
  const auto bias_of = [&](const float* biases) { return biases && i < ffn ? biases[size_t(expert) * ffn + i] : 0.0f; };
  const float gate_bias = bias_of(p.gate_bias), up_bias = bias_of(p.up_bias);
#pragma unroll 1
  for (int n = 0; n < NT && choices[8 * n] >= 0; n++) {
    float y[4];
    load_four(y, sums + n * WARP * 16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int choice = choices[8 * n + 2 * (lane % 4) + h];
      if (choice < 0) continue;
      const size_t at = size_t(choice) * p.ldo + p.out_offset[0] + i;
      if (p.glu) {
        const float gate = p.gate_bias ? __fadd_rn(y[h], gate_bias) : y[h], up = p.up_bias ? __fadd_rn(y[h + 2], up_bias) : y[h + 2];
        if (i < ffn) p.out16[at] = clamped_half(gated(p.activation, gate, up, p.params));
      } else {
        if (i < w.rows) p.out[at] = y[h];
        if (i + 8 < w.rows) p.out[at + 8] = y[h + 2];
      }
    }
  }
}

// Runs a consuming warp. PIECE divides every slice, and no slice is empty.
template <class Format, int NT, int PIECE>
__device__ __forceinline__ void consume_choices(const ExpertLinear& p, const ExpertUnits& units, uint32_t stages, Ring& ring,
                                                const int32_t (&choices)[2][NT * 8]) {
  using Shared = RowsShared<NT, PIECE>;
  constexpr int HELD = choices_ahead(Format::words, NT, PIECE), RECORD = Format::record_bytes, AHEAD = HELD * PIECE * RECORD;
  constexpr int WARPS = ExpertRowsShared<NT, PIECE>::WARPS;
  static_assert(HELD <= SLICES, "a unit has as many pieces");
  const Matrix& w = p.w[0];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, k_tiles = w.k_tiles(), tiles = w.tiles();
  const uint32_t place = stages + ExpertRowsShared<NT, PIECE>::sums + (warp * NT * WARP + lane) * 16;
  const auto tile_of = [&](int unit) { return unit / units.groups * WARPS + warp; };
  const auto records_of = [&](int unit, int expert) {
    return w.data + (size_t(expert) * tiles + min(tile_of(unit), tiles - 1)) * k_tiles * RECORD;
  };
  int unit = blockIdx.x, parity = 0;
  if (unit >= units.count) return;
  int expert = __ldcg(p.expert_of + units.group(unit));
  const uint8_t* records = records_of(unit, expert);
  typename Format::Raw raw[HELD][PIECE];
  const auto request = [&](const uint8_t* from, int i, int k) { raw[i][k].load(from + (PIECE * i + k) * RECORD, lane); };
#pragma unroll
  for (int i = 0; i < HELD; i++) {
#pragma unroll
    for (int k = 0; k < PIECE; k++) request(records, i, k);
  }
  RowsPlace<NT, PIECE> ring_place(stages, ring);
  float acc[NT][4] = {};
#pragma unroll 1
  for (;;) {
    const int next_unit = unit + gridDim.x;
    const bool more = next_unit < units.count;
    const int next_expert = more ? __ldcg(p.expert_of + units.group(next_unit)) : expert;
    const uint8_t* const next_records = records_of(more ? next_unit : unit, next_expert);
    const auto multiply = [&](auto& acc) {
      const uint8_t* ahead = records + AHEAD;
      int left = k_tiles / PIECE, slice = 0, until = slice_begin(1, k_tiles) / PIECE;  // pieces
      bool fresh = true;
#pragma unroll 1
      while (left > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
          if (i > 0 && left == 0) break;
          // The last pieces of this unit are followed by the first pieces of the next unit.
          const uint8_t* const from = left > HELD ? ahead : next_records;
          ring_place.multiply(acc, raw[i], fresh, [&](int k) {
            if (left > HELD || more) request(from, i, k);
          });
          left--;
          ring_place.release(lane);
          fresh = --until == 0;
          if (fresh) {
            add_to_shared(place, acc, slice == 0);
            slice++;
            until = (slice_begin(slice + 1, k_tiles) - slice_begin(slice, k_tiles)) / PIECE;
          }
        }
        ahead = held(ahead + AHEAD);
      }
    };
    if constexpr (NT > 8) {
      barrier_wait(ring_place.barrier, ring_place.phase);  // choices arrive with the first stage
      if (choices[parity][NT * 4] < 0) multiply(reinterpret_cast<float(&)[NT / 2][4]>(acc));
      else multiply(acc);
    } else {
      multiply(acc);
    }
    if (tile_of(unit) < tiles) write_choices<NT>(p, expert, tile_of(unit), lane, place, choices[parity]);
    if (!more) return;
    unit = next_unit, expert = next_expert, records = next_records, parity ^= 1;
  }
}
#endif

// Grid: (blocks).
template <int NT, int PIECE>
__global__ void __launch_bounds__(ExpertRowsShared<NT, PIECE>::THREADS, 1) expert_rows_kernel(const __grid_constant__ ExpertLinear p) {
#ifdef PEN_HOPPER_DEVICE
  constexpr int WARPS = ExpertRowsShared<NT, PIECE>::WARPS;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  __shared__ int32_t choices[2][NT * 8];  // of two consecutive units
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < RowsShared<NT, PIECE>::STAGES; i++) {
      barrier_init(&ring.full[i], ROWS_PRODUCERS);
      barrier_init(&ring.empty[i], WARPS);
    }
  }
  __syncthreads();
  wait_for_previous();
  const int groups = __ldcg(p.num_groups);
  const ExpertUnits units{max(groups, 1), groups * ceil_div(p.w[0].tiles(), WARPS)};
  if (threadIdx.x / WARP >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(producer_registers(NT)));
    produce_choices<NT, PIECE>(p, units, p.w[0].k_tiles() / PIECE, stages, ring, choices);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(consumer_registers(NT)));
  with_format(p.w[0].format, [&](auto format) { consume_choices<decltype(format), NT, PIECE>(p, units, stages, ring, choices); });
#endif
}

template <int NT, int PIECE>
void start_expert_rows(const Launch& launch, const ExpertLinear& args, int num_groups) {
  using Shared = ExpertRowsShared<NT, PIECE>;
  const auto kernel = expert_rows_kernel<NT, PIECE>;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(Shared::bytes)), prefer_shared(kernel); });
  const int units = num_groups * ceil_div(args.w[0].tiles(), Shared::WARPS);
  launch(kernel, dim3(std::min(launch.device.multiprocessors, units)), dim3(Shared::THREADS), Shared::bytes, args);
}
template <int NT>
void run_expert_rows(const Launch& launch, const ExpertLinear& args, int num_groups) {
  // Two K tiles at a time take fewer instructions, if they divide every slice.
  if constexpr (NT <= 8) {
    if (args.w[0].k_tiles() % (2 * SLICES) == 0) return start_expert_rows<NT, 2>(launch, args, num_groups);
  }
  start_expert_rows<NT, 1>(launch, args, num_groups);
}

}  // namespace pen
