// The products of experts.h on warpgroup products (sm_90a), for groups of 8 NT choices. A unit is a group with a run of row tiles, one for
// each consuming warp. A block computes one unit after another: the records of the next unit are requested, and its choices' rows of x are
// copied into the ring, before this one ends. Units of the same tiles and neighbouring groups run side by side, so that an expert whose
// choices take several groups comes from L2 from the second time on.
#pragma once

#include "../linear/rows.cuh"
#include "activated.cuh"
#include "rows.h"

namespace pen {

template <int NT>
struct ExpertRowsShared {
  using X = RowsShared<NT, 1>;
  static constexpr int WARPS = 4 * ROWS_WARPGROUPS;
  static constexpr int sums = X::STAGES * X::STAGE;  // behind the stages of x
  static constexpr size_t bytes = 1024 + sums + size_t(WARPS) * NT * WARP * 16;
};

// The units of a product: `groups` for each run of row tiles.
struct ExpertUnits {
  int groups, count;
  __device__ __forceinline__ int group(int unit) const { return unit % groups; }
};

#ifdef PEN_HOPPER_DEVICE
// Copies the rows of x of each unit's choices, up to AHEAD stages ahead, and writes the choices for those who write the sums.
template <int NT>
__device__ __forceinline__ void produce_choices(const ExpertLinear& p, const ExpertUnits& units, int chunks, uint32_t stages, Ring& ring,
                                                int32_t (&choices)[2][NT * 8]) {
  using Shared = RowsShared<NT, 1>;
  constexpr int STAGES = Shared::STAGES, AHEAD = Shared::AHEAD, EACH = NT / 2;
  // Each thread always copies the same 16-byte column of every sixteenth choice.
  const int thread = threadIdx.x % ROWS_PRODUCERS, place = thread / 8, column = thread % 8;
  const uint32_t to = stages + (place * CHUNK + (column ^ (place % 8)) * 8) * 2;
  int32_t own[EACH], next[EACH];
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
    const __half* from[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      own[e] = next[e];
      from[e] = p.x + size_t(max(own[e], 0) / p.share) * p.ldx + column * 8;
    }
    look_up(unit + gridDim.x);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
      barrier_wait(&ring.empty[stage], phase);
      // All have written the sums of the unit before the last one, since they have begun with the last one.
      if (chunk == 0 && column == 0) {
#pragma unroll
        for (int e = 0; e < EACH; e++) choices[parity][place + 16 * e] = own[e];
      }
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        copy_async(to + stage * Shared::STAGE + e * 16 * CHUNK * 2, from[e], own[e] >= 0);
        from[e] += CHUNK;
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

// Writes a lane's sums of a row tile, which lie in shared memory.
template <int NT>
__device__ __forceinline__ void write_choices(const ExpertLinear& p, int expert, int tile, int lane, uint32_t sums, const int32_t* choices) {
  const Matrix& w = p.w[0];
  const int ffn = w.rows / 2, row = lane / 4, i = tile * (p.glu ? TILE_ROWS / 2 : TILE_ROWS) + row;
  const auto bias_of = [&](const float* biases) { return biases && i < ffn ? biases[size_t(expert) * ffn + i] : 0.0f; };
  const float gate_bias = bias_of(p.gate_bias), up_bias = bias_of(p.up_bias);
#pragma unroll 1
  for (int n = 0; n < NT; n++) {
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

// What a consuming warp does. There are at least as many chunks as slices.
template <class Format, int NT>
__device__ __forceinline__ void consume_choices(const ExpertLinear& p, const ExpertUnits& units, uint32_t stages, Ring& ring,
                                                const int32_t (&choices)[2][NT * 8]) {
  using Shared = RowsShared<NT, 1>;
  constexpr int HELD = rows_ahead(Format::words, NT, 1), RECORD = Format::record_bytes, WARPS = ExpertRowsShared<NT>::WARPS;
  static_assert(HELD <= SLICES, "a unit has as many records");
  const Matrix& w = p.w[0];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, chunks = w.chunks(), tiles = w.tiles();
  const uint32_t place = stages + ExpertRowsShared<NT>::sums + (warp * NT * WARP + lane) * 16;
  const auto tile_of = [&](int unit) { return unit / units.groups * WARPS + warp; };
  const auto records_of = [&](int unit, int expert) {
    return w.data + (size_t(expert) * tiles + min(tile_of(unit), tiles - 1)) * chunks * RECORD;
  };
  int unit = blockIdx.x, parity = 0;
  if (unit >= units.count) return;
  int expert = __ldcg(p.expert_of + units.group(unit));
  const uint8_t* records = records_of(unit, expert);
  typename Format::Raw raw[HELD];
#pragma unroll
  for (int i = 0; i < HELD; i++) raw[i].load(records + i * RECORD, lane);
  constexpr uint64_t UPPER = tile_descriptor(0) & ~uint64_t(0xffffffff);
  const uint32_t origin = uint32_t(tile_descriptor(stages)), full = held(shared_of(ring.full)), full_end = full + Shared::STAGES * 8;
  constexpr uint32_t EMPTY = offsetof(Ring, empty) - offsetof(Ring, full);
  uint32_t stage = origin, barrier = full, phase = 0;
  float acc[NT][4] = {};
#pragma unroll 1
  for (;;) {
    const int next_unit = unit + gridDim.x;
    const bool more = next_unit < units.count;
    const int next_expert = more ? __ldcg(p.expert_of + units.group(next_unit)) : expert;
    const uint8_t* const next_records = records_of(more ? next_unit : unit, next_expert);
    const uint8_t* ahead = records + HELD * RECORD;
    float sums[Shared::WIDE ? 1 : NT][4] = {};
    int left = chunks, slice = 0, until = slice_begin(1, chunks);
    bool fresh = true;
#pragma unroll 1
    while (left > 0) {
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        if (i > 0 && left == 0) break;
        uint32_t a[STEPS][4];
#pragma unroll
        for (int s = 0; s < STEPS; s++) raw[i].fragment(s, a[s]);
        // Behind the last record, the first ones of the next unit.
        if (left > HELD || more) raw[i].load((left > HELD ? ahead : next_records) + i * RECORD, lane);
        barrier_wait(barrier, phase);
        warpgroup_arrive();
#pragma unroll
        for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], UPPER | (stage + 2 * s), fresh && s == 0);
        warpgroup_commit();
        left--;
        warpgroup_wait<0>();
        if (lane == 0) barrier_arrive(barrier + EMPTY);
        stage += Shared::STAGE >> 4;
        barrier += 8;
        if (barrier == full_end) barrier = full, stage = origin, phase ^= 1;
        fresh = --until == 0;
        if (fresh) {
          if constexpr (Shared::WIDE) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
              float sum[4] = {};
              if (slice > 0) load_four(sum, place + n * WARP * 16);
#pragma unroll
              for (int k = 0; k < 4; k++) sum[k] = __fadd_rn(sum[k], acc[n][k]);
              store_four(place + n * WARP * 16, sum);
            }
          } else {
            add_sums(sums, acc);
          }
          slice++;
          until = slice_begin(slice + 1, chunks) - slice_begin(slice, chunks);
        }
      }
      ahead = held(ahead + HELD * RECORD);
    }
    if constexpr (!Shared::WIDE) {
#pragma unroll
      for (int n = 0; n < NT; n++) store_four(place + n * WARP * 16, sums[n]);
    }
    if (tile_of(unit) < tiles) write_choices<NT>(p, expert, tile_of(unit), lane, place, choices[parity]);
    if (!more) return;
    unit = next_unit, expert = next_expert, records = next_records, parity ^= 1;
  }
}
#endif

// Grid: (blocks).
template <int NT>
__global__ void __launch_bounds__(ROWS_THREADS, 1) expert_rows_kernel(const __grid_constant__ ExpertLinear p) {
#ifdef PEN_HOPPER_DEVICE
  constexpr int WARPS = ExpertRowsShared<NT>::WARPS;
  extern __shared__ uint8_t dynamic[];
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  __shared__ Ring ring;
  __shared__ int32_t choices[2][NT * 8];  // of two units that follow one another
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < RowsShared<NT, 1>::STAGES; i++) {
      barrier_init(&ring.full[i], ROWS_PRODUCERS);
      barrier_init(&ring.empty[i], WARPS);
    }
  }
  __syncthreads();
  wait_for_previous();
  const int groups = __ldcg(p.num_groups);
  const ExpertUnits units{max(groups, 1), groups * ceil_div(p.w[0].tiles(), WARPS)};
  if (threadIdx.x / WARP >= WARPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    produce_choices<NT>(p, units, p.w[0].chunks(), stages, ring, choices);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
  with_format(p.w[0].format, [&](auto format) { consume_choices<decltype(format), NT>(p, units, stages, ring, choices); });
#endif
}

template <int NT>
void run_expert_rows(const Launch& launch, const ExpertLinear& args, int num_groups) {
  using Shared = ExpertRowsShared<NT>;
  const auto kernel = expert_rows_kernel<NT>;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(Shared::bytes)), prefer_shared(kernel); });
  const int units = num_groups * ceil_div(args.w[0].tiles(), Shared::WARPS);
  launch(kernel, dim3(std::min(launch.device.multiprocessors, units)), dim3(ROWS_THREADS), Shared::bytes, args);
}

}  // namespace pen
