// Loads tensors: the caller's threads copy pieces into pinned memory, the copy engine moves them to the device, and a kernel repacks them
// there.
#include <algorithm>
#include <cstring>
#include <string>

#include "model.h"
#include "staging.h"

namespace pen {

namespace {

// Copies a vector at once, since vectors are short.
void load_vector(const Tensor& tensor, const uint8_t* data, uint64_t nbytes) {
  const std::lock_guard alone(device_wide());
  check(cudaMemcpy(const_cast<float*>(tensor.vector), data, nbytes, cudaMemcpyHostToDevice), "copying a vector");
}

void load_matrices(pen_model& m, const Tensor& to, uint64_t first_matrix, uint64_t matrices, const uint8_t* data, size_t row_bytes) {
  const uint64_t tile = to.placement == Placement::WHOLE ? TILE_ROWS : TILE_ROWS / 2;
  const uint64_t piece = STAGE_BYTES / row_bytes / tile * tile;
  if (piece == 0) throw StatusError(PEN_UNSUPPORTED, "rows of " + std::to_string(row_bytes) + " bytes are too long to load");
  for (uint64_t i = 0; i < matrices; i++) {
    auto* records = const_cast<uint8_t*>(to.matrix.data) + (first_matrix + i) * to.matrix.bytes();
    for (uint64_t first = 0; first < to.rows; first += piece) {
      const uint64_t count = std::min(piece, to.rows - first);
      const Lease lease(*m.staging);
      Stage& stage = *lease.stage;
      if (stage.used) check(cudaEventSynchronize(stage.done.handle), "loading");
      stage.used = true;
      uint8_t *const host = stage.pinned.as<uint8_t>(), *const blocks = stage.device.as<uint8_t>();
      std::memcpy(host, data + (i * to.rows + first) * row_bytes, count * row_bytes);
      const Launch launch{m.ctx.device, stage.stream.handle};
      check(cudaMemcpyAsync(blocks, host, count * row_bytes, cudaMemcpyHostToDevice, launch.stream), "copying a tensor");
      repack(launch, to.quant->id, Repack{blocks, records, int(first), int(count), int(to.rows), int(to.cols), to.placement,
                                          m.overflow.as<int>()});
      check(cudaEventRecord(stage.done.handle, launch.stream), "loading");
    }
  }
}

}  // namespace

void load_tensor(pen_model& m, uint32_t index, uint32_t first, uint32_t count, const uint8_t* data, uint64_t nbytes) {
  const Tensor& to = m.tensors.at(index);
  if (count == 0 || uint64_t(first) + count > to.count) throw StatusError(PEN_INVALID_ARG, "the tensor has fewer matrices than were given");
  const size_t row_bytes = to.cols / to.quant->block_size * to.quant->block_bytes, rows = to.rows * count;
  if (nbytes != rows * row_bytes) {
    throw StatusError(PEN_INVALID_ARG, std::to_string(nbytes) + " bytes, expected " + std::to_string(rows * row_bytes) + " for its shape");
  }
  m.tensors.arrive(index, count);
  if (to.is_vector) return load_vector(to, data, nbytes);
  load_matrices(m, to, first, count, data, row_bytes);
}

void finish_loading(pen_model& m) {
  for (auto& stage : m.staging->stages) check(cudaStreamSynchronize(stage->stream.handle), "loading");
  m.staging.reset();
  int overflowed = 0;
  check(cudaMemcpy(&overflowed, m.overflow.as<int>(), sizeof(int), cudaMemcpyDeviceToHost), "loading");
  if (overflowed) throw StatusError(PEN_UNSUPPORTED, "a weight is outside of float16's range");
  if (!m.tensors.complete()) throw StatusError(PEN_MISSING_TENSOR, "a tensor of the description was not loaded");
}

}  // namespace pen
