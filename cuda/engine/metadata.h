// A step's metadata: its layout, its contents on the host and its place on the device.
#pragma once

#include <stddef.h>

#include <vector>

#include "../device/step.h"
#include "penstock.h"
#include "slots.h"

namespace pen {

// Rounds the number of sequences up. Graphs are captured for rounded numbers of sequences, of a lone prompt's rows and of blocks per
// sequence, so that few graphs serve every batch.
int round_seqs(int num_seqs);
int round_rows(int num_rows);
// Rounds up to powers of two, starting at 256 tokens.
int round_blocks(int num_blocks, int block_size);

// Offsets in a step's metadata, which is sent in one copy.
struct MetaLayout {
  int num_tokens, num_seqs, num_rows, max_blocks, num_groups;
  bool has_grid;  // whether rows have three positions
  bool has_runs;  // whether there are whole runs
  size_t results, inputs, positions, grid, runs, token_types, slot_mapping, cu_seqlens, context_lens,
      slots, gather, mask_of, num_logprobs, state_slots, sequences, block_tables, size;
  MetaLayout(int num_tokens, int num_seqs, int num_rows, int max_blocks, int num_groups, bool has_grid, bool has_runs);
};

// Bounds of a step's sequences, known to the host. A decode step needs the first two only.
struct StepBounds {
  int max_query, max_context;
  int num_single = 0, single_context = 0;  // sequences with one row, and their longest context
  int many_context = 0;                    // longest context of the others
  bool shares_slots = false;               // whether a sequence has several sampled rows
  bool moved = false;                      // whether a row's position is not its place in its sequence
};

// A step's metadata on the device.
struct Step {
  StepView view;                // with the slot mapping and block tables of the first cache group
  int32_t* const* results;      // where the address of the sampled ids in pinned memory is stored
  const int32_t* inputs;        // [num_tokens]
  const uint32_t* token_types;  // [num_tokens]
  const int32_t* slots;         // [num_rows] -1: no row here
  const int32_t* gather;        // [num_rows] or null: every row samples
  const int32_t* mask_of;       // [num_rows]
  const int32_t* num_logprobs;  // [num_rows]
  const uint32_t* state_slots;  // [num_seqs]
  const uint32_t* sequences;    // [num_seqs] their numbers: sequences with one row first, then the others
  StepBounds bounds;
  size_t mapping_stride, table_stride;  // from one cache group to the next
  int num_rows;  // of logits: in a decode step those of all sequences, else the sampled ones
  bool has_prefill, shares_slots;  // whether a sequence has rows of a prompt, or several sampled rows
  bool of_slots;                   // whether the rows are those of slots.h, which move on after the sampling

  StepView view_of(uint32_t group) const {
    StepView of = view;
    of.slot_mapping += group * mapping_stride;
    of.block_tables += group * table_stride;
    return of;
  }
  // A view of the sequences with one row, so that no kernel has blocks for the others.
  StepView single_of(StepView of) const {
    if (!has_prefill) return of;
    of.num_seqs = bounds.num_single, of.max_query = 1, of.max_context = bounds.single_context;
    of.sequences = sequences;
    return of;
  }
  // A view of the sequences with more rows, for a step that has any.
  StepView many_of(StepView of) const {
    of.num_seqs -= bounds.num_single, of.max_context = bounds.many_context;
    of.sequences = sequences + bounds.num_single;
    return of;
  }
};

// The step whose metadata starts at `base` on the device.
Step step_at(uint8_t* base, const MetaLayout& layout, const StepBounds& bounds);
// A decode step of the first `num_rows` rows of the slots.
Step step_of(const Slots& slots, int num_rows, const StepBounds& bounds);

// The KV cache as the metadata refers to it.
struct CacheShape {
  std::vector<pen_group> groups;
  int block_size;
  uint32_t zero_block;  // never written; replaces blocks before a window, because kernels read whole tiles of 64 tokens
};

// Writes a batch's metadata to `base` on the host. Rows and sequences that the batch does not have are padding, which no kernel acts on.
// `results`: where kernels write the sampled ids. `row_of`: [num_sampled] where a sampled row's logits are.
void fill_metadata(uint8_t* base, const MetaLayout& layout, const pen_batch& batch, int32_t* results, const std::vector<int32_t>& row_of,
                   const CacheShape& cache);

template <typename T>
T* at(uint8_t* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

}  // namespace pen
