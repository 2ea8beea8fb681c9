// Lays out and fills a step's metadata.
#include "metadata.h"

#include <algorithm>
#include <cstring>

#include "../device/error.h"

namespace pen {

namespace {

template <typename T>
void put(uint8_t* base, size_t offset, const T* from, size_t count) {
  if (count > 0) std::memcpy(base + offset, from, count * sizeof(T));
}

}  // namespace

int round_seqs(int n) {
  if (n <= 4) return n <= 2 ? n : 4;
  if (n <= 64) return ceil_div(n, 8) * 8;
  return ceil_div(n, 32) * 32;
}

int round_rows(int n) {
  for (const int rounded : {4, 8, 16, 32, 64, 96, 128, 192, 256}) {
    if (n <= rounded) return rounded;
  }
  return n;
}

int round_blocks(int blocks, int block_size) {
  int rounded = std::max(1, 256 / block_size);
  while (rounded < blocks) rounded *= 2;
  return rounded;
}

MetaLayout::MetaLayout(int tokens, int seqs, int rows, int blocks, int groups, bool has_grid, bool has_runs)
    : num_tokens(tokens), num_seqs(seqs), num_rows(rows), max_blocks(blocks), num_groups(groups), has_grid(has_grid), has_runs(has_runs) {
  size_t next = 0;
  const auto take = [&](size_t count) {
    const size_t place = next;
    next += round_up(count * 4, 16);
    return place;
  };
  results = take(2);  // an address
  inputs = take(tokens);
  positions = take(tokens);
  grid = take(has_grid ? 2 * size_t(tokens) : 0);
  runs = take(has_runs ? 2 * size_t(tokens) : 0);
  token_types = take(tokens);
  slot_mapping = take(size_t(groups) * tokens);
  cu_seqlens = take(seqs + 1);
  context_lens = take(seqs);
  slots = take(rows);
  gather = take(rows);
  mask_of = take(rows);
  num_logprobs = take(rows);
  state_slots = take(seqs);
  sequences = take(seqs);
  block_tables = take(size_t(groups) * seqs * blocks);
  size = next;
}

Step step_at(uint8_t* base, const MetaLayout& l, const StepBounds& bounds) {
  Step step{};
  step.view = StepView{at<uint32_t>(base, l.positions), at<uint32_t>(base, l.slot_mapping), at<uint32_t>(base, l.cu_seqlens),
                       at<uint32_t>(base, l.context_lens), at<uint32_t>(base, l.block_tables), l.num_tokens, l.num_seqs, l.max_blocks,
                       bounds.max_query, bounds.max_context};
  if (l.has_grid) step.view.grid = at<uint32_t>(base, l.grid);
  if (l.has_runs) step.view.runs = at<uint32_t>(base, l.runs);
  step.results = at<int32_t*>(base, l.results);
  step.inputs = at<int32_t>(base, l.inputs);
  step.token_types = at<uint32_t>(base, l.token_types);
  step.slots = at<int32_t>(base, l.slots);
  step.gather = bounds.max_query > 1 ? at<int32_t>(base, l.gather) : nullptr;
  step.mask_of = at<int32_t>(base, l.mask_of);
  step.num_logprobs = at<int32_t>(base, l.num_logprobs);
  step.state_slots = at<uint32_t>(base, l.state_slots);
  step.sequences = at<uint32_t>(base, l.sequences);
  step.bounds = bounds;
  step.num_rows = l.num_rows;
  step.has_prefill = bounds.max_query > 1;
  step.shares_slots = bounds.shares_slots;
  step.mapping_stride = size_t(l.num_tokens);
  step.table_stride = size_t(l.num_seqs) * l.max_blocks;
  return step;
}

Step step_of(const Slots& s, int num_rows, const StepBounds& bounds) {
  Step step{};
  step.view = StepView{s.positions, s.slot_mapping, s.cu_seqlens, s.context_lens, s.row_tables, num_rows, num_rows, s.max_blocks,
                       1, bounds.max_context};
  step.results = s.results;
  step.inputs = s.inputs;
  step.token_types = s.token_types;
  step.slots = s.sampled_slots;
  step.mask_of = s.mask_of;
  step.num_logprobs = s.num_logprobs;
  step.state_slots = s.row_states;
  step.sequences = s.sequences;
  step.bounds = bounds;
  step.num_rows = num_rows;
  step.mapping_stride = size_t(s.max_rows);
  step.table_stride = size_t(s.max_rows) * s.max_blocks;
  step.of_slots = true;
  return step;
}

namespace {

// Writes where each row's whole run begins and ends. The places of a sequence's rows follow those that the cache held before.
void fill_runs(uint32_t* places, const pen_batch& b) {
  for (uint32_t i = 0, seq = 0; i < b.num_runs; i++) {
    const uint32_t first = b.runs[2 * i], rows = b.runs[2 * i + 1];
    while (b.cu_seqlens_q[seq + 1] <= first) seq++;
    const uint32_t begin = first + b.context_lens[seq] - b.cu_seqlens_q[seq + 1];
    for (uint32_t row = first; row < first + rows; row++) places[2 * row] = begin, places[2 * row + 1] = begin + rows;
  }
}

}  // namespace

void fill_metadata(uint8_t* base, const MetaLayout& l, const pen_batch& b, int32_t* results, const std::vector<int32_t>& row_of,
                   const CacheShape& cache) {
  std::memset(base, 0, l.block_tables);
  // Kernels write the ids themselves. A copy after the graph would delay the next step, all the more because it changes hardware queues.
  *at<int32_t*>(base, l.results) = results;
  put(base, l.inputs, b.inputs, b.num_tokens);
  put(base, l.positions, b.positions, b.num_tokens);
  if (l.has_grid) put(base, l.grid, b.grid_positions, 2 * size_t(b.num_tokens));
  if (l.has_runs) fill_runs(at<uint32_t>(base, l.runs), b);
  if (b.token_types) put(base, l.token_types, b.token_types, b.num_tokens);
  for (int group = 0; group < l.num_groups; group++) {
    const size_t first = size_t(group) * l.num_tokens;
    put(base, l.slot_mapping + first * 4, b.slot_mapping + size_t(group) * b.num_tokens, b.num_tokens);
    for (int i = int(b.num_tokens); i < l.num_tokens; i++) at<uint32_t>(base, l.slot_mapping)[first + i] = NO_SLOT;
  }
  put(base, l.cu_seqlens, b.cu_seqlens_q, b.num_seqs + 1);
  for (int i = int(b.num_seqs); i < l.num_seqs; i++) at<uint32_t>(base, l.cu_seqlens)[i + 1] = uint32_t(i + 1);
  put(base, l.context_lens, b.context_lens, b.num_seqs);
  if (b.state_slots) put(base, l.state_slots, b.state_slots, b.num_seqs);
  uint32_t* next = at<uint32_t>(base, l.sequences);
  const uint32_t* const starts = at<uint32_t>(base, l.cu_seqlens);
  for (const bool single : {true, false}) {
    for (int i = 0; i < l.num_seqs; i++) {
      if ((starts[i + 1] - starts[i] == 1) == single) *next++ = uint32_t(i);
    }
  }
  int32_t* slots = at<int32_t>(base, l.slots);
  int32_t* mask_of = at<int32_t>(base, l.mask_of);
  int32_t* num_logprobs = at<int32_t>(base, l.num_logprobs);
  for (int32_t* array : {slots, mask_of, num_logprobs}) std::fill(array, array + l.num_rows, -1);
  for (uint32_t k = 0, seq = 0; k < b.num_sampled; k++) {
    while (b.cu_seqlens_q[seq + 1] <= b.sampled_rows[k]) seq++;
    slots[row_of[k]] = int32_t(b.slots[seq]);
    if (b.num_logprobs) num_logprobs[row_of[k]] = b.num_logprobs[k];
    at<int32_t>(base, l.gather)[row_of[k]] = int32_t(b.sampled_rows[k]);
  }
  const size_t stride = std::min<size_t>(b.max_blocks, l.max_blocks);
  for (int group = 0; group < l.num_groups; group++) {
    const pen_group& of = cache.groups[group];
    for (uint32_t i = 0; i < b.num_seqs; i++) {
      uint32_t* const table = at<uint32_t>(base, l.block_tables) + (size_t(group) * l.num_seqs + i) * l.max_blocks;
      std::copy_n(b.block_tables + (size_t(group) * b.num_seqs + i) * b.max_blocks, stride, table);
      const uint32_t position = b.context_lens[i] - (b.cu_seqlens_q[i + 1] - b.cu_seqlens_q[i]);  // the first row's place
      const uint32_t seen = of.window == 0 ? 0 : of.chunked ? position / of.window * of.window
                                                            : position + 1 > of.window ? position + 1 - of.window : 0;
      std::fill_n(table, std::min<size_t>(stride, seen / cache.block_size), cache.zero_block);
    }
  }
}

}  // namespace pen
