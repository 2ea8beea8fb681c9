// The adapters that a model has loaded, and those of a step's rows.
#pragma once

#include <vector>

#include "../adapters/adapters.h"
#include "memory.h"
#include "penstock.h"

struct pen_model;

namespace pen {

struct InFlight;

// The low-rank changes of each matrix, by places.
class Adapters {
 public:
  // Loads changes to a place, in place of what is there; without changes, empties it.
  void load(pen_model& model, uint32_t place, const pen_change* changes, uint32_t num_changes);
  // Sends the adapters of a step's rows. Throws if a place has none. `padded`: the rows of the step with padding.
  void begin_step(pen_model& model, const pen_batch& batch, int padded, InFlight& flight);
  // Begins the capture of a graph of steps whose rows have at most one adapter: the kernels of all adapters that are loaded.
  // `covered`: each row has one.
  void begin_capture(bool covered);
  // Whether each row of the step has an adapter that changes gate and up wherever any adapter does.
  bool covered() const { return covered_; }
  // Ends what begin_step() began: later kernels change nothing.
  void end_step() { rows_ = {}; }
  bool in_step() const { return rows_.rounds > 0; }

  // The changes of a tensor by the adapters of the step, or null. `head`: the tensor's use as the head's matrix.
  const LowRank* changes(uint32_t tensor, bool head) const;
  // A change of `num_matrices` matrices by the adapters of the step, without its matrices, its input and its output.
  Change change(int num_matrices, int num_rows, const int32_t* row_of) const;
  // Room for the products of gate and up of as many rows as a pass has.
  float* sums() const { return sums_.as<float>(); }
  static constexpr int ROWS_PER_PASS = 512;

 private:
  struct Place {
    Buffer weights;
    std::vector<LowRank> changes;  // [sites]
    bool loaded = false;
    int max_rank = 0;
  };
  void prepare(pen_model& model);
  void show(pen_model& model, uint32_t place);
  void reserve(pen_model& model, size_t rows, int max_rank);
  bool covers(const pen_model& model, const pen_batch& batch) const;
  size_t site(uint32_t tensor) const { return tensor == PEN_NONE ? num_sites_ - 1 : tensor; }

  size_t num_sites_ = 0;  // one per tensor, then one for the head
  std::vector<Place> places_;
  Buffer table_;          // [sites, PEN_MAX_ADAPTERS] LowRank
  Buffer rows_memory_;    // [2, PEN_MAX_ROUNDS, max_batch_tokens] the rows of a step
  Buffer thin_, sums_;
  AdaptedRows rows_{};
  std::vector<uint32_t> in_use_;  // the places of the step
  int max_rank_ = 0;
  bool covered_ = false;
  size_t stride_ = 0;             // of the rows in rows_memory_
};

}  // namespace pen
