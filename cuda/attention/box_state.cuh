// The state of 64 rows and 256 elements of their values in a warpgroup, for kernels that multiply box by box (sm_90a).
#pragma once

#include "../device/warpgroup.cuh"
#include "boxes.cuh"

namespace pen {

#ifdef PEN_HOPPER_DEVICE
// The unit that a persistent block takes in each wave. Units come longest first, so every other wave runs backwards.
__device__ __forceinline__ int unit_of_wave(int wave) {
  const int place = wave % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  return wave * gridDim.x + place;
}

// The state of a warpgroup's rows. The current KV split is in registers. Earlier ones are in memory, which is accessed once per KV split.
struct BoxState {
  float o[STATE_BOXES][BOX_DIM / 8][4];
  Running running[2];
  float4* before;  // the thread's state before: [STATE_BOXES · BOX_DIM / 8] of O, then maxima and sums, STATE_THREADS apart

  __device__ __forceinline__ void clear() {
    running[0] = running[1] = Running{};
#pragma unroll
    for (int i = 0; i < STATE_BOXES * BOX_DIM / 2; ++i) o[i / (BOX_DIM / 2)][i / 4 % (BOX_DIM / 8)][i % 4] = 0.0f;
  }
  // Merges the current KV split into the earlier ones, if there are some. `last`: keeps the result here; otherwise writes it to memory.
  __device__ __forceinline__ void end_kv_split(bool some, bool last) {
    constexpr int ALL = STATE_BOXES * BOX_DIM / 8, STEP = STATE_THREADS;
    Running all[2];
    const float4 rows = read(ALL * STEP, some);
    if (some) all[0].maximum = rows.x, all[0].sum = rows.y, all[1].maximum = rows.z, all[1].sum = rows.w;
    float keep[2], add[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      merge(all[h], running[h].maximum, running[h].sum, keep[h], add[h]);
      running[h] = all[h];
    }
    if (!last) write(ALL * STEP, make_float4(all[0].maximum, all[0].sum, all[1].maximum, all[1].sum)), running[0] = running[1] = Running{};
    constexpr int BATCH = 8;  // reads in flight; more would take registers from O
#pragma unroll
    for (int first = 0; first < ALL; first += BATCH) {
      float4 y[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) y[i] = read((first + i) * STEP, some);
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        float(&x)[4] = o[(first + i) / (BOX_DIM / 8)][(first + i) % (BOX_DIM / 8)];
        x[0] = merged(y[i].x, x[0], keep[0], add[0]), x[1] = merged(y[i].y, x[1], keep[0], add[0]);
        x[2] = merged(y[i].z, x[2], keep[1], add[1]), x[3] = merged(y[i].w, x[3], keep[1], add[1]);
        if (last) continue;
        write((first + i) * STEP, make_float4(x[0], x[1], x[2], x[3]));
        x[0] = x[1] = x[2] = x[3] = 0.0f;
      }
    }
  }

 private:
  // Volatile, so that the compiler keeps their order and does not move all reads to the front.
  __device__ __forceinline__ float4 read(int at, bool there) const {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there) {
      asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "l"(before + at)
                   : "memory");
    }
    return x;
  }
  __device__ __forceinline__ void write(int at, float4 x) const {
    asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(before + at), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
  }
};

// O = merged(O, P V) for the warpgroup's elements of a tile, whose first box starts at `values`. Keeps the products of two boxes in flight.
// A warp without rows only takes part in the products.
__device__ __forceinline__ void add_box_values(float (&o)[STATE_BOXES][BOX_DIM / 8][4], const uint32_t (&p)[KEYS / 16][4],
                                              float (&acc)[2][BOX_DIM / 8][4], uint32_t values, const float (&keep)[2],
                                              const float (&add)[2], bool has_rows) {
  const auto start = [&](int box) {
    const uint64_t b = transposed_descriptor(values + box * STATE_BOX_BYTES, STATE_BOX_BYTES);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) wgmma<true>(acc[box % 2], p[k], moved(b, k * 16 * 128 / 16), k == 0);
    warpgroup_commit();
  };
  start(0), start(1);
#pragma unroll
  for (int box = 0; box < STATE_BOXES; ++box) {
    if (box + 1 < STATE_BOXES) warpgroup_wait<1>(); else warpgroup_wait<0>();
    if (has_rows) {
#pragma unroll
      for (int n = 0; n < BOX_DIM / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[box][n][i] = merged(o[box][n][i], held(acc[box % 2][n][i]), keep[i / 2], add[i / 2]);
      }
    }
    if (box + 2 < STATE_BOXES) start(box + 2);
  }
}
#endif

}  // namespace pen
