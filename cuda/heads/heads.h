// Finishes the heads of a step's queries, keys or values, between their product and attention.
//
// A head of `dim` floats, read from `in`, is processed in this order:
//   bias         x += bias[head · dim + i]
//   clamp        x = min(max(x, -clamp), clamp)
//   norm         of its first norm_dim elements, RMS:   x · (1 / sqrt(Σ x² / n + eps)) · weight [+ bias]
//                                               LAYER: (x - mean) · (1 / sqrt(Σ (x - mean)² / n + eps)) · weight [+ bias]
//   rotation     of elements [rope_first, rope_first + rope_dim): a · cos - b · sin, a · sin + b · cos for each pair (a, b)
//   temperature  x · (1 + scale · ln(1 + floor((position + offset) / floor)))
// Each of these happens only if it is requested. With norm_after_rope, the norm follows the rotation. All of it is float32. A thread adds
// up its own elements in ascending order, then the lanes of a warp add up by a tree, then the warps in ascending order. A head's bits
// depend on that head alone. Rounding to float16 clamps to the largest finite number. A NaN stays NaN.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "../device/step.h"
#include "choose.h"

namespace pen {

enum class HeadNorm : int { NONE, RMS, LAYER };

struct Heads {
  // Head h of row t starts at in + t · ld_in + h · head_stride. In place (out == in with the same strides) is allowed.
  const float* in;
  int ld_in, head_stride;
  int num_heads, dim;          // dim up to HEADS_DIM
  const float* bias = nullptr;  // [num_heads · dim], null: none
  float clamp = 0.0f;           // 0: none

  HeadNorm norm = HeadNorm::NONE;
  int norm_dim = 0;                    // elements that the norm covers, from the head's start; 0: all
  const float* norm_weight = nullptr;  // null: ones
  const float* norm_bias = nullptr;    // null: none
  int norm_stride = 0;                 // floats from one head's weights (and biases) to the next head's; 0: all heads share them
  float eps = 0.0f;
  bool norm_after_rope = false;

  const uint8_t* rope_axes = nullptr;  // [rope_dim / 2] which of a row's three positions rotates each pair, in a step with a grid
  const float* rope = nullptr;  // [max_positions, rope_dim]: cosines of the rope_dim / 2 pairs, then sines; null: no rotation
  int rope_dim = 0, rope_first = 0;
  bool rope_halves = false;  // pairs (i, i + rope_dim / 2) of the rotated elements; otherwise (2i, 2i + 1)
  bool rope_quarters = false;  // such pairs within each half of the rotated elements: (i, i + rope_dim / 4) of each

  float temperature_scale = 0.0f;  // 0: none
  float temperature_floor = 1.0f, temperature_offset = 0.0f;

  // Set one of the three outputs. Head h of row t starts at t · ld_out + h · out_head_stride.
  float* out = nullptr;
  __half* out16 = nullptr;
  int ld_out = 0, out_head_stride = 0;
  // Pages of K or of V: [num_blocks, num_heads, block_size, page_dim]. Elements beyond dim become zero.
  __half* pages = nullptr;
  int block_size = 0, page_dim = 0;
};
// Finishes the heads of a step. Padding rows, which have no slot, write nothing into the pages.
void finish_heads(const Launch& launch, const Heads& heads, const StepView& step);

}  // namespace pen
