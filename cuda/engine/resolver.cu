// Finds tensors and buffers by number.
#include <string>

#include "program.h"

namespace pen {

namespace {

[[noreturn]] void wrong(const std::string& what) { throw StatusError(PEN_INVALID_ARG, what); }

}  // namespace

const Rows& Resolver::buffer(uint32_t index, uint32_t type) const {
  const std::vector<Rows>& rows = m.scratch.rows;
  if (index >= rows.size()) wrong("buffer " + std::to_string(index) + " does not exist");
  if (rows[index].desc.type != type) wrong("buffer " + std::to_string(index) + " has another type");
  return rows[index];
}

Operand Resolver::operand(const pen_part& part, uint32_t heads, uint32_t dim) const {
  Operand to;
  if (part.buffer == PEN_NONE) return to;
  if (part.buffer >= m.scratch.rows.size()) wrong("buffer " + std::to_string(part.buffer) + " does not exist");
  const Rows& rows = m.scratch.rows[part.buffer];
  const uint64_t end = part.first + uint64_t(heads > 0 ? heads - 1 : 0) * part.stride + dim, ld = uint64_t(rows.ld) * rows.desc.per_token;
  if (end > ld) wrong("an op goes past the rows of buffer " + std::to_string(part.buffer));
  to.ld = ld;
  to.stride = int(part.stride);
  if (rows.desc.type == PEN_F16) {
    to.half = rows.data.as<__half>() + part.first;
  } else {
    to.x = rows.data.as<float>() + part.first;
  }
  return to;
}

const Matrix& Resolver::matrix(uint32_t index, uint32_t rows, uint32_t cols) const {
  const Matrix& found = m.tensors.matrix(index);
  if (found.rows != int(rows) || found.cols != int(cols)) {
    wrong("tensor " + std::to_string(index) + " is no matrix of " + std::to_string(rows) + " × " + std::to_string(cols));
  }
  return found;
}

FinalNorm Resolver::norm(const pen_norm& n) const {
  FinalNorm to{};
  const uint64_t hidden = m.desc.hidden_dim;
  to.kind = n.kind == PEN_RMS_NORM ? NormKind::RMS : n.kind == PEN_LAYER_NORM ? NormKind::LAYER : NormKind::NONE;
  if (n.x == PEN_NONE) return to;
  const auto row = [&](uint32_t index) {
    if (buffer(index, PEN_F32).desc.width != hidden) wrong("a norm is of another width than the model's rows");
    return floats(index);
  };
  to.norm.x = row(n.x);
  to.norm.branch = n.branch == PEN_NONE ? nullptr : row(n.branch);
  to.norm.branch_weight = vector(n.branch_weight, hidden);
  to.norm.x_out = n.x_out == PEN_NONE ? nullptr : row(n.x_out);
  to.norm.weight = vector(n.weight, hidden);
  to.norm.hidden = int(hidden);
  to.norm.eps = n.eps;
  to.bias = vector(n.bias, hidden);
  const bool branch = to.norm.branch != nullptr;
  if (branch != (to.norm.branch_weight != nullptr) || (branch && to.kind != NormKind::RMS)) wrong("a norm's branch is not complete");
  if (to.kind != NormKind::NONE && !to.norm.weight) wrong("a norm has no weights");
  return to;
}

const uint8_t* Resolver::axes(uint32_t rope) const {
  return rope == PEN_NONE || !m.has_axes ? nullptr : m.axes.as<uint8_t>() + m.axis_starts.at(rope);
}

uint32_t Resolver::cache(uint32_t index) const {
  if (index >= m.caches.size()) wrong("cache " + std::to_string(index) + " does not exist");
  return index;
}

}  // namespace pen
