// One row of logits as the sampler sees it: adjusted on the fly, so that the raw row stays for the log-probabilities.
//
// The order is that of src/logits: repetition penalty, presence and frequency penalties, biases, suppression before min_tokens;
// then the grammar's mask. A NaN stays a NaN whatever forbids its id: the row is broken.
#pragma once

#include <cfloat>

#include "../src/ops.h"
#include "philox.cuh"
#include "select.cuh"

namespace pen {

constexpr uint32_t SEEN_IN_PROMPT = 1u << 31, BIASED = 1u << 30, SUPPRESSED = 1u << 29, COUNT_BITS = SUPPRESSED - 1;

constexpr int CHUNK = 4096;  // ids a block of the passes over all rows
constexpr int SUM_BLOCK = 256, SUM_LANES = 16;  // the CPU's blocks and lanes of sums: they fix the rounding of a row's total
constexpr uint64_t BROKEN = ~0ull;

// Weights at most this far below the largest: buckets of log2. The last holds what weighs nothing.
constexpr int NOTHING = EXPONENTS - 1;

__host__ __device__ inline bool has_penalties(const SlotParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

struct Row {
  const float* logits;
  const uint32_t* counts;    // null: nothing to adjust
  const uint32_t* mask;      // null: none
  const uint32_t* bias_ids;  // ascending; of equal ids all apply, in their order
  const float* biases;
  const SlotParams* params;  // on the device; nothing changes them while a row is read
  bool suppressing;

  __device__ __forceinline__ float at(int id) const { return adjusted(logits[id], id); }

  __device__ __forceinline__ bool plain() const { return counts == nullptr && mask == nullptr; }

  __device__ __forceinline__ float adjusted(float x, int id) const {
    if (counts != nullptr) {
      const uint32_t word = counts[id];
      if (word != 0) x = adjusted_by(x, id, word, params, bias_ids, biases, suppressing);
    }
    if (mask != nullptr && (mask[id / 32] >> (id % 32) & 1u) == 0 && x == x) x = -INFINITY;
    return x;
  }

 private:
  // Static, and not inlined: the row itself can stay in registers.
  static __device__ __noinline__ float adjusted_by(float x, int id, uint32_t word, const SlotParams* p, const uint32_t* bias_ids,
                                                   const float* biases, bool suppressing) {
    const uint32_t count = word & COUNT_BITS;
    const float repetition = p->repetition_penalty;
    if (repetition != 1.0f && (word & (SEEN_IN_PROMPT | COUNT_BITS)) != 0 && fabsf(x) < INFINITY) {
      x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
      // A tiny penalty overflows: that is a very likely id, not a broken row.
      x = fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
    }
    if (count > 0) x = __fsub_rn(x, __fadd_rn(p->presence_penalty, __fmul_rn(p->frequency_penalty, __uint2float_rn(count))));
    if (word & BIASED) {
      const uint32_t num_biases = p->num_biases;
      uint32_t lo = 0, hi = num_biases;  // the first of this id
      while (lo < hi) {
        const uint32_t middle = (lo + hi) / 2;
        if (bias_ids[middle] < uint32_t(id)) lo = middle + 1;
        else hi = middle;
      }
      for (; lo < num_biases && bias_ids[lo] == uint32_t(id); lo++) x = __fadd_rn(x, biases[lo]);
    }
    if ((word & SUPPRESSED) != 0 && suppressing && x == x) x = -INFINITY;
    return x;
  }
};

__device__ __forceinline__ Row make_row(const SamplerState& state, const Sample& args, int row, int slot, const SlotParams& p) {
  Row r;
  r.logits = args.logits + size_t(row) * state.vocab;
  r.suppressing = p.num_suppressed > 0 && p.num_generated < p.min_tokens;
  r.params = state.params + slot;
  r.bias_ids = state.bias_ids + size_t(slot) * MAX_BIASES;
  r.biases = state.biases + size_t(slot) * MAX_BIASES;
  r.counts = has_penalties(p) || p.num_biases > 0 || r.suppressing ? state.counts + size_t(slot) * state.vocab : nullptr;
  const int mask = args.masks != nullptr && args.mask_of != nullptr ? args.mask_of[row] : -1;
  r.mask = mask >= 0 ? args.masks + size_t(mask) * ceil_div(state.vocab, 32) : nullptr;
  return r;
}

// A logit and its id as one number: the largest is the largest logit with the lowest id.
__device__ __forceinline__ uint64_t best_key(float x, int id) {
  return uint64_t(order_key(x)) << 32 | uint32_t(~uint32_t(id));
}
__device__ __forceinline__ int best_id(uint64_t key) { return int(~uint32_t(key)); }
__device__ __forceinline__ float best_value(uint64_t key) { return key_value(uint32_t(key >> 32)); }
// Whether a row's best key is that of a row that can be sampled: no NaN, no +inf, something finite.
__device__ __forceinline__ bool is_sound(uint64_t key) {
  return key != BROKEN && fabsf(best_value(key)) < INFINITY;
}

__device__ __forceinline__ uint64_t warp_max_key(uint64_t key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// Which filters a slot has on.
struct Filters {
  bool top_k, min_p, top_p;
  __device__ Filters(const SlotParams& p, int vocab)
      : top_k(p.top_k > 0 && p.top_k < uint32_t(vocab)), min_p(p.min_p > 0.0f), top_p(p.top_p < 1.0f) {}
  __device__ bool any() const { return top_k || min_p || top_p; }
};

// The bucket of a logit by its distance to the largest, in powers of two of the weight: no larger logit has a later bucket.
__device__ __forceinline__ float bucket_scale(float temperature) { return fminf(__fdiv_rn(1.44269504f, temperature), 1e30f); }
__device__ __forceinline__ int logit_bucket(float x, float max, float scale) {
  const float steps = __fmul_rn(__fsub_rn(max, x), scale);
  return steps < float(NOTHING) ? int(steps) : NOTHING;
}

// What the passes over all rows leave for the block that finishes a row.
struct Scratch {
  uint64_t* keys;      // [num_rows, chunks] the best of a chunk, or BROKEN
  double* sums;        // [num_rows, sum blocks] of weights
  uint64_t* masses;    // [num_rows, EXPONENTS] mantissas of the weights
  uint32_t* counts;    // [num_rows, EXPONENTS]
  int chunks, sum_blocks;
};

// The best of a row from its chunks', by one warp.
__device__ __forceinline__ uint64_t row_best(const Scratch& scratch, int row) {
  uint64_t key = 0;
  for (int c = threadIdx.x % WARP; c < scratch.chunks; c += WARP) {
    const uint64_t other = scratch.keys[size_t(row) * scratch.chunks + c];
    key = other > key ? other : key;
  }
  return warp_max_key(key);
}

// Writes a row's result and records it; by one thread.
__device__ __forceinline__ void record(const SamplerState& state, const Sample& args, int row, int slot, int id) {
  int32_t* const copy = args.copy != nullptr ? *args.copy : nullptr;  // first: the answer takes its time
  args.sampled[row] = id;
  state.last[slot] = id;
  if (id >= 0) {
    SlotParams& p = state.params[slot];
    if (has_penalties(p)) state.counts[size_t(slot) * state.vocab + id] += 1;
    p.num_generated += 1;
  }
  if (copy != nullptr) copy[row] = id;
}
constexpr int NOT_FINITE = -2;

}  // namespace pen
