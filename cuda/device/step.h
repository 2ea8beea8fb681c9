// A step's metadata on the device, as several ops read it.
#pragma once

#include <stdint.h>

namespace pen {

// Rows past the real ones (a graph's bucket is larger) have slot_mapping NO_SLOT, sequences past the real ones a context length of 0. A
// view may be of some of a step's sequences: the arrays are those of the whole step even then, and `sequences` names the view's.
struct StepView {
  const uint32_t* positions;     // [num_tokens]
  const uint32_t* slot_mapping;  // [num_tokens] block * block_size + offset
  const uint32_t* cu_seqlens_q;  // [num_seqs + 1]
  const uint32_t* context_lens;  // [num_seqs]
  const uint32_t* block_tables;  // [num_seqs, max_blocks]
  int num_tokens, num_seqs, max_blocks;
  int max_query;    // the most rows of a sequence in this step (1: decode only)
  int max_context;  // upper bound of context_lens
  // [num_seqs] the numbers of the view's sequences, whose bounds max_query and max_context are then; null: all of them. Attention alone
  // takes views of some.
  const uint32_t* sequences = nullptr;

  // The number of the view's sequence i. A view of all reads no memory for it.
  __device__ int sequence(unsigned i) const { return static_cast<int>(sequences == nullptr ? i : sequences[i]); }
};
constexpr uint32_t NO_SLOT = 0xffffffffu;

}  // namespace pen
