// The activations of feed-forward layers, dense ones and experts.
#pragma once

namespace pen {

// In the order of `Activation` in src/model/arch.rs, which defines them.
enum class Activation : int { SILU, GELU, GELU_ERF, RELU, RELU_SQUARED, SWIGLU_CLAMPED, XIELU, GELU_QUICK = 12 };

}  // namespace pen
