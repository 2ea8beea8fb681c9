// General attention by warpgroup products (sm_90a) for two shapes: the latent attention of DeepSeek-V2 and its successors, and heads of
// 512.
#pragma once

#include "general.h"

namespace pen {

constexpr int LATENT_DIM = 576;    // elements of a key: 512, and 64 that are rotated
constexpr int LATENT_VALUE = 512;  // a value is the first elements of its key; also the size of long heads

// Computes attention_general() with the same bits. Returns false, and does nothing, if the device, the shape or the step does not fit.
bool attention_latent(const Launch& launch, const GeneralAttention& args, const StepView& step);

}  // namespace pen
