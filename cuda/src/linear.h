// Linear layers for forward.cu: repacking and products.
#pragma once

#include "../ops/linear.cuh"
#include "../quant/repack.cuh"

namespace pen {

struct QuantRow {
  uint32_t id;
  const char* name;
  int block_size, block_bytes;
  int format, record_bytes;
};
// The row of a ggml type id, or null.
const QuantRow* quant_row(uint32_t id);

void repack(const Launch& launch, uint32_t type, const Repack& args);
// May `norm` be computed within linear()? Where few rows make that cheaper than a kernel of its own.
bool takes_norm(int num_tokens, int cols);
// `num_tokens` may be anything; the kernel is chosen by it, the bits of a row are not.
void linear(const Launch& launch, const Linear& args);

}  // namespace pen
