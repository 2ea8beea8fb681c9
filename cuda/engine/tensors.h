// A model's tensors: their places, and the memory that all of them take.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "../quant/repack.h"
#include "penstock.h"

namespace pen {

// A tensor's place: a matrix, a stack of matrices, or a vector.
struct Tensor {
  const QuantRow* quant = nullptr;
  Matrix matrix;                  // the first one of a stack
  const float* vector = nullptr;  // set for vectors, whatever their length
  uint64_t rows = 0, cols = 0, count = 1;
  bool is_vector = false;
  Placement placement = Placement::WHOLE;
};

class Tensors {
 public:
  // Lays out the tensors of a description, starting at `base`. With a null base, nothing may be read, but sizes are right.
  Tensors(const pen_model_desc& desc, uint8_t* base);

  uint64_t bytes = 0;       // of all tensors
  uint64_t step_bytes = 0;  // what a decode step of one row reads of them

  const Tensor& at(uint32_t index) const;
  // The matrix of a tensor. Gate and up return the same one if they share it.
  const Matrix& matrix(uint32_t index) const;
  // A vector of at least `length` elements, or null for PEN_NONE.
  const float* vector(uint32_t index, uint64_t length) const;

  // Records that `count` matrices of a tensor were loaded. Each may be loaded once.
  void arrive(uint32_t index, uint64_t count);
  bool complete() const;

 private:
  void place(const pen_model_desc& desc, uint32_t index, uint8_t* base);

  std::vector<Tensor> tensors_;
  std::unique_ptr<std::atomic<uint64_t>[]> came_;
};

}  // namespace pen
