// Launches repacking, and holds the table of types.
#include "repack.cuh"

namespace pen {

namespace {

template <class Block, class Format, int BLOCK_SIZE, int BLOCK_BYTES>
void run(const Launch& launch, const Repack& args) {
  launch(repack_kernel<Block, Format, BLOCK_SIZE, BLOCK_BYTES>, dim3(1024), dim3(256), 0, args);
}

const QuantRow ROWS[] = {
#define QUANT(type, name, size, bytes, block, layout) {type, name, size, bytes, layout::id, layout::record_bytes},
#include "types.inc"
#undef QUANT
};

}  // namespace

const QuantRow* quant_row(uint32_t id) {
  for (const QuantRow& row : ROWS) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

void repack(const Launch& launch, uint32_t type, const Repack& args) {
  switch (type) {
#define QUANT(type, name, size, bytes, block, layout) \
  case type: return run<block, layout, size, bytes>(launch, args);
#include "types.inc"
#undef QUANT
  }
}

}  // namespace pen
