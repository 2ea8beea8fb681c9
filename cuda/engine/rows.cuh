// What kernels that move rows on share.
#pragma once

#include "../device/kernel.cuh"
#include "slots.h"

namespace pen {

constexpr int ADVANCE_ROWS = 8;
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

// Moves the first `num_rows` rows and their slots on by one token. `results`: what the first thread reads before the wait and writes after
// it, to move the place of results on. Grid: (ceil(rows / ADVANCE_ROWS)). Block: (ADVANCE_ROWS, groups), a thread per row and group. What
// is read before the wait was written before the step's first kernel began, so the reads take no time.
template <class Results>
__device__ __forceinline__ void advance_rows(const Slots& s, int num_rows, const Paging& paging, Results results) {
  const int row = int(blockIdx.x) * ADVANCE_ROWS + int(threadIdx.x), group = threadIdx.y;
  const bool leads = row == 0 && group == 0;
  if (leads) results.read(s);
  const int slot = row < num_rows ? s.row_slots[row] : -1;
  // A row without room stays at its end, within its tables.
  const uint32_t end = slot < 0 ? 0 : s.ends[slot], length = slot < 0 ? 0 : min(s.lengths[slot] + 1, end);
  const uint32_t lag = slot < 0 ? 0 : s.lags[slot];
  const bool has_room = length < end;
  const pen_group of = s.groups[group];
  const uint32_t place = place_of(s, group, row, length, has_room, paging.block_size);
  __syncthreads();  // all threads of a row have read its length
  wait_for_previous();
  if (leads) results.write(s);
  if (slot < 0) return;
  const uint32_t left = blocks_left(of, length, paging.block_size);
  const uint32_t left_before = blocks_left(of, length > 0 ? length - 1 : 0, paging.block_size);
  for (uint32_t i = left_before; i < left; i++) row_table(s, group, row)[i] = paging.zero_block;
  s.slot_mapping[size_t(group) * s.max_rows + row] = place;
  if (group > 0) return;
  s.inputs[row] = -1 - slot;
  s.lengths[slot] = length;
  set_position(s, row, length, lag, has_room);
}

}  // namespace pen
