// Finds drafts, and accepts what was drawn for rows that share a slot.
#pragma once

#include "../embedding/embedding.h"
#include "passes.cuh"

namespace pen {

// Grid: (ceil(rows / DRAFT_THREADS)), a thread per row.
__global__ void __launch_bounds__(DRAFT_THREADS) find_drafts_kernel(SamplerState state, const int32_t* inputs, int num_tokens,
                                                                    const int32_t* rows, int num_rows, int32_t* next) {
  let_next_start();
  wait_for_previous();
  const int i = int(blockIdx.x) * DRAFT_THREADS + int(threadIdx.x);
  if (i >= num_rows) return;
  const int row = rows[i] + 1;
  next[i] = row < num_tokens ? id_of(inputs[row], state.last) : -1;
}

// Grid: (ceil(rows / DRAFT_THREADS)). The thread of a slot's first row goes through all rows of the slot.
__global__ void __launch_bounds__(DRAFT_THREADS) accept_kernel(SamplerState state, Sample args) {
  let_next_start();
  wait_for_previous();
  const int first = int(blockIdx.x) * DRAFT_THREADS + int(threadIdx.x);
  if (first >= args.num_rows) return;
  const int slot = args.slots[first];
  const Drafts& drafts = args.drafts;
  const auto shares_slot = [&](int row) { return row > -drafts.num_before && args.slots[row - 1] == slot; };
  if (first > 0 && shares_slot(first)) return;
  const auto is_followed = [&](int row) { return drafts.drawn[row] >= 0 && drafts.drawn[row] == drafts.next[row]; };
  int32_t* const results = *args.results;
  bool is_valid = !shares_slot(first) || is_followed(first - 1);
  for (int row = first; row < args.num_rows && args.slots[row] == slot; row++) {
    if (is_valid) {
      move_on(state, slot, drafts.drawn[row]);
    } else {
      drafts.drawn[row] = SKIPPED;
    }
    results[drafts.num_before + row] = drafts.drawn[row];
    is_valid = is_valid && is_followed(row);
  }
}

}  // namespace pen
