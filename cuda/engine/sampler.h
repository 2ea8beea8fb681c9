// Sampling within a step.
#pragma once

#include "model.h"

namespace pen {

// Sets up the sampler's state of a sequence slot.
void init_slot(pen_model& model, const pen_slot_init& init);
// Queues the sampling of a step. `overlap`: it comes directly behind the forward pass.
void sample_step(pen_model& model, const Step& step, bool overlap);
// The same, with every error counted as the loss of the device: the K and V of a step may be written twice, but slots that half a
// sampling has moved on cannot be taken back.
void sample_or_lose(pen_model& model, const Step& step, bool overlap);
// Queues the log-probabilities of a step after its sampling, into the flight's pinned memory.
void logprobs_step(pen_model& model, const Step& step, const InFlight& flight);

}  // namespace pen
