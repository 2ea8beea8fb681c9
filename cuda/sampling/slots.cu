// Launches the setup of a slot's sampling state.
#include "slots.cuh"

namespace pen {

// `params` and `lists` count the same generated tokens. The larger number applies, because the list may be omitted.
void sampler_reset(const Launch& launch, const SamplerState& state, uint32_t slot, const SlotParams& params, const SlotLists& lists) {
  if (slot >= uint32_t(state.max_slots) || params.num_biases > MAX_BIASES || params.num_suppressed > MAX_SUPPRESSED) {
    throw CudaError(cudaErrorInvalidValue, "a slot's sampling parameters");
  }
  SlotParams p = params;
  if (lists.num_generated > p.num_generated) p.num_generated = lists.num_generated;
  launch(clear_kernel, dim3(ceil_div(state.vocab, 4 * RESET_THREADS)), dim3(RESET_THREADS), 0, state, slot, p);
  if (needs_counts(p)) launch(mark_kernel, dim3(8), dim3(RESET_THREADS), 0, state, slot, p, lists);
}

}  // namespace pen
