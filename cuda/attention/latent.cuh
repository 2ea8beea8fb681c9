// Latent attention and heads of 512 elements on sm_90a, by warpgroup products. It computes the same bits as general.cuh, which
// bench/attention_general.cu checks. A block computes 64 (token, head) rows. Its two warpgroups alternate over the tiles: one scores a
// tile's keys and passes its probabilities to the other, and each sums half of the values' elements, because registers hold no more.
#pragma once

#include "box_state.cuh"
#include "latent_units.cuh"

namespace pen {

#ifdef PEN_HOPPER_DEVICE
// s = q Kᵀ of tile n. The rows' elements are multiplied as they arrive.
template <class Shape>
__device__ __forceinline__ void latent_scores(float (&s)[KEYS / 8][4], const LatentRing<Shape>& ring, int n) {
  const uint64_t a = tile_descriptor(ring.queries), b = tile_descriptor(ring.keys(n));
  warpgroup_arrive();
#pragma unroll
  for (int part = Shape::SEPARATE ? SCORED : 0; part < LATENT_PARTS; ++part) {
    ring.wait(n, part);
#pragma unroll
    for (int k = latent_boxes<Shape>(part).first * 4; k < latent_boxes<Shape>(part).end * 4; ++k) {
      const uint32_t at = (k / 4 * STATE_BOX_BYTES + k % 4 * 32) / 16;
      wgmma_shared(s, moved(a, at), moved(b, at), k == 0);
    }
  }
  warpgroup_commit();
  warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < KEYS / 2; ++i) s[i / 4][i % 4] = held(s[i / 4][i % 4]);
}

// A lane's place in the block and its two rows of the unit. Writes their results.
struct LatentLane {
  int warpgroup, thread, lane, row;  // row: the first one; the second is eight rows later

  __device__ __forceinline__ LatentLane()
      : warpgroup(__shfl_sync(0xffffffffu, threadIdx.x / (4 * WARP), 0)),  // so that the compiler knows it is uniform in the warp
        thread(threadIdx.x % (4 * WARP)), lane(threadIdx.x % WARP), row(thread / WARP * ROWS + lane / 4) {}

  // Calls take(dim, box, n) for each pair of elements that the lane has.
  template <class Take>
  __device__ __forceinline__ void each(Take take) const {
#pragma unroll
    for (int i = 0; i < STATE_BOXES * BOX_DIM / 8; ++i) {
      const int box = i / (BOX_DIM / 8), n = i % (BOX_DIM / 8);
      take((warpgroup * STATE_BOXES + box) * BOX_DIM + n * 8 + lane % 4 * 2, box, n);
    }
  }
  __device__ __forceinline__ void write(const GeneralAttention& p, const LatentUnit& unit, const BoxState& state) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = unit.first_row + row + 8 * h;
      if (at >= unit.rows.count) continue;
      const float inverse = inverse_sum(state.running[h].sum);
      __half* const out = p.out + static_cast<size_t>(unit.rows.token(at)) * p.ld_out + unit.rows.head(at) * LATENT_VALUE;
      each([&](int dim, int box, int n) {
        *reinterpret_cast<__half2*>(out + dim) = finished(state.o[box][n][2 * h], state.o[box][n][2 * h + 1], inverse);
      });
    }
  }
  // Leaves the result of a KV split in the workspace.
  __device__ __forceinline__ void leave(const GeneralAttention& p, const GeneralPlan& plan, const LatentUnit& unit,
                                        const BoxState& state, int kv_split) const {
    const GeneralPartials partials(p, plan);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = unit.first_row + row + 8 * h;
      const Parts own(plan, unit.rows.span(p, at));
      if (kv_split < own.begin || kv_split >= own.end) continue;
      const size_t to = partials.at(unit.rows, at, unit.place) + (kv_split - own.begin);
      if (warpgroup == 0 && lane % 4 == 0) partials.row[to] = make_float2(state.running[h].maximum, state.running[h].sum);
      each([&](int dim, int box, int n) {
        const float(&o)[4] = state.o[box][n];
        *reinterpret_cast<float2*>(partials.o + to * partials.stride + dim) = make_float2(o[2 * h], o[2 * h + 1]);
      });
    }
  }
};

// Waits for both warpgroups.
__device__ __forceinline__ void sync_all() { asm volatile("bar.sync 1, %0;" ::"n"(LATENT_WARPGROUPS * 4 * WARP) : "memory"); }

// Copies the query rows of a unit into shared memory as boxes, by both warpgroups.
__device__ __forceinline__ void put_rows(const GeneralAttention& p, const LatentUnit& unit, uint32_t to, int thread) {
  sync_all();  // no warp still reads the previous rows
  const auto row_at = [&](int r) -> const __half* {
    const int row = unit.first_row + r;
    if (row >= unit.rows.count) return nullptr;
    return p.q + static_cast<size_t>(unit.rows.token(row)) * p.ld_q + unit.rows.head(row) * LongHeads::DIM;
  };
  put_queries<LongHeads::DIM, LATENT_WARPGROUPS * 4 * WARP>(to, thread, row_at, LongHeads::DIM);
  fence_async_proxy();
  sync_all();
}
#endif

// Grid: as many blocks as run at once, or as there are units if those are fewer. Shared memory: Shared::bytes. Workspace of steps that are
// not split: STATE_BEFORE floats per block.
template <class Shape>
__global__ void __launch_bounds__(LATENT_THREADS, 1)
    attention_latent_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                            const __grid_constant__ GeneralPlan plan, const __grid_constant__ CUtensorMap queries_map,
                            const __grid_constant__ CUtensorMap keys_map, const __grid_constant__ CUtensorMap values_map) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = LatentShared<Shape>;
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  uint8_t* const shared = dynamic + (base - shared_of(dynamic));
  const LatentUnits units{p, plan, step, reinterpret_cast<int*>(shared + Shared::before),
                          reinterpret_cast<int*>(shared + Shared::sums)};
  const LatentRing<Shape> ring{*reinterpret_cast<Ring*>(shared + Shared::barriers), base};
  units.count();
  ring.begin();
  wait_for_previous();
  const LatentLane at;
  if (at.warpgroup == LATENT_WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (at.thread < WARP) fetch_latent(units, ring, queries_map, keys_map, values_map);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const ScoreScale scale(p.scale, 0.0f);
  const auto sync = [&] { asm volatile("bar.sync %0, %1;" ::"r"(2 + at.warpgroup), "n"(4 * WARP) : "memory"); };
  float2* const tile_rows = reinterpret_cast<float2*>(shared + Shared::rows);
  const uint32_t fragments = base + Shared::probabilities + at.thread * 16;
  LatentUnit* const unit_place = reinterpret_cast<LatentUnit*>(shared + Shared::units + at.warpgroup * 64);
  static_assert(sizeof(LatentUnit) <= 64, "a unit's room");
  BoxState state;
  state.before = reinterpret_cast<float4*>(p.workspace + static_cast<size_t>(blockIdx.x) * STATE_BEFORE) + threadIdx.x;
  int n = 0, number = 0;
  for (int wave = 0, i; (i = unit_of_wave(wave)) < units.all(); ++wave) {
    sync();  // no warp still reads the previous unit
    if (at.thread == 0) *unit_place = LatentUnit(units, i);
    sync();
    const LatentUnit& unit = *unit_place;  // in shared memory, because all registers are taken
    if (unit.first_tile >= unit.end_tile) continue;
    const int row0 = unit.first_row + at.row;
    const Span span[2] = {{0, unit.rows.span(p, row0).end}, {0, unit.rows.span(p, row0 + 8).end}};
    const bool has_rows = row0 - at.lane / 4 < unit.rows.count;
    state.clear();
    // The last tile that this warpgroup scores. It lies before the first tile if the warpgroup scores none.
    const int last = n + unit.end_tile - unit.first_tile - 1, last_own = last - ((last ^ at.warpgroup) & 1);
    if constexpr (Shape::SEPARATE) {
      put_rows(p, unit, base, threadIdx.x);
    } else {
      ring.wait_queries(number++);  // waits before the queries are released: otherwise one warpgroup could be a unit ahead of the other
      if (last_own < n) ring.leave_queries();
    }
    for (int tile = unit.first_tile; tile < unit.end_tile; ++tile, ++n) {
      uint32_t probabilities[KEYS / 16][4];
      float acc[2][KEYS / 8][4];  // parts of P V; the first one holds the scores before that
      float2 found[2];  // maximum and sum of the lane's rows
      if (n % 2 == at.warpgroup) {
        float maximum[2], sum[2];
        latent_scores(acc[0], ring, n);
        ring.leave(n, SCORED);
        if (!Shape::SEPARATE && n == last_own) ring.leave_queries();
        tile_softmax(probabilities, maximum, acc[0], span, tile, scale.c, at.lane);
        tile_sums(sum, probabilities);
        // A thread reads the previous tile's probabilities before it stores its own in the same place, so one place is enough.
        store_fragments(fragments, 4 * WARP * 16, probabilities);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          found[h] = make_float2(maximum[h], sum[h]);
          if (at.lane % 4 == 0) tile_rows[at.row + 8 * h] = found[h];
        }
        sync_all();
      } else {
        sync_all();
        load_fragments(probabilities, fragments, 4 * WARP * 16);
#pragma unroll
        for (int h = 0; h < 2; ++h) found[h] = tile_rows[at.row + 8 * h];
        __syncwarp();  // the lane that writes the next ones must not run ahead
      }
      ring.wait(n, at.warpgroup);
      const uint32_t values = ring.values(n) + at.warpgroup * STATE_BOXES * STATE_BOX_BYTES;
      const int num_keys = unit.rows.context - tile * KEYS;
      if (num_keys < KEYS) {
        clear_keys<STATE_BOXES * BOX_DIM, 4 * WARP>(values, num_keys, at.thread);
        fence_async_proxy();
        sync();
      }
      float keep[2], add[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) merge(state.running[h], found[h].x, found[h].y, keep[h], add[h]);
      add_box_values(state.o, probabilities, acc, values, keep, add, has_rows);
      ring.leave(n, at.warpgroup);
      if ((tile + 1) % KV_SPLIT_TILES != 0 && tile + 1 != unit.end_tile) continue;
      if (!has_rows) continue;
      if (!unit.direct) {
        at.leave(p, plan, unit, state, tile / KV_SPLIT_TILES);
        state.clear();
      } else {
        state.end_kv_split(tile - unit.first_tile >= KV_SPLIT_TILES, tile + 1 == unit.end_tile);
        if (tile + 1 == unit.end_tile) at.write(p, unit, state);
      }
    }
  }
#endif
}

}  // namespace pen
