// The table of tensor types, and repacking: turns blocks of a GGUF file into records of format.cuh, on the device.
#pragma once

#include "../device/launch.h"
#include "matrix.h"

namespace pen {

// A row of types.inc.
struct QuantRow {
  uint32_t id;  // ggml's id
  const char* name;
  int block_size, block_bytes;  // weights and bytes per block of the file
  int format, record_bytes;     // on the device
};
// The row of a type, or null if there is none.
const QuantRow* quant_row(uint32_t id);

// Where the rows of a matrix go. A separate matrix fills whole tiles. Gate and up of a gated layer share tiles: tile t holds rows 8 t to 8
// t + 7 of the gate above the same rows of up, so that one lane of the product gets both.
enum class Placement : int { WHOLE, UPPER_HALF, LOWER_HALF };

struct Repack {
  const uint8_t* blocks;  // rows of the file's matrix from first_row, on the device
  uint8_t* records;       // the whole matrix, zeroed before
  int first_row, num_rows;  // of this piece; first_row is a multiple of 16 (WHOLE) or 8
  int rows, cols;           // of the whole matrix in the file
  Placement placement;
  int* overflow;  // set to 1 if a weight or a scale does not fit into float16
};

void repack(const Launch& launch, uint32_t type, const Repack& args);

}  // namespace pen
