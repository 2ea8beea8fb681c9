// Ops on single elements: activations of feed-forward layers whose gate and up do not share tiles, and soft caps of logits. All of it is
// float32, and each operation is rounded. An element's bits depend on that element alone.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "activation.h"

namespace pen {

// x [rows, cols] = cap · tanh(x / cap)
void soft_cap(const Launch& launch, float* x, float cap, int rows, int cols);

// h = activation(gate) · up, or activation(up) without a gate, rounded to float16. Biases are added first.
struct Activate {
  const float* gate_up;              // [rows, ld]: gate, then up; without a gate only up
  const float *gate_bias, *up_bias;  // [ffn], null: none
  __half* h;                         // [rows, ldh] out
  int ld, ffn, ldh;
  bool gated;
  Activation activation;
  float params[4];  // the activation's
};

void activate(const Launch& launch, const Activate& args, int rows);

}  // namespace pen
