// Sampling: one id per row of logits, and log-probabilities.
//
// The definition is that of src/logits, so that the same logits and seed give the same id on both; only sums of doubles may differ in
// their last bits. In this order, per row:
//   adjusted   repetition penalty; presence and frequency penalties; biases, in the order in which they were given; ids suppressed before
//              min_tokens; the grammar's mask. A NaN stays a NaN even if its id is forbidden.
//   checked    A row with a NaN or +inf, or without any finite logit, cannot be sampled: NOT_FINITE.
//   greedy     With temperature 0: the largest logit; of equal ones the lowest id.
//   weighed    weight = e^((logit − largest) / temperature) in float32, each step rounded (philox.cuh).
//   filtered   top-k by logit (of equal ones lower ids first), then min-p, then top-p: the shortest prefix, heaviest first, of the mass.
//   drawn      u · mass with u from Philox (seed, number of tokens generated so far), by the running sum in the order of ids; under top-p
//              in descending order of weights.
// Log-probabilities are the log-softmax of the raw logits: sums are float64.
#pragma once

#include "../device/launch.h"

namespace pen {

// Limits of a slot. They must not be below what the API lets through, or one request could fail a whole step.
constexpr int MAX_BIASES = 4096;      // logit biases
constexpr int MAX_SUPPRESSED = 2048;  // stop ids that min_tokens forbids: the request's and the vocabulary's own
constexpr int MAX_LOGPROBS = 20;

constexpr int NOT_FINITE = -2;

struct SlotParams {
  float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  uint32_t top_k, min_tokens, num_biases, num_suppressed, num_generated;
  uint64_t seed;
};

// Device arrays that live as long as the model.
struct SamplerState {
  SlotParams* params;  // [max_slots]
  uint32_t* counts;    // [max_slots, vocab] times generated; bit 31: in the prompt, 30: has a bias, 29: suppressed
  uint32_t* bias_ids;  // [max_slots, MAX_BIASES] ascending
  float* biases;       // [max_slots, MAX_BIASES]
  int32_t* last;       // [max_slots] what the slot sampled last: an id, or NOT_FINITE
  int max_slots, vocab;
};

// The lists of a slot, in device memory. `prompt` may be left out if there is no repetition penalty, `generated` if there is no penalty.
struct SlotLists {
  const uint32_t *prompt, *generated, *bias_ids, *suppressed;
  const float* biases;
  uint32_t num_prompt, num_generated;
};
// Sets a slot up: stores its parameters, clears its counts, marks the ids of its lists.
void sampler_reset(const Launch& launch, const SamplerState& state, uint32_t slot, const SlotParams& params, const SlotLists& lists);

struct Sample {
  const float* logits;  // [num_rows, vocab]
  int num_rows;
  const int32_t* slots;    // [num_rows] device; -1: no row here (padding)
  const uint32_t* masks;   // null, or [num_masks, ceil(vocab / 32)]: bit 0 forbids the id
  const int32_t* mask_of;  // [num_rows] row of masks, or -1; null: no masks at all
  int32_t* const* results;  // points to the address of [num_rows] out: an id or NOT_FINITE; rows of padding are not written
  void* workspace;
  size_t workspace_bytes;
};
size_t sampler_workspace(int num_rows, int vocab);
// What a row sampled goes to `results` and to state.last. What rows ask for (slots, mask_of, the slots' parameters) is read before the
// kernels' wait: no kernel that writes these may be a programmatic predecessor, directly or through kernels between, which includes
// another call and sampler_reset.
void sample(const Launch& launch, const SamplerState& state, const Sample& args);

struct Logprobs {
  const float* logits;  // [num_rows, vocab]
  int num_rows;
  const int32_t* slots;   // [num_rows] negative: no row here
  const int32_t* chosen;  // [num_rows] ids whose log-probability is asked for; null: what each row's slot sampled last
  const int32_t* num_likeliest;  // [num_rows] how many of the likeliest ids beside the chosen one; -1: the row does not ask
  float* logprobs;  // [num_rows, 1 + MAX_LOGPROBS] out: the chosen one's, then the likeliest in descending order; NaN: no distribution
  int32_t* ids;     // [num_rows, MAX_LOGPROBS] out: those of the likeliest; -1 past the vocabulary
};
void logprobs(const Launch& launch, const SamplerState& state, const Logprobs& args);

}  // namespace pen
