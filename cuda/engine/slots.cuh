// The kernels of slots.h.
#pragma once

#include "rows.cuh"

namespace pen {

constexpr int SLOT_THREADS = 128;

__global__ void __launch_bounds__(SLOT_THREADS) prepare_kernel(Slots s) {
  const int i = int(blockIdx.x) * SLOT_THREADS + int(threadIdx.x);
  if (i <= s.max_rows) s.cu_seqlens[i] = uint32_t(i);
  if (i < s.max_rows) s.sequences[i] = uint32_t(i);
}

// Grid: (max_rows).
__global__ void __launch_bounds__(SLOT_THREADS) place_rows_kernel(Slots s, RowChanges changes, Paging paging) {
  const int row = blockIdx.x, thread = threadIdx.x;
  if (row == 0 && thread == 0) {
    *s.turn = changes.turn;
    *s.results = s.flights[changes.turn];
  }
  if (row >= changes.num_rows) {
    if (thread > 0) return;
    s.row_slots[row] = s.sampled_slots[row] = s.mask_of[row] = s.num_logprobs[row] = -1;
    s.inputs[row] = 0;
    s.row_states[row] = 0;
    for (int group = 0; group < s.num_groups; group++) s.slot_mapping[size_t(group) * s.max_rows + row] = NO_SLOT;
    return set_position(s, row, 0, 0, false);
  }
  const pen_row change = changes.rows[row];
  const int slot = int(change.slot);
  for (uint32_t i = change.first_table; i < change.first_table + change.num_tables; i++) {
    const pen_table table = changes.tables[i];
    uint32_t* const to = slot_table(s, int(table.group), slot) + table.first;
    for (uint32_t j = thread; j < table.count; j += SLOT_THREADS) to[j] = changes.blocks[table.at + j];
  }
  __syncthreads();
  const uint32_t count = uint32_t(ceil_div(int(change.room), paging.block_size));
  for (int group = 0; group < s.num_groups && (change.is_new || change.num_tables > 0); group++) {
    const uint32_t left = blocks_left(s.groups[group], change.length, paging.block_size);
    const uint32_t* const from = slot_table(s, group, slot);
    uint32_t* const to = row_table(s, group, row);
    for (uint32_t j = thread; j < count; j += SLOT_THREADS) to[j] = j < left ? paging.zero_block : from[j];
  }
  __syncthreads();
  if (thread > 0) return;
  s.lengths[slot] = change.length;
  s.lags[slot] = change.length - change.position;
  s.ends[slot] = min(count * uint32_t(paging.block_size), paging.max_tokens);
  s.row_states[row] = change.state_slot;
  s.row_slots[row] = slot;
  s.sampled_slots[row] = change.samples ? slot : -1;
  s.inputs[row] = change.input;
  s.mask_of[row] = -1;
  s.num_logprobs[row] = change.num_logprobs;
  for (int group = 0; group < s.num_groups; group++) {
    s.slot_mapping[size_t(group) * s.max_rows + row] = place_of(s, group, row, change.length, true, paging.block_size);
  }
  set_position(s, row, change.length, change.length - change.position, true);
}

// The results of the next step go to the next place.
struct NextFlight {
  uint32_t turn;
  int32_t* results;

  __device__ __forceinline__ void read(const Slots& s) {
    turn = (*s.turn + 1) % NUM_FLIGHTS;
    results = s.flights[turn];
  }
  __device__ __forceinline__ void write(const Slots& s) const {
    *s.turn = turn;
    *s.results = results;
  }
};

// Grid and block as advance_rows() says.
__global__ void advance_kernel(Slots s, int num_rows, Paging paging) { advance_rows(s, num_rows, paging, NextFlight{}); }

}  // namespace pen
