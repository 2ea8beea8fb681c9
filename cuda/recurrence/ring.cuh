// The next rows of a recurrence, in shared memory: up to two stages of `stage_rows` rows. One stage is filled while the other is read.
#pragma once

#include "../device/kernel.cuh"
#include "recurrence.h"

namespace pen {

constexpr int RECURRENCE_WARPS = 4;
constexpr int RECURRENCE_THREADS = RECURRENCE_WARPS * WARP;
constexpr int RING_BYTES = 40 * 1024;  // upper limit, unless one row per stage takes more
constexpr int MAX_STAGE_ROWS = 32;

enum class Rule { SCAN, SCAN_CHANNELS, DELTA, DELTA_KEYS };

// How many lanes hold a column's keys, and how many fours of keys each lane holds. Part of the numeric definition (recurrence.h).
template <int LANES_, int FOURS_>
struct KeyShape {
  static constexpr int LANES = LANES_, FOURS = FOURS_, KEYS = 4 * LANES * FOURS;
  static constexpr int COLUMNS = RECURRENCE_THREADS / LANES * 2;  // columns per block
};

// Inputs and state of the kernel, for every rule.
struct Recurrence {
  View keyed[3];    // over the keys: scan b, c; delta k, q, decay
  View vectors[2];  // over the values: scan x, steps of channels; delta v
  View scalars[2];  // scan factor, step; delta decay, beta
  const float* a;
  int heads, keys, values;
  int group, key_heads;  // head h reads key head h % key_heads if tiled, otherwise h / group
  bool tiled;
  bool wide_inputs, wide_state;  // whether fours of keys start at multiples of 16 bytes
  States states;
  int state_at;
  float* out;
  int ld_out;
  int stage_rows, stages;
};

// Copies 4 bytes into shared memory. Asynchronous on sm_80 and later.
__device__ __forceinline__ void copy_float(float* shared, const float* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_of(shared)), "l"(global) : "memory");
#else
  *shared = *global;
#endif
}

// A row in shared memory: the vectors over keys, KEYS floats each, the vectors over values, COLUMNS each, and two scalars, padded to 16
// bytes.
template <Rule RULE, class Shape>
struct Ring {
  static constexpr int KEYED = RULE == Rule::DELTA_KEYS ? 3 : 2;
  static constexpr int WIDE = RULE == Rule::SCAN_CHANNELS ? 2 : 1;
  static constexpr int VECTORS = KEYED * Shape::KEYS, SCALARS = VECTORS + WIDE * Shape::COLUMNS, ROW = SCALARS + 4;
  static_assert(ROW % 4 == 0, "fours are read at once");

  static int rows() {
    const int fit = RING_BYTES / (2 * ROW * int(sizeof(float)));
    return fit < 1 ? 1 : fit > MAX_STAGE_ROWS ? MAX_STAGE_ROWS : fit;
  }

  // The inputs of the block's head and columns.
  const float* keyed[KEYED];
  const float* vectors[WIDE];
  const float* scalars[2];
  int columns;

  __device__ __forceinline__ Ring(const Recurrence& p, int head, int tile, int columns) : columns(columns) {
    const int key_head = p.tiled ? head % p.key_heads : head / p.group;
#pragma unroll
    for (int i = 0; i < KEYED; i++) keyed[i] = p.keyed[i].start + size_t(i == 2 ? head : key_head) * p.keyed[i].per_head;
#pragma unroll
    for (int i = 0; i < WIDE; i++) vectors[i] = p.vectors[i].start + size_t(head) * p.vectors[i].per_head + tile;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      scalars[i] = p.scalars[i].start ? p.scalars[i].start + size_t(head) * p.scalars[i].per_head : nullptr;
    }
  }

  // Copies rows `from` to `from` + `count` − 1, each by one warp.
  __device__ __forceinline__ void copy(const Recurrence& p, float* stage, int from, int count) const {
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int r = threadIdx.x / WARP; r < count; r += RECURRENCE_WARPS) {
      float* const to = stage + r * ROW;
      const size_t row = size_t(from) + r;
#pragma unroll
      for (int i = 0; i < KEYED; i++) {
        const float* const source = keyed[i] + row * p.keyed[i].ld;
        if (p.wide_inputs) {
#pragma unroll 1
          for (int k = 4 * lane; k < p.keys; k += 4 * WARP) copy_async(shared_of(to + i * Shape::KEYS + k), source + k);
        } else {
#pragma unroll 1
          for (int k = lane; k < p.keys; k += WARP) copy_float(to + i * Shape::KEYS + k, source + k);
        }
      }
#pragma unroll
      for (int i = 0; i < WIDE; i++) {
        const float* const source = vectors[i] + row * p.vectors[i].ld;
#pragma unroll 1
        for (int c = lane; c < columns; c += WARP) copy_float(to + VECTORS + i * Shape::COLUMNS + c, source + c);
      }
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if (scalars[i]) {
            copy_float(to + SCALARS + i, scalars[i] + row * p.scalars[i].ld);
          } else {
            to[SCALARS + i] = 1.0f;
          }
        }
      }
    }
  }
};

}  // namespace pen
