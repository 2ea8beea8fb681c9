// Steps: submit, sample, collect.
#pragma once

#include "model.h"

namespace pen {

// Queues a step and returns its number.
uint64_t submit(pen_model& model, pen_kv& kv, const pen_batch& batch);
// Queues the sampling of a step that waits for its masks. It must be the last step submitted.
void sample_with_masks(pen_model& model, uint64_t step, const pen_masks& masks);
// Waits for a step and returns its results.
void collect(pen_model& model, pen_output& out);

}  // namespace pen
