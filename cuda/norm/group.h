// Norms of parts of rows: each head by itself, or a whole row that stays float32. Works in place if out is in.
#pragma once

#include "../device/launch.h"
#include "../elementwise/operand.h"
#include "penstock.h"

namespace pen {

// RMS     y = x · inverse · weight + bias, inverse = 1 / sqrt(Σ x² / dim + eps)
// LAYER   y = (x − mean) · inverse · weight + bias, inverse = 1 / sqrt(Σ (x − mean)² / dim + eps)
// LENGTH  y = x · length / max(sqrt(Σ x²), eps)
// Sums: each thread adds every 256th element (every 32nd if dim is at most 256) in ascending order, then lanes by a tree, then warps in
// ascending order.
struct GroupNorm {
  Operand in, out;
  int heads, dim;
  uint32_t kind;                // PEN_RMS_NORM, PEN_LAYER_NORM or PEN_LENGTH
  const float *weight, *bias;   // [dim], or [heads · dim] if `own`; null: none
  bool own;
  float eps, length;
};
void group_norm(const Launch& launch, const GroupNorm& args, int rows);

}  // namespace pen
