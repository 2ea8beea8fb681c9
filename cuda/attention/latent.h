// General attention by warpgroup products (sm_90a) for two shapes: the latent attention of DeepSeek-V2 and its successors, and heads of
// 512.
#pragma once

#include "general.h"

namespace pen {

// Whether this device runs these kernels, and how many clusters of the kernel for `row_tiles` row tiles it runs at the same time.
bool has_latent(const Device& device);
int latent_clusters(const Device& device, int row_tiles);

// Launches what choose_general() decided, with the bits of general.cuh. Returns false, and does nothing, if the driver cannot describe the
// queries and pages as boxes.
bool launch_latent(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralChoice& choice);

}  // namespace pen
