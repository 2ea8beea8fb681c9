// What a step does for prompts beside their K and V: it copies blocks of a shared prompt, scores tokens that are known, and makes vectors.
#pragma once

#include "model.h"

namespace pen {

void check_prompts(const pen_model& model, const pen_kv& kv, const pen_batch& batch);
// Before the forward pass.
void begin_prompts(pen_model& model, pen_kv& kv, const pen_batch& batch, InFlight& flight);
// After the sampling.
void finish_prompts(pen_model& model, InFlight& flight);
void collect_prompts(const pen_model& model, const InFlight& flight, pen_output& out);

}  // namespace pen
