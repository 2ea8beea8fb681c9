// A step's work on prompts apart from K and V: copies blocks of a shared prompt, scores known tokens, and pools rows into vectors.
#pragma once

#include "model.h"

namespace pen {

void check_prompts(const pen_model& model, const pen_kv& kv, const pen_batch& batch);
// Runs before the forward pass.
void begin_prompts(pen_model& model, pen_kv& kv, const pen_batch& batch, InFlight& flight);
// Runs after the sampling.
void finish_prompts(pen_model& model, InFlight& flight);
void collect_prompts(const pen_model& model, const InFlight& flight, pen_output& out);

}  // namespace pen
