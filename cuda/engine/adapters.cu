// Loads adapters, and sends those of a step's rows.
#include "adapters.h"

#include <algorithm>
#include <string>

#include "graphs.h"
#include "model.h"

namespace pen {

namespace {

constexpr size_t ALIGNMENT = 16;  // of what kernels read at once

}  // namespace

void Adapters::prepare(pen_model& m) {
  if (num_sites_ > 0) return;
  const size_t sites = m.desc.num_tensors + 1, rows = std::max<size_t>(m.desc.max_batch_tokens, MAX_GRAPH_TOKENS);
  table_ = Buffer(m.ctx.memory, sites * PEN_MAX_ADAPTERS * sizeof(LowRank), true);
  rows_memory_ = Buffer(m.ctx.memory, 2 * PEN_MAX_ROUNDS * rows * sizeof(float));
  size_t widest = 0;
  for (uint32_t i = 0; i < m.desc.num_tensors; i++) {
    const Tensor& tensor = m.tensors.at(i);
    if (tensor.placement == Placement::UPPER_HALF && tensor.count == 1) widest = std::max(widest, size_t(tensor.matrix.rows));
  }
  sums_ = Buffer(m.ctx.memory, std::max<size_t>(std::min<size_t>(rows, ROWS_PER_PASS) * widest, 1) * sizeof(float));
  places_.resize(PEN_MAX_ADAPTERS);
  stride_ = rows;
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
  reserve(m, stride_, places_[index].max_rank);
  show(m, index);
  // Graphs have the kernels of the adapters that were loaded.
  m.adapted_graphs.clear();
}

// Writes a place's column of the table.
void Adapters::show(pen_model& m, uint32_t index) {
  const std::vector<LowRank>& changes = places_[index].changes;
  LowRank* const column = table_.as<LowRank>() + index;
  check(cudaMemcpy2DAsync(column, PEN_MAX_ADAPTERS * sizeof(LowRank), changes.data(), sizeof(LowRank), sizeof(LowRank),
                          changes.size(), cudaMemcpyHostToDevice, m.stream.handle),
        "copying an adapter's places");
  check(cudaStreamSynchronize(m.stream.handle), "loading an adapter");
}

// Makes room for A x of so many rows.
void Adapters::reserve(pen_model& m, size_t rows, int max_rank) {
  const size_t bytes = rows * MAX_CHANGED * round_up(size_t(max_rank), 8) * sizeof(float);
  if (thin_.size() >= bytes) return;
  m.adapted_graphs.clear();
  thin_ = Buffer(m.ctx.memory, bytes);
}

bool Adapters::covers(const pen_model& m, const pen_batch& b) const {
  const auto gated = [&](uint32_t tensor) { return m.tensors.at(tensor).placement != Placement::WHOLE; };
  std::vector<uint8_t> full(places_.size());
  for (const uint32_t place : in_use_) {
    bool all = true;
    for (uint32_t i = 0; all && i + 1 < num_sites_; i++) {
      const auto has = [&](uint32_t other) { return places_[other].changes[i].rank > 0; };
      if (gated(i)) all = has(place) || std::none_of(in_use_.begin(), in_use_.end(), has);
    }
    full[place] = all;
  }
  for (size_t row = 0; row < b.num_tokens; row++) {
    bool any = false;
    for (size_t round = 0; round < b.num_rounds; round++) {
      const int32_t place = b.adapters[round * b.num_tokens + row];
      any = any || (place >= 0 && full[size_t(place)]);
    }
    if (!any) return false;
  }
  return true;
}

void Adapters::begin_step(pen_model& m, const pen_batch& b, int padded, InFlight& f) {
  end_step();
  if (b.num_rounds == 0) return;
  const size_t rows = b.num_tokens, all = std::max(size_t(padded), rows);
  if (b.num_rounds > PEN_MAX_ROUNDS || !b.adapters || !b.adapter_scales) throw StatusError(PEN_INVALID_ARG, "too many adapters of a row");
  in_use_.clear();
  for (size_t i = 0; i < b.num_rounds * rows; i++) {
    const int32_t place = b.adapters[i];
    if (place < 0) continue;
    if (size_t(place) >= places_.size() || !places_[size_t(place)].loaded) throw StatusError(PEN_INVALID_ARG, "a place without an adapter");
    if (in_use_.empty() || in_use_.back() != uint32_t(place)) in_use_.push_back(uint32_t(place));
  }
  if (in_use_.empty()) return;
  std::sort(in_use_.begin(), in_use_.end());
  in_use_.erase(std::unique(in_use_.begin(), in_use_.end()), in_use_.end());
  max_rank_ = 0;
  for (const uint32_t place : in_use_) max_rank_ = std::max(max_rank_, places_[place].max_rank);
  covered_ = covers(m, b);
  if (f.adapters.size() < 2 * PEN_MAX_ROUNDS * stride_ * sizeof(float)) f.adapters = Pinned(2 * PEN_MAX_ROUNDS * stride_ * sizeof(float));
  for (size_t round = 0; round < b.num_rounds; round++) {
    int32_t* const places = f.adapters.as<int32_t>() + round * stride_;
    float* const scales = f.adapters.as<float>() + (PEN_MAX_ROUNDS + round) * stride_;
    std::fill_n(places, all, -1);
    std::copy_n(b.adapters + round * rows, rows, places);
    std::copy_n(b.adapter_scales + round * rows, rows, scales);
    const size_t bytes = all * sizeof(float), at = round * stride_;
    check(cudaMemcpyAsync(rows_memory_.as<int32_t>() + at, places, bytes, cudaMemcpyHostToDevice, m.stream.handle), "copying adapters");
    check(cudaMemcpyAsync(rows_memory_.as<float>() + PEN_MAX_ROUNDS * stride_ + at, scales, bytes, cudaMemcpyHostToDevice, m.stream.handle),
          "copying adapters");
  }
  reserve(m, b.num_rounds * all, max_rank_);
  rows_ = {rows_memory_.as<int32_t>(), rows_memory_.as<float>() + PEN_MAX_ROUNDS * stride_, int(b.num_rounds), int(stride_), nullptr};
}

void Adapters::begin_capture(bool covered) {
  in_use_.clear();
  max_rank_ = 0;
  for (uint32_t place = 0; place < places_.size(); place++) {
    if (!places_[place].loaded) continue;
    in_use_.push_back(place);
    max_rank_ = std::max(max_rank_, places_[place].max_rank);
  }
  covered_ = covered;
  rows_ = {rows_memory_.as<int32_t>(), rows_memory_.as<float>() + PEN_MAX_ROUNDS * stride_, 1, int(stride_), nullptr};
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
