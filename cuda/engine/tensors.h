// A model's tensors: where each goes, and how much memory all of them take.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "../quant/repack.h"
#include "penstock.h"

namespace pen {

// What a tensor fills: a matrix (or a stack of them) or a vector.
struct Tensor {
  const QuantRow* quant = nullptr;
  Matrix matrix;                  // of a stack, the first
  const float* vector = nullptr;  // set for vectors, whatever their length
  uint64_t rows = 0, cols = 0, count = 1;
  bool is_vector = false;
  Placement placement = Placement::WHOLE;
};

class Tensors {
 public:
  // Lays out the tensors of a description from `base` on. With a null base nothing may be read, but sizes are right.
  Tensors(const pen_model_desc& desc, uint8_t* base);

  uint64_t bytes = 0;       // of all tensors
  uint64_t step_bytes = 0;  // of these, what a decode step of one row reads

  const Tensor& at(uint32_t index) const;
  // The matrix of a tensor. Gate and up that share one have the same.
  const Matrix& matrix(uint32_t index) const;
  // A vector of at least `length` elements, or null for PEN_NONE.
  const float* vector(uint32_t index, uint64_t length) const;

  // Notes that matrices of a tensor have come; each may come once.
  void arrive(uint32_t index, uint64_t count);
  bool complete() const;

 private:
  void place(const pen_model_desc& desc, uint32_t index, uint8_t* base);

  std::vector<Tensor> tensors_;
  std::unique_ptr<std::atomic<uint64_t>[]> came_;
};

}  // namespace pen
