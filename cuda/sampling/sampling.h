// Sampling: one id per row of logits, and log-probabilities.
//
// The definition is that of src/logits, so the same logits and seed give the same id on both. Only sums of doubles may differ in their last
// bits. Per row, in this order:
//   adjusted   repetition penalty; presence and frequency penalties; biases, in the order in which they were given; ids suppressed before
//              min_tokens; the grammar's mask. A NaN stays a NaN even if its id is forbidden.
//   checked    A row with a NaN or +inf, or without any finite logit, cannot be sampled: NOT_FINITE.
//   greedy     With temperature 0: the largest logit, and among equal ones the lowest id.
//   weighed    weight = e^((logit − largest) / temperature) in float32, each step rounded (philox.cuh).
//   filtered   top-k by logit (lower ids first among equal ones), then min-p, then top-p: the shortest prefix, heaviest first, of the mass.
//   drawn      u · mass with u from Philox (seed, number of tokens generated so far), by the running sum in the order of ids, or in
//              descending order of weights under top-p.
// Log-probabilities are the log-softmax of the raw logits, with float64 sums.
//
// Several rows of a slot are all drawn at once, each as if the inputs that follow the rows before it (drafts) had been drawn from these.
// Then each slot accepts its rows in order, up to and including the first that drew another id than its draft. The others are SKIPPED. So
// the accepted ids are those of one row at a time.
#pragma once

#include "../device/launch.h"

namespace pen {

// Limits of a slot. They must not be lower than what the API accepts, or one request could fail a whole step.
constexpr int MAX_BIASES = 4096;      // logit biases
constexpr int MAX_SUPPRESSED = 2048;  // stop ids that min_tokens forbids: the request's and the vocabulary's own
constexpr int MAX_LOGPROBS = 20;

constexpr int NOT_FINITE = -2, SKIPPED = -3;

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

// The lists of a slot, in device memory. `prompt` may be omitted without a repetition penalty, `generated` without any penalty.
struct SlotLists {
  const uint32_t *prompt, *generated, *bias_ids, *suppressed;
  const float* biases;
  uint32_t num_prompt, num_generated;
};
// Sets up a slot: stores its parameters, clears its counts, and marks the ids of its lists.
void sampler_reset(const Launch& launch, const SamplerState& state, uint32_t slot, const SlotParams& params, const SlotLists& lists);

// Rows of which several share a slot. Such rows are neighbours.
struct Drafts {
  const int32_t* next;  // [num_rows] the id of the input after each row; negative: none
  int32_t* drawn;       // [num_rows] out: as `results`
  int num_before;       // rows of the same step, in front of these, that were sampled before; next and drawn hold theirs, too
};
// Finds `next` for the rows that `rows` lists. inputs: [num_tokens], as those of embedding.h. Must run before any of the rows is sampled.
void find_drafts(const Launch& launch, const SamplerState& state, const int32_t* inputs, int num_tokens, const int32_t* rows, int num_rows,
                 int32_t* next);

struct Sample {
  const float* logits;  // [num_rows, vocab]
  int num_rows;
  const int32_t* slots;    // [num_rows] on the device; -1: no row here (padding)
  const uint32_t* masks;   // null, or [num_masks, ceil(vocab / 32)]: bit 0 forbids the id
  const int32_t* mask_of;  // [num_rows] row of masks, or -1; null: no masks at all
  int32_t* const* results;  // where the address of the output is stored: [num_rows] an id or NOT_FINITE; rows of padding are not written
  void* workspace;
  size_t workspace_bytes;
  Drafts drafts;  // without `next`: each row has a slot of its own
};
size_t sampler_workspace(int num_rows, int vocab);
// Samples one id per row and writes it to `results` and to state.last. Rows' parameters (slots, mask_of, the slots' parameters) are read
// before the kernels' wait. So no kernel that writes these may be a programmatic predecessor, directly or through kernels in between. That
// includes another call and sampler_reset.
void sample(const Launch& launch, const SamplerState& state, const Sample& args);

struct Logprobs {
  const float* logits;  // [num_rows, vocab]
  int num_rows;
  const int32_t* slots;   // [num_rows] negative: no row here
  const int32_t* chosen;  // [num_rows] ids whose log-probability is requested; null: what each row's slot sampled last
  const int32_t* num_likeliest;  // [num_rows] how many of the likeliest ids to return with the chosen one; -1: no request
  float* logprobs;  // [num_rows, 1 + MAX_LOGPROBS] out: the chosen one's, then the likeliest in descending order; NaN: no distribution
  int32_t* ids;     // [num_rows, MAX_LOGPROBS] out: the likeliest ids; -1 beyond the vocabulary
};
void logprobs(const Launch& launch, const SamplerState& state, const Logprobs& args);

}  // namespace pen
