// Attention among the rows of a picture encoder's step: those of one picture or of one window of it, all of which see each other.
//
// softmax(scale · q Kᵀ) V over the keys of a row's span. The numeric definition: the span's keys are cut into tiles of 64 from its first
// key on. For a row and a tile
//   s = q · k by tensor-core products, dim in steps of 16, ascending, float32
//   m = the largest s of this and all earlier tiles; p = exp2(c · s - c · m) rounded to float16, with c = scale · log2(e)
//   l and O, the sums of p and of p · V over all tiles so far: l = l · f + Σ p and O = O · f + p · V by tensor-core products over the keys
//   in steps of 16, ascending, where f = exp2(c · (the m before - m))
// and the result is O / l rounded to float16. So a row's bits depend on its span alone.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "choose.h"

namespace pen {

// Rows of a span that one block computes, and the span's keys.
struct AmongTile {
  int first, rows, first_key, keys;
};

struct AmongTiles {
  const AmongTile* tiles;  // [count] on the device
  int count;
  int block_rows;  // the most rows of a tile: among_block_rows()
  uint64_t pairs = 0;  // of rows and keys, in all
};

// Head h of row r begins at r · ld + h · stride, in `out` at r · ld + h · value_dim. Strides are multiples of 8, and elements between heads
// are zero. value_dim is even.
struct Among {
  const __half *q, *k, *v;
  __half* out;
  int ld_q, ld_k, ld_v, ld_out;
  int stride, value_stride;
  int num_heads, num_kv_heads, dim, value_dim;
  float scale;
};
// `rows` and `key_rows`: those of the buffers.
void among(const Launch& launch, const Among& args, const AmongTiles& tiles, int rows, int key_rows);
// Whether a device runs among_wide_kernel for heads of this size.
bool has_among_wide(const Device& device, int dim);

}  // namespace pen
