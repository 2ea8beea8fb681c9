// A step's metadata on the device, in the form that several ops read.
#pragma once

#include <stdint.h>

namespace pen {

// Padding rows (a graph may have more rows than the step) have slot_mapping NO_SLOT, and padding sequences have a context length of 0. A
// view may cover some of a step's sequences. Its arrays are still those of the whole step, and `sequences` lists the view's.
struct StepView {
  const uint32_t* positions;     // [num_tokens]
  const uint32_t* slot_mapping;  // [num_tokens] block * block_size + offset
  const uint32_t* cu_seqlens_q;  // [num_seqs + 1]
  const uint32_t* context_lens;  // [num_seqs]
  const uint32_t* block_tables;  // [num_seqs, max_blocks]
  int num_tokens, num_seqs, max_blocks;
  int max_query;    // most rows of a sequence in this step (1: decode only)
  int max_context;  // upper bound of context_lens
  // [num_seqs] the numbers of the view's sequences, to which max_query and max_context then apply. Null: all sequences. Only attention uses
  // views of some sequences.
  const uint32_t* sequences = nullptr;
  // [num_tokens, 2] the second and third position of each row. Null: they equal the first. Only rotations read them.
  const uint32_t* grid = nullptr;

  // [num_tokens, 2] where a row's whole run begins and ends, as places in its sequence; equal: it is in none. Null: the step has no whole
  // runs. Only general attention reads them.
  const uint32_t* runs = nullptr;

  // The number of the view's sequence i. A view of all sequences reads no memory for it.
  __device__ int sequence(unsigned i) const { return static_cast<int>(sequences == nullptr ? i : sequences[i]); }
};
constexpr uint32_t NO_SLOT = 0xffffffffu;

}  // namespace pen
