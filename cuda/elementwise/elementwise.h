// Ops on single elements, for architectures that need them between other ops: biases behind products, activations of feed-forward layers
// whose gate and up do not share tiles, soft caps of logits. Float32, each operation rounded; an element's bits depend on itself alone.
#pragma once

#include "../linear/linear.h"

namespace pen {

// x [rows, cols] += bias [cols]
void add_bias(const Launch& launch, float* x, const float* bias, int rows, int cols);

// x [rows, cols] = cap · tanh(x / cap)
void soft_cap(const Launch& launch, float* x, float cap, int rows, int cols);

// h = activation(gate) · up, or without a gate activation(up), rounded to float16; biases are added first.
struct Activate {
  const float* gate_up;                // [rows, 2 ffn], without a gate [rows, ffn]
  const float *gate_bias, *up_bias;    // [ffn], null: none
  __half* h;                           // [rows, ldh] out
  int ffn, ldh;
  bool gated;
  Epilogue activation;  // SILU_MUL or GELU_MUL
};

void activate(const Launch& launch, const Activate& args, int rows);

}  // namespace pen
