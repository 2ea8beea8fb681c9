// Launches the kernels of slots.h, and lays out its arrays.
#include <string>

#include "context.h"
#include "slots.cuh"

namespace pen {

namespace {

// Calls take(array, count) for each array of words.
template <class Take>
void each_array(Slots& s, Take take) {
  const size_t rows = size_t(s.max_rows), slots = size_t(s.max_slots), groups = size_t(s.num_groups), blocks = size_t(s.max_blocks);
  for (uint32_t** array : {&s.lengths, &s.ends, &s.lags}) take(*array, slots);
  for (int32_t** array : {&s.row_slots, &s.sampled_slots, &s.inputs, &s.mask_of, &s.num_logprobs}) take(*array, rows);
  for (uint32_t** array : {&s.positions, &s.context_lens, &s.row_states, &s.token_types, &s.sequences}) take(*array, rows);
  take(s.cu_seqlens, rows + 1);
  take(s.turn, 1);
  take(s.loop, LOOP_WORDS);
  take(s.slot_mapping, groups * rows);
  take(s.tables, groups * slots * blocks);
  take(s.row_tables, groups * rows * blocks);
}

Slots sizes_of(const pen_model_desc& d, int max_rows) {
  Slots s{};
  s.num_groups = int(d.num_groups);
  s.max_slots = int(d.max_slots);
  s.max_rows = max_rows;
  s.max_blocks = int(d.max_blocks);
  return s;
}

}  // namespace

SlotArrays::SlotArrays(const pen_model_desc& d, int max_rows, Allocator& take) {
  if (d.num_groups > MAX_GROUPS) throw StatusError(PEN_UNSUPPORTED, std::to_string(d.num_groups) + " cache groups");
  Slots s = sizes_of(d, max_rows);
  size_t count = 0;
  each_array(s, [&](auto&, size_t words) { count += round_up(words, 4); });
  words = take.zeroed(count * 4);
  flights = take.zeroed((1 + NUM_FLIGHTS) * sizeof(int32_t*));
  groups = take.zeroed(d.num_groups * sizeof(pen_group));
}

Slots SlotArrays::view(const pen_model_desc& d, int max_rows) const {
  Slots s = sizes_of(d, max_rows);
  uint32_t* next = words.as<uint32_t>();
  each_array(s, [&](auto*& array, size_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
    next += round_up(count, 4);
  });
  s.results = flights.as<int32_t*>();
  s.flights = s.results + 1;
  s.groups = groups.as<pen_group>();
  return s;
}

void prepare(const Launch& launch, const Slots& s, const pen_group* groups, int32_t* const (&flights)[NUM_FLIGHTS]) {
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, launch.stream), "preparing the slots");
  };
  copy(s.flights, flights, sizeof(flights));
  copy(const_cast<pen_group*>(s.groups), groups, s.num_groups * sizeof(pen_group));
  launch(prepare_kernel, dim3(ceil_div(s.max_rows + 1, SLOT_THREADS)), dim3(SLOT_THREADS), 0, s);
}

void place_rows(const Launch& launch, const Slots& s, const RowChanges& changes, const Paging& paging) {
  launch(place_rows_kernel, dim3(s.max_rows), dim3(SLOT_THREADS), 0, s, changes, paging);
}

void advance(const Launch& launch, const Slots& s, int num_rows, const Paging& paging) {
  launch(advance_kernel, dim3(ceil_div(num_rows, ADVANCE_ROWS)), dim3(ADVANCE_ROWS, s.num_groups), 0, s, num_rows, paging);
}

}  // namespace pen
