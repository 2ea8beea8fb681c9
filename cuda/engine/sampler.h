// Queues the sampling of a step.
#pragma once

#include "model.h"

namespace pen {

// Sets up a sequence slot's sampling state.
void init_slot(pen_model& model, const pen_slot_init& init);
// Queues the sampling of a step, and moves its slots on. `overlap`: it directly follows the forward pass.
void sample_step(pen_model& model, const Step& step, const Paging& paging, bool overlap);
// Queues the sampling of a step, and treats every error as the loss of the device. A step's K and V may be written twice, but half a
// sampling has advanced some slots, which cannot be undone.
void sample_or_lose(pen_model& model, const Step& step, const Paging& paging, bool overlap);
// Queues the sampling of a step after its forward pass, with the log-probabilities and the copy of the logits that were requested. `masks`:
// null if no row has one. Errors as above.
void sample_rows(pen_model& model, const Step& step, InFlight& flight, const pen_masks* masks);
// Queues the log-probabilities of a step after its sampling, into the flight's pinned memory.
void logprobs_step(pen_model& model, const Step& step, const InFlight& flight);

}  // namespace pen
