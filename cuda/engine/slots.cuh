// The kernels of slots.h.
#pragma once

#include "../device/kernel.cuh"
#include "slots.h"

namespace pen {

constexpr int SLOT_THREADS = 128, ADVANCE_ROWS = 8;
constexpr uint32_t MAX_GROUPS = 1024 / ADVANCE_ROWS;

// The number of leading blocks that a row at `position` does not see.
__device__ __forceinline__ uint32_t blocks_left(const pen_group& group, uint32_t position, int block_size) {
  if (group.window == 0) return 0;
  const uint32_t seen = group.chunked                  ? position / group.window * group.window
                        : position + 1 > group.window ? position + 1 - group.window
                                                      : 0;
  return seen / uint32_t(block_size);
}

__device__ __forceinline__ uint32_t* slot_table(const Slots& s, int group, int slot) {
  return s.tables + (size_t(group) * s.max_slots + slot) * s.max_blocks;
}
__device__ __forceinline__ uint32_t* row_table(const Slots& s, int group, int row) {
  return s.row_tables + (size_t(group) * s.max_rows + row) * s.max_blocks;
}

// Where the token at `position` of a row lies in a group's cache. The row's table is up to date.
__device__ __forceinline__ uint32_t place_of(const Slots& s, int group, int row, uint32_t position, bool has_room, int block_size) {
  const uint32_t size = uint32_t(block_size);
  return has_room ? row_table(s, group, row)[position / size] * size + position % size : NO_SLOT;
}

// Lets a row stand for the token behind `length` others, by one thread, except for its places. Its position lies `lag` behind.
__device__ __forceinline__ void set_position(const Slots& s, int row, uint32_t length, uint32_t lag, bool has_room) {
  s.positions[row] = has_room ? length - lag : 0;
  s.context_lens[row] = has_room ? length + 1 : 0;
}

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
  const uint32_t count = uint32_t(ceil_div(int(change.length) + 1, paging.block_size));
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
  s.ends[slot] = count * uint32_t(paging.block_size);
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

// Grid: (ceil(rows / ADVANCE_ROWS)). Block: (ADVANCE_ROWS, groups), a thread per row and group. What is read before the wait was written
// before the step's first kernel began, so the reads take no time.
__global__ void advance_kernel(Slots s, int num_rows, Paging paging) {
  const int row = int(blockIdx.x) * ADVANCE_ROWS + int(threadIdx.x), group = threadIdx.y;
  const bool leads = row == 0 && group == 0;
  const uint32_t turn = leads ? (*s.turn + 1) % NUM_FLIGHTS : 0;
  int32_t* const results = leads ? s.flights[turn] : nullptr;
  const int slot = row < num_rows ? s.row_slots[row] : -1;
  const uint32_t length = slot < 0 ? 0 : s.lengths[slot] + 1, lag = slot < 0 ? 0 : s.lags[slot];
  const bool has_room = slot >= 0 && length < s.ends[slot];
  const pen_group of = s.groups[group];
  const uint32_t place = place_of(s, group, row, length, has_room, paging.block_size);
  __syncthreads();  // all threads of a row have read its length
  wait_for_previous();
  if (leads) {
    *s.turn = turn;
    *s.results = results;
  }
  if (slot < 0) return;
  const uint32_t left = blocks_left(of, length, paging.block_size);
  for (uint32_t i = blocks_left(of, length - 1, paging.block_size); i < left; i++) row_table(s, group, row)[i] = paging.zero_block;
  s.slot_mapping[size_t(group) * s.max_rows + row] = place;
  if (group > 0) return;
  s.inputs[row] = -1 - slot;
  s.lengths[slot] = length;
  set_position(s, row, length, lag, has_room);
}

}  // namespace pen
