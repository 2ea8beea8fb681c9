// Choices of matrices that follow from a row's number alone: each head of latent attention has its own.
#pragma once

#include "../device/launch.h"

namespace pen {

// chosen [num_rows, heads] = the head, or -1 in rows that are padding.
void choose_heads(const Launch& launch, const uint32_t* slot_mapping, int32_t* chosen, int num_rows, int heads);

}  // namespace pen
