// The activations of feed-forward layers, of dense ones and of experts.
#pragma once

namespace pen {

// In the order of `Activation` in src/model/arch.rs, which says what each computes.
enum class Activation : int { SILU, GELU, GELU_ERF, RELU, RELU_SQUARED, SWIGLU_CLAMPED, XIELU };

}  // namespace pen
