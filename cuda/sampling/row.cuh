// A row of logits as the sampler sees it. Logits are adjusted on the fly, so that the raw row is kept for the log-probabilities.
#pragma once

#include <cfloat>

#include "../device/kernel.cuh"
#include "sampling.h"

namespace pen {

constexpr uint32_t SEEN_IN_PROMPT = 1u << 31, BIASED = 1u << 30, SUPPRESSED = 1u << 29, COUNT_BITS = SUPPRESSED - 1;

__host__ __device__ inline bool has_penalties(const SlotParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

// DRAFTS: rows may share a slot.
template <bool DRAFTS>
struct Row {
  const float* logits;
  const uint32_t* counts;    // null: nothing to adjust
  const uint32_t* mask;      // null: none
  const uint32_t* bias_ids;  // ascending; entries with equal ids all apply, in their order
  const float* biases;
  const SlotParams* params;  // on the device; unchanged while a row is read
  bool suppressing;
  const int32_t* drafts;  // [num_drafts] ids that count as generated, besides those that `counts` counts
  int num_drafts;

  __device__ __forceinline__ float at(int id) const { return adjusted(logits[id], id); }

  __device__ __forceinline__ bool plain() const { return counts == nullptr && mask == nullptr; }

  __device__ __forceinline__ float adjusted(float x, int id) const {
    if (counts != nullptr) {
      uint32_t word = counts[id];
      if constexpr (DRAFTS) {
        for (int i = 0; i < num_drafts; i++) word += drafts[i] == id;
      }
      if (word != 0) x = adjusted_by(x, id, word, params, bias_ids, biases, suppressing);
    }
    if (mask != nullptr && (mask[id / 32] >> (id % 32) & 1u) == 0 && x == x) x = -INFINITY;
    return x;
  }

 private:
  // Static and not inlined, so that the row itself can stay in registers.
  static __device__ __noinline__ float adjusted_by(float x, int id, uint32_t word, const SlotParams* p, const uint32_t* bias_ids,
                                                   const float* biases, bool suppressing) {
    const uint32_t count = word & COUNT_BITS;
    const float repetition = p->repetition_penalty;
    if (repetition != 1.0f && (word & (SEEN_IN_PROMPT | COUNT_BITS)) != 0 && fabsf(x) < INFINITY) {
      x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
      // A tiny penalty can overflow. That means a very likely id, not a broken row.
      x = fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
    }
    if (count > 0) x = __fsub_rn(x, __fadd_rn(p->presence_penalty, __fmul_rn(p->frequency_penalty, __uint2float_rn(count))));
    if (word & BIASED) {
      const uint32_t num_biases = p->num_biases;
      uint32_t lo = 0, hi = num_biases;  // the first entry of this id
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

// The number of rows in front of a row that share its slot.
template <bool DRAFTS>
__device__ __forceinline__ int rows_ahead(const Sample& args, int row, int slot) {
  int ahead = 0;
  if constexpr (DRAFTS) {
    while (ahead < row && args.slots[row - 1 - ahead] == slot) ahead++;
  }
  return ahead;
}

template <bool DRAFTS>
__device__ __forceinline__ Row<DRAFTS> make_row(const SamplerState& state, const Sample& args, int row, int slot, const SlotParams& p) {
  Row<DRAFTS> r;
  const int ahead = rows_ahead<DRAFTS>(args, row, slot);
  r.logits = args.logits + size_t(row) * state.vocab;
  r.suppressing = p.num_suppressed > 0 && p.num_generated + uint32_t(ahead) < p.min_tokens;
  r.drafts = DRAFTS ? args.drafts.next + row - ahead : nullptr;
  r.num_drafts = has_penalties(p) ? ahead : 0;
  r.params = state.params + slot;
  r.bias_ids = state.bias_ids + size_t(slot) * MAX_BIASES;
  r.biases = state.biases + size_t(slot) * MAX_BIASES;
  r.counts = has_penalties(p) || p.num_biases > 0 || r.suppressing ? state.counts + size_t(slot) * state.vocab : nullptr;
  const int mask = args.masks != nullptr && args.mask_of != nullptr ? args.mask_of[row] : -1;
  r.mask = mask >= 0 ? args.masks + size_t(mask) * ceil_div(state.vocab, 32) : nullptr;
  return r;
}

}  // namespace pen
