// The kernel of selective scans and of the delta rule.
#pragma once

#include "../device/kernel.cuh"
#include "ring.cuh"

namespace pen {

// Loads a lane's fours of one column: four i has keys 4 · (lane + LANES · i) + 0 .. 3. Keys beyond `keys` are zeros.
template <int LANES, int FOURS>
__device__ __forceinline__ void load_column(float (&to)[4 * FOURS], const float* column, int lane, int keys, bool wide) {
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const int key = 4 * (lane + LANES * i);
    float4 x{};
    if (wide) {
      if (key < keys) x = __ldcg(reinterpret_cast<const float4*>(column + key));
    } else {
      if (key < keys) x.x = __ldcg(column + key);
      if (key + 1 < keys) x.y = __ldcg(column + key + 1);
      if (key + 2 < keys) x.z = __ldcg(column + key + 2);
      if (key + 3 < keys) x.w = __ldcg(column + key + 3);
    }
    to[4 * i] = x.x, to[4 * i + 1] = x.y, to[4 * i + 2] = x.z, to[4 * i + 3] = x.w;
  }
}

template <int LANES, int FOURS>
__device__ __forceinline__ void store_column(float* column, const float (&from)[4 * FOURS], int lane, int keys, bool wide) {
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const int key = 4 * (lane + LANES * i);
    if (wide) {
      const float4 x{from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]};
      if (key < keys) __stcg(reinterpret_cast<float4*>(column + key), x);
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (key + e < keys) __stcg(column + key + e, from[4 * i + e]);
      }
    }
  }
}

// Loads a lane's fours of a vector over the keys from shared memory.
template <int LANES, int FOURS>
__device__ __forceinline__ void load_keys(float (&to)[4 * FOURS], const float* from) {
#pragma unroll
  for (int i = 0; i < FOURS; i++) {
    const float4 x = *reinterpret_cast<const float4*>(from + 4 * LANES * i);
    to[4 * i] = x.x, to[4 * i + 1] = x.y, to[4 * i + 2] = x.z, to[4 * i + 3] = x.w;
  }
}

// A sum in progress: its two chains.
struct Chains {
  float even = 0.0f, odd = 0.0f;
  __device__ __forceinline__ void add(int i, float a, float b) {
    float& chain = i / 4 % 2 ? odd : even;
    chain = __fmaf_rn(a, b, chain);
  }
  __device__ __forceinline__ float sum() const { return __fadd_rn(even, odd); }
};

// Sums over a column's lanes. Every lane gets the result.
template <int LANES>
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// Sums two columns in fewer steps. Even lanes get x's sum, odd lanes get y's. The bits are those of sum_of_lanes.
template <int LANES>
__device__ __forceinline__ float sum_of_two(float x, float y, int lane) {
  const float kept = lane % 2 ? y : x, given = lane % 2 ? x : y;
  float sum = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, 1));
#pragma unroll
  for (int distance = 2; distance < LANES; distance *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  return sum;
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Mamba 1: loads a · log2 e of a thread's two columns. These are weights, so no wait is needed.
template <class Shape, int N>
__device__ __forceinline__ void load_decays(float (&a)[2][N], const Recurrence& p, size_t column, int lane, int own, int columns) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    load_column<Shape::LANES, Shape::FOURS>(a[c], p.a + (column + c) * p.keys, lane, own + c < columns ? p.keys : 0, p.wide_state);
#pragma unroll
    for (int i = 0; i < N; i++) a[c][i] = __fmul_rn(a[c][i], 1.4426950408889634f);
  }
}

// Stores a thread's two columns of the state back to the slot.
template <class Shape, int N>
__device__ __forceinline__ void store_columns(const float (&s)[2][N], const Recurrence& p, float* state, int lane, int own, int columns) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    store_column<Shape::LANES, Shape::FOURS>(state + size_t(c) * p.keys, s[c], lane, own + c < columns ? p.keys : 0, p.wide_state);
  }
}

// Grid: (heads · ceil(values / columns of a block), num_seqs). Dynamic shared memory: Ring::bytes. A warp has 32 / LANES · 2 columns of a
// head's state. A thread has two neighbouring columns and FOURS fours of their keys. Rows are processed in order.
template <Rule RULE, class Shape>
__global__ void __launch_bounds__(RECURRENCE_THREADS) recurrence_kernel(const __grid_constant__ Recurrence p,
                                                                        const __grid_constant__ StepView step) {
  constexpr int LANES = Shape::LANES, FOURS = Shape::FOURS, KEYS = Shape::KEYS, N = 4 * FOURS;
  using Stage = Ring<RULE, Shape>;
  extern __shared__ __align__(16) float ring[];
  let_next_start();
  const int tiles = ceil_div(p.values, Shape::COLUMNS), head = blockIdx.x / tiles, tile = blockIdx.x % tiles * Shape::COLUMNS;
  const int lane = threadIdx.x % LANES, own = int(threadIdx.x) / LANES * 2;  // own: the thread's first column in its tile
  const int columns = min(Shape::COLUMNS, p.values - tile);
  const size_t column = size_t(head) * p.values + tile + own;
  float a[2][RULE == Rule::SCAN_CHANNELS ? N : 1];
  if constexpr (RULE == Rule::SCAN_CHANNELS) load_decays<Shape>(a, p, column, lane, own, columns);
  if (p.keys < KEYS || columns < Shape::COLUMNS) {  // elements that no row fills must be zero: stale data could be NaN
    for (int i = threadIdx.x; i < p.stages * p.stage_rows * Stage::ROW; i += RECURRENCE_THREADS) ring[i] = 0.0f;
    __syncthreads();
  }
  wait_for_previous();
  const int sequence = blockIdx.y;
  const int first = int(step.cu_seqlens_q[sequence]), last = int(step.cu_seqlens_q[sequence + 1]);
  const uint32_t context = step.context_lens[sequence], slot = p.states.slots[sequence];
  if (context == 0 || first >= last) return;

  // Requests the state first, because it takes longest, even before it is known whether the sequence starts from zeros.
  float* const state = p.states.data + size_t(slot) * p.states.width + p.state_at + column * p.keys;
  float s[2][N];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    load_column<LANES, FOURS>(s[c], state + size_t(c) * p.keys, lane, own + c < columns ? p.keys : 0, p.wide_state);
  }
  const Stage stage(p, head, tile, columns);
  stage.copy(p, ring, first, min(p.stage_rows, last - first));
  copy_commit();
  if (context == uint32_t(last - first)) {
#pragma unroll
    for (int i = 0; i < N; i++) s[0][i] = s[1][i] = 0.0f;
  }

  // `waiting`: the chains of the previous row. Their sum over the lanes is written while the next row is computed.
  float waiting[2] = {0.0f, 0.0f};
  float* const out = p.out + column + lane;
  size_t to = size_t(first) * p.ld_out - p.ld_out;  // of the waiting row; at first there is none
  bool begun = false;
  const bool writes = lane < 2 && own + lane < columns;
  const auto write_waiting = [&] {
    const float sum = sum_of_two<LANES>(waiting[0], waiting[1], lane);
    if (begun && writes) out[to] = sum;
    begun = true;
    to += p.ld_out;
  };
  float* now = ring;
  float* next = ring + (p.stages - 1) * p.stage_rows * Stage::ROW;
  for (int at = first; at < last; at += p.stage_rows) {
    copy_wait<0>();
    __syncthreads();
    if (at + p.stage_rows < last) {
      stage.copy(p, next, at + p.stage_rows, min(p.stage_rows, last - at - p.stage_rows));
      copy_commit();
    }
    const int rows = min(p.stage_rows, last - at);
    const float* row = now + 4 * lane;
    const float* vectors = now + Stage::VECTORS + own;
    const float* scalars = now + Stage::SCALARS;
    float k[N];
    load_keys<LANES, FOURS>(k, row);
    for (int r = 0; r < rows; r++) {
      float q[N];
      load_keys<LANES, FOURS>(q, row + KEYS);
      const float2 x = *reinterpret_cast<const float2*>(vectors);
      Chains sums[2];
      if constexpr (RULE == Rule::DELTA || RULE == Rule::DELTA_KEYS) {
        const float decay = RULE == Rule::DELTA ? scalars[0] : 1.0f, beta = scalars[1];
        float fade[RULE == Rule::DELTA_KEYS ? N : 1];
        if constexpr (RULE == Rule::DELTA_KEYS) load_keys<LANES, FOURS>(fade, row + 2 * KEYS);
        Chains known[2];
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float factor = RULE == Rule::DELTA_KEYS ? __fmul_rn(fade[RULE == Rule::DELTA_KEYS ? i : 0], k[i]) : k[i];
          known[0].add(i, s[0][i], factor), known[1].add(i, s[1][i], factor);
        }
        float m[2] = {sum_of_lanes<LANES>(known[0].sum()), sum_of_lanes<LANES>(known[1].sum())};
        write_waiting();
#pragma unroll
        for (int c = 0; c < 2; c++) {
          if (RULE == Rule::DELTA) m[c] = __fmul_rn(decay, m[c]);
          const float news = __fmul_rn(beta, __fsub_rn(c ? x.y : x.x, m[c]));
#pragma unroll
          for (int i = 0; i < N; i++) {
            const float old = __fmul_rn(RULE == Rule::DELTA_KEYS ? fade[RULE == Rule::DELTA_KEYS ? i : 0] : decay, s[c][i]);
            s[c][i] = __fmaf_rn(k[i], news, old);
            sums[c].add(i, s[c][i], q[i]);
          }
        }
      } else {
        float2 factor{scalars[1], scalars[1]};
        if constexpr (RULE == Rule::SCAN_CHANNELS) factor = *reinterpret_cast<const float2*>(vectors + Shape::COLUMNS);
        const float decay = RULE == Rule::SCAN ? scalars[0] : 0.0f;
        write_waiting();
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const float step_of = c ? factor.y : factor.x, input = __fmul_rn(c ? x.y : x.x, step_of);
#pragma unroll
          for (int i = 0; i < N; i++) {
            float fade = decay;
            if constexpr (RULE == Rule::SCAN_CHANNELS) fade = power_of_two(__fmul_rn(step_of, a[c][i]));
            s[c][i] = __fmaf_rn(k[i], input, __fmul_rn(fade, s[c][i]));
            sums[c].add(i, s[c][i], q[i]);
          }
        }
      }
      waiting[0] = sums[0].sum(), waiting[1] = sums[1].sum();
      row += Stage::ROW, vectors += Stage::ROW, scalars += Stage::ROW;
      if (r + 1 < rows) load_keys<LANES, FOURS>(k, row);
    }
    float* const used = now;
    now = next, next = used;
  }
  write_waiting();
  store_columns<Shape>(s, p, state, lane, own, columns);
}

}  // namespace pen
