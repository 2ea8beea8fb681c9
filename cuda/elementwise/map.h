// The elementwise ops between the other ops: biases, activations, gates, scales, sums, conversions. All of it is float32, and each
// operation is rounded. An element's bits depend only on the elements at the same place in the operands.
#pragma once

#include "../device/launch.h"
#include "operand.h"
#include "penstock.h"

namespace pen {

// y = then(scale · f(in + bias)), y = factor · y · g(by), then out = y or out += y. f, then and g are PEN_IDENTITY or another activation of
// penstock.h.
struct Map {
  Operand in, by, out;
  int heads, dim;
  const float *bias, *scale;  // [heads · dim], [heads · dim / scale_group]; null: none
  int scale_group;
  uint32_t f, then, g;
  bool has_by, add;
  float factor;
};
void map(const Launch& launch, const Map& args, int rows);

// Replaces the first `dim` elements of each row by max(x − (mean + cutoff · deviation), 0).
void keep_largest(const Launch& launch, float* x, size_t ld, int dim, float cutoff, int rows);

// AltUp's ops on the residual streams (Cho et al. 2023): STREAMS streams of `hidden` elements per row, `router` [rows, STREAMS].
constexpr int STREAMS = 4;
// streams[to] += Σ_from (Σ_r coefficients[to · STREAMS + from][r] · router[r]) · streams[from]
void predict(const Launch& launch, float* streams, const float* router, const float* coefficients, int hidden, int rows);
// streams[to] += (x − streams[0]) · (1 + Σ_r coefficients[to][r] · router[r])
void correct(const Launch& launch, float* streams, const float* x, const float* router, const float* coefficients, int hidden, int rows);
// out (+)= in · |like| / |in|. Lengths are at least 1e-12.
void match_length(const Launch& launch, const Operand& in, const Operand& like, const Operand& out, int dim, bool add, int rows);

}  // namespace pen
