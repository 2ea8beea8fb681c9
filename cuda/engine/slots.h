// Sequences on the device between decode steps.
//
// A slot holds what a sequence is between steps: its length, the tokens that its blocks have room for, and its block tables (and, in the
// sampler's state, its last id and how it samples). A decode step has a row per sequence. The rows are laid out here once, in the form that
// kernels read, and stay. The host sends only what the device cannot know: which slots the rows have, new blocks, a token that was not
// sampled. After a step's sampling, `advance` moves slots and rows on by one token, so the next step of the same sequences needs nothing
// from the host, whoever starts it. A row whose slot has no room left has no place in the cache until the host sends a block.
//
// Kernels may read rows before they wait for their predecessor. So a step's first kernel starts only after those of this file have ended.
#pragma once

#include "../device/launch.h"
#include "../device/step.h"
#include "memory.h"
#include "penstock.h"

namespace pen {

constexpr int NUM_FLIGHTS = 3;  // places for results, which take turns
constexpr int LOOP_WORDS = 3;

// The words behind the ids in the place for a loop's results, [PEN_MAX_LOOP_STEPS, max_rows]. Out: how many steps have run, once the loop
// has ended. In: the most steps, and the loop's number.
enum LoopWord { LOOP_ENDED, LOOP_STEPS, LOOP_NUMBER };

// Device arrays. Row tables are what kernels read: blocks before a window are replaced by the block of zeros.
struct Slots {
  uint32_t *lengths, *ends;            // [max_slots] tokens in the cache; tokens that the blocks hold
  uint32_t* lags;                      // [max_slots] how far positions lie behind the number of tokens
  uint32_t* tables;                    // [num_groups, max_slots, max_blocks]
  int32_t *row_slots, *sampled_slots;  // [max_rows] the slot of each row, -1: padding; -1 also for rows that do not sample
  int32_t *inputs, *mask_of, *num_logprobs;                       // [max_rows] as in Step
  uint32_t *positions, *context_lens, *row_states, *token_types;  // [max_rows]
  uint32_t *cu_seqlens, *sequences;                               // [max_rows + 1], [max_rows] constant: 0, 1, 2 …
  uint32_t* slot_mapping;                                         // [num_groups, max_rows]
  uint32_t* row_tables;                                           // [num_groups, max_rows, max_blocks]
  int32_t** results;                                              // as in Step
  int32_t** flights;                                              // [NUM_FLIGHTS] the addresses that `results` takes in turn
  uint32_t* turn;                                                 // the index of `results` in `flights`
  uint32_t* loop;                                                 // [LOOP_WORDS] see loop.h
  const uint32_t* end_loops;  // in pinned memory: the number of the last loop that ends early
  const pen_group* groups;                                        // [num_groups]
  int num_groups, max_slots, max_rows, max_blocks;
};

// The device memory of `Slots`.
struct SlotArrays {
  Buffer words, flights, groups;
  SlotArrays(const pen_model_desc& desc, int max_rows, Allocator& take);
  Slots view(const pen_model_desc& desc, int max_rows) const;
};

// Where the blocks of a cache are.
struct Paging {
  int block_size;
  uint32_t zero_block;
  uint32_t max_tokens;  // per sequence
};

// Changes to the rows of a step, which the host writes to pinned memory and the kernel reads.
struct RowChanges {
  const pen_row* rows;      // [num_rows]
  const pen_table* tables;  // those of a row are neighbours
  const uint32_t* blocks;
  int num_rows;
  uint32_t turn;
};

// Sets the constant arrays, and where results go.
void prepare(const Launch& launch, const Slots& slots, const pen_group* groups, int32_t* const (&flights)[NUM_FLIGHTS]);
// Sets up all rows, those beyond num_rows as padding.
void place_rows(const Launch& launch, const Slots& slots, const RowChanges& changes, const Paging& paging);
// Moves the first `num_rows` rows and their slots on by one token.
void advance(const Launch& launch, const Slots& slots, int num_rows, const Paging& paging);

}  // namespace pen
