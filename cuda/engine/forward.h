// The forward pass.
#pragma once

#include "model.h"

namespace pen {

// Queues a step whose metadata is on the device. The logits of its `num_rows` rows end up in scratch.logits.
void forward(pen_model& model, const pen_kv& kv, const Step& step);
// The final norm; its input is what the layers of the last step left.
Norm final_norm(const pen_model& model);
// Queues the logits of rows of the last step, at most max_slots of them.
void head(pen_model& model, const int32_t* rows, int num_rows);

}  // namespace pen
