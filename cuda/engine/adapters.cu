// Loads adapters, and sends those of a step's rows.
#include "adapters.h"

#include <algorithm>
#include <string>

#include "model.h"

namespace pen {

namespace {

constexpr size_t ALIGNMENT = 16;  // of what kernels read at once

}  // namespace

void Adapters::prepare(pen_model& m) {
  if (num_sites_ > 0) return;
  const size_t sites = m.desc.num_tensors + 1, rows = m.desc.max_batch_tokens;
  table_ = Buffer(m.ctx.memory, sites * PEN_MAX_ADAPTERS * sizeof(LowRank), true);
  rows_memory_ = Buffer(m.ctx.memory, 2 * PEN_MAX_ROUNDS * rows * sizeof(float));
  size_t widest = 0;
  for (uint32_t i = 0; i < m.desc.num_tensors; i++) {
    const Tensor& tensor = m.tensors.at(i);
    if (tensor.placement == Placement::UPPER_HALF && tensor.count == 1) widest = std::max(widest, size_t(tensor.matrix.rows));
  }
  sums_ = Buffer(m.ctx.memory, std::max<size_t>(std::min<size_t>(rows, ROWS_PER_PASS) * widest, 1) * sizeof(float));
  places_.resize(PEN_MAX_ADAPTERS);
  num_sites_ = sites;
}

void Adapters::load(pen_model& m, uint32_t index, const pen_change* changes, uint32_t num_changes) {
  if (index >= PEN_MAX_ADAPTERS) throw StatusError(PEN_INVALID_ARG, "no such place for an adapter");
  prepare(m);
  Place place;
  place.changes.resize(num_sites_);
  size_t size = 0;
  const auto bytes = [](uint64_t count) { return round_up(count * sizeof(__half), ALIGNMENT); };
  for (uint32_t i = 0; i < num_changes; i++) {
    const pen_change& c = changes[i];
    const bool is_head = c.tensor == PEN_NONE;
    const Tensor& of = m.tensors.at(is_head ? m.desc.head.w : c.tensor);
    const bool whole_tiles = of.placement == Placement::WHOLE || of.rows % 8 == 0;
    if (!whole_tiles) throw StatusError(PEN_UNSUPPORTED, "a change of gate and up in incomplete tiles");
    if (of.is_vector || of.rows != c.rows || of.cols != c.cols || of.count != 1 || c.rank == 0 || !c.a || !c.b) {
      throw StatusError(PEN_INVALID_ARG, "change " + std::to_string(i) + " of an adapter does not fit its matrix");
    }
    if (place.changes[site(c.tensor)].rank > 0) throw StatusError(PEN_INVALID_ARG, "an adapter changes a matrix twice");
    place.changes[site(c.tensor)] = LowRank{nullptr, nullptr, int(c.rank), c.scale};
    place.max_rank = std::max(place.max_rank, int(c.rank));
    size += bytes(uint64_t(c.rank) * c.cols) + bytes(uint64_t(c.rows) * c.rank);
  }
  place.weights = Buffer(m.ctx.memory, std::max<size_t>(size, 1));
  uint8_t* next = place.weights.as<uint8_t>();
  const auto send = [&](const uint16_t* from, uint64_t count) {
    uint8_t* const to = next;
    next += bytes(count);
    check(cudaMemcpyAsync(to, from, count * sizeof(__half), cudaMemcpyHostToDevice, m.stream.handle), "copying an adapter");
    return reinterpret_cast<const __half*>(to);
  };
  for (uint32_t i = 0; i < num_changes; i++) {
    const pen_change& c = changes[i];
    LowRank& to = place.changes[site(c.tensor)];
    to.a = send(c.a, uint64_t(c.rank) * c.cols);
    to.b = send(c.b, uint64_t(c.rows) * c.rank);
  }
  place.loaded = num_changes > 0;
  places_[index] = std::move(place);
  show(m, index);
}

// Writes a place's column of the table.
void Adapters::show(pen_model& m, uint32_t index) {
  const std::vector<LowRank>& changes = places_[index].changes;
  check(cudaMemcpy2DAsync(table_.as<LowRank>() + index, PEN_MAX_ADAPTERS * sizeof(LowRank), changes.data(), sizeof(LowRank), sizeof(LowRank),
                          changes.size(), cudaMemcpyHostToDevice, m.stream.handle),
        "copying an adapter's places");
  check(cudaStreamSynchronize(m.stream.handle), "loading an adapter");
}

void Adapters::begin_step(pen_model& m, const pen_batch& b, InFlight& f) {
  end_step();
  if (b.num_rounds == 0) return;
  const size_t rows = b.num_tokens, count = size_t(b.num_rounds) * rows;
  if (b.num_rounds > PEN_MAX_ROUNDS || !b.adapters || !b.adapter_scales) throw StatusError(PEN_INVALID_ARG, "too many adapters of a row");
  in_use_.clear();
  for (size_t i = 0; i < count; i++) {
    const int32_t place = b.adapters[i];
    if (place < 0) continue;
    if (size_t(place) >= places_.size() || !places_[size_t(place)].loaded) throw StatusError(PEN_INVALID_ARG, "a place without an adapter");
    if (in_use_.empty() || in_use_.back() != uint32_t(place)) in_use_.push_back(uint32_t(place));
  }
  std::sort(in_use_.begin(), in_use_.end());
  in_use_.erase(std::unique(in_use_.begin(), in_use_.end()), in_use_.end());
  max_rank_ = 0;
  for (const uint32_t place : in_use_) max_rank_ = std::max(max_rank_, places_[place].max_rank);
  const size_t bytes = 2 * count * sizeof(float);
  if (f.adapters.size() < bytes) f.adapters = Pinned(bytes);
  std::copy_n(b.adapters, count, f.adapters.as<int32_t>());
  std::copy_n(b.adapter_scales, count, f.adapters.as<float>() + count);
  check(cudaMemcpyAsync(rows_memory_.as<void>(), f.adapters.as<void>(), bytes, cudaMemcpyHostToDevice, m.stream.handle), "copying adapters");
  const size_t thin = count * MAX_CHANGED * round_up(size_t(max_rank_), 8) * sizeof(float);
  if (thin_.size() < thin) thin_ = Buffer(m.ctx.memory, thin);
  rows_ = {rows_memory_.as<int32_t>(), rows_memory_.as<float>() + count, int(b.num_rounds), int(rows), nullptr};
}

const LowRank* Adapters::changes(uint32_t tensor, bool head) const {
  const size_t at = head ? num_sites_ - 1 : tensor;
  const auto changes_it = [&](uint32_t place) { return places_[place].changes[at].rank > 0; };
  const bool any = in_step() && std::any_of(in_use_.begin(), in_use_.end(), changes_it);
  return any ? table_.as<LowRank>() + at * PEN_MAX_ADAPTERS : nullptr;
}

Change Adapters::change(int num_matrices, int num_rows, const int32_t* row_of) const {
  Change change{};
  change.rows = rows_;
  change.rows.row_of = row_of;
  change.num_matrices = num_matrices;
  change.max_rank = max_rank_;
  change.num_rows = num_rows;
  change.thin = thin_.as<float>();
  change.ld_thin = int(round_up(size_t(max_rank_), 8));
  return change;
}

}  // namespace pen
