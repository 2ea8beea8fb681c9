// General attention by warpgroup products (sm_90a) for two shapes: the latent attention that DeepSeek-V2 and its successors share, and
// heads of 512.
#pragma once

#include "general.h"

namespace pen {

constexpr int LATENT_DIM = 576;    // of a key: 512 elements, and 64 that are rotated
constexpr int LATENT_VALUE = 512;  // a value is the first elements of its key; and the length of long heads

// attention_general() with the same bits. Returns false, and does nothing, if the device, the shape or the step is no such case.
bool attention_latent(const Launch& launch, const GeneralAttention& args, const StepView& step);

}  // namespace pen
