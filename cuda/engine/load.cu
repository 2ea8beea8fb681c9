// Loading: the caller's threads copy pieces of a tensor into pinned memory, the copy engine takes them to the device, and a kernel repacks
// them there.
#include <algorithm>
#include <cstring>
#include <string>

#include "model.h"
#include "staging.h"

namespace pen {

namespace {

// A vector is short: it is copied at once.
void load_vector(const Target& target, const uint8_t* data, uint64_t nbytes) {
  const std::lock_guard alone(device_wide());
  check(cudaMemcpy(const_cast<float*>(*target.vector), data, nbytes, cudaMemcpyHostToDevice), "copying a vector");
}

void load_matrices(pen_model& m, const Target& target, const QuantRow& quant, const uint8_t* data, size_t row_bytes) {
  const uint64_t tile = target.placement == Placement::WHOLE ? TILE_ROWS : TILE_ROWS / 2;
  const uint64_t piece = STAGE_BYTES / row_bytes / tile * tile;
  if (piece == 0) throw StatusError(PEN_UNSUPPORTED, "rows of " + std::to_string(row_bytes) + " bytes");
  for (uint64_t i = 0; i < target.count; i++) {
    auto* records = const_cast<uint8_t*>(target.matrix->data) + i * target.matrix->bytes();
    for (uint64_t first = 0; first < target.rows; first += piece) {
      const uint64_t count = std::min(piece, target.rows - first);
      const Lease lease(*m.staging);
      Stage& stage = *lease.stage;
      if (stage.used) check(cudaEventSynchronize(stage.done.handle), "loading");
      stage.used = true;
      uint8_t *const host = stage.pinned.as<uint8_t>(), *const blocks = stage.device.as<uint8_t>();
      std::memcpy(host, data + (i * target.rows + first) * row_bytes, count * row_bytes);
      const Launch launch{m.ctx.device, stage.stream.handle};
      check(cudaMemcpyAsync(blocks, host, count * row_bytes, cudaMemcpyHostToDevice, launch.stream), "copying a tensor");
      repack(launch, quant.id, Repack{blocks, records, int(first), int(count), int(target.rows), int(target.cols), target.placement,
                                      m.overflow.as<int>()});
      check(cudaEventRecord(stage.done.handle, launch.stream), "loading");
    }
  }
}

}  // namespace

void load_tensor(pen_model& m, uint32_t slot, uint32_t layer, const uint8_t* data, uint64_t nbytes) {
  Weights::Listed* listed = m.weights.listed(slot, layer);
  if (!listed) throw StatusError(PEN_INVALID_ARG, "the tensor was not listed");
  if (listed->came.exchange(true)) throw StatusError(PEN_INVALID_ARG, "the tensor came before");
  const Target target = m.weights.target(m.desc, slot, layer);
  const size_t row_bytes = target.cols / listed->quant->block_size * listed->quant->block_bytes, rows = target.rows * target.count;
  if (nbytes != rows * row_bytes) {
    throw StatusError(PEN_INVALID_ARG, std::to_string(nbytes) + " bytes, expected " + std::to_string(rows * row_bytes) + " for its shape");
  }
  if (target.vector) return load_vector(target, data, nbytes);
  load_matrices(m, target, *listed->quant, data, row_bytes);
}

void finish_loading(pen_model& m) {
  for (auto& stage : m.staging->stages) check(cudaStreamSynchronize(stage->stream.handle), "loading");
  m.staging.reset();
  int overflowed = 0;
  check(cudaMemcpy(&overflowed, m.overflow.as<int>(), sizeof(int), cudaMemcpyDeviceToHost), "loading");
  if (overflowed) throw StatusError(PEN_UNSUPPORTED, "a weight lies outside of float16's range");
  if (!m.weights.complete()) throw StatusError(PEN_MISSING_TENSOR, "a listed tensor did not come");
}

}  // namespace pen
