// Lays out a model's tensors.
#include "tensors.h"

#include <string>

#include "context.h"

namespace pen {

namespace {

std::string name_of(uint32_t index) { return "tensor " + std::to_string(index); }

}  // namespace

Tensors::Tensors(const pen_model_desc& desc, uint8_t* base)
    : tensors_(desc.num_tensors), came_(std::make_unique<std::atomic<uint64_t>[]>(desc.num_tensors)) {
  for (uint32_t i = 0; i < desc.num_tensors; i++) place(desc, i, base);
  for (size_t i = 0; i < tensors_.size(); i++) {
    const bool has_other = i + 1 < tensors_.size() && tensors_[i + 1].placement == Placement::LOWER_HALF;
    // Half of its memory would never be written.
    if (tensors_[i].placement == Placement::UPPER_HALF && !has_other) {
      throw StatusError(PEN_INVALID_ARG, name_of(i) + " has no other half behind it");
    }
  }
}

void Tensors::place(const pen_model_desc& d, uint32_t index, uint8_t* base) {
  const pen_tensor& t = d.tensors[index];
  Tensor& to = tensors_[index];
  to.quant = quant_row(t.type);
  to.rows = t.rows;
  to.cols = t.cols;
  to.count = t.count;
  to.is_vector = t.kind == PEN_VECTOR;
  if (!to.quant) throw StatusError(PEN_UNSUPPORTED, name_of(index) + " has the unknown type " + std::to_string(t.type));
  if (t.kind > PEN_LOWER_HALF || t.rows == 0 || t.cols == 0 || t.count == 0 || t.rows > INT32_MAX / 2 || t.cols > INT32_MAX / 2) {
    throw StatusError(PEN_INVALID_ARG, name_of(index) + " has an impossible kind or shape");
  }
  uint64_t one = to.rows * to.cols * sizeof(float);
  if (to.is_vector) {
    if (to.quant->id != 0) throw StatusError(PEN_UNSUPPORTED, name_of(index) + " is a vector whose type is not float32");
    to.vector = reinterpret_cast<const float*>(base + bytes);
  } else {
    if (to.cols % to.quant->block_size != 0) throw StatusError(PEN_INVALID_ARG, name_of(index) + " has rows of incomplete blocks");
    if (t.kind == PEN_LOWER_HALF) {
      const Tensor* upper = index > 0 ? &tensors_[index - 1] : nullptr;
      const bool fits = upper && upper->placement == Placement::UPPER_HALF && upper->quant == to.quant && upper->rows == to.rows &&
                        upper->cols == to.cols && upper->count == to.count;
      if (!fits) throw StatusError(PEN_INVALID_ARG, name_of(index) + " has no other half of its shape and type in front of it");
      to.matrix = upper->matrix;
      to.placement = Placement::LOWER_HALF;
      return;  // the other half has allocated the memory
    }
    const bool shared = t.kind == PEN_UPPER_HALF;
    if (shared) to.placement = Placement::UPPER_HALF;
    to.matrix = Matrix{base + bytes, int(shared ? 2 * t.rows : t.rows), int(t.cols), to.quant->format, to.quant->record_bytes};
    one = to.matrix.bytes();
  }
  bytes += round_up(one * to.count, 256);
  step_bytes += round_up(one * std::min<uint64_t>(t.read, to.count), 256);
}

const Tensor& Tensors::at(uint32_t index) const {
  if (index >= tensors_.size()) throw StatusError(PEN_INVALID_ARG, name_of(index) + " does not exist");
  return tensors_[index];
}

const Matrix& Tensors::matrix(uint32_t index) const {
  const Tensor& tensor = at(index);
  if (tensor.is_vector) throw StatusError(PEN_INVALID_ARG, name_of(index) + " is no matrix");
  return tensor.matrix;
}

const float* Tensors::vector(uint32_t index, uint64_t length) const {
  if (index == PEN_NONE) return nullptr;
  const Tensor& tensor = at(index);
  if (!tensor.is_vector || tensor.rows * tensor.cols < length) {
    throw StatusError(PEN_INVALID_ARG, name_of(index) + " is no vector of " + std::to_string(length) + " elements");
  }
  return tensor.vector;
}

void Tensors::arrive(uint32_t index, uint64_t count) {
  if (came_[index].fetch_add(count) + count > at(index).count) throw StatusError(PEN_INVALID_ARG, name_of(index) + " was loaded before");
}

bool Tensors::complete() const {
  for (size_t i = 0; i < tensors_.size(); i++) {
    if (came_[i] != tensors_[i].count) return false;
  }
  return true;
}

}  // namespace pen
