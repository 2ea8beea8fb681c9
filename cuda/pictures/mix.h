// Rows of a picture encoder's step that are not computed one from another: patches of pixels, and weighted sums of rows, by which rows are
// reordered, joined and averaged, and rows of tables are looked up and interpolated. All sums are float32, in the order of their terms, and
// each operation is rounded.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "penstock.h"

namespace pen {

// The terms of each part of a row, on the device: part i has those from ends[i - 1] to ends[i].
struct MixTerms {
  const uint32_t *ends, *rows;
  const float* weights;
};

// Each row of `to` has `parts` parts of `len` elements. Part i of a row becomes Σ weight · from[row], or is added to.
struct Mix {
  const float* from;
  float* to;
  int ld_from, ld_to, len, parts;
  bool interleaved;  // the elements of a part lie `parts` apart
  bool add;
};
void mix(const Launch& launch, const Mix& args, const MixTerms& terms, int rows);

// Writes the pixels of patches [rows, 3 size²] as they enter the encoder's first op: see pen_patches.
struct Patches {
  __half* out;
  float* floats;  // instead of `out`, unless null
  int ld, size;
  float mean[3], deviation[3];
};
void write_patches(const Launch& launch, const Patches& args, const uint8_t* pixels, const pen_patch* patches, int rows);

}  // namespace pen
