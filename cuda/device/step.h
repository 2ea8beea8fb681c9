// A step's metadata on the device, as several ops read it.
#pragma once

#include <stdint.h>

namespace pen {

// Rows past the real ones (a graph's bucket is larger) have slot_mapping NO_SLOT, sequences past the real ones a context length of 0.
struct StepView {
  const uint32_t* positions;     // [num_tokens]
  const uint32_t* slot_mapping;  // [num_tokens] block * block_size + offset
  const uint32_t* cu_seqlens_q;  // [num_seqs + 1]
  const uint32_t* context_lens;  // [num_seqs]
  const uint32_t* block_tables;  // [num_seqs, max_blocks]
  int num_tokens, num_seqs, max_blocks;
  int max_query;    // the most rows of a sequence in this step (1: decode only)
  int max_context;  // upper bound of context_lens
};
constexpr uint32_t NO_SLOT = 0xffffffffu;

}  // namespace pen
