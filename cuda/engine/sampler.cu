// Queues the sampling of a step.
#include "sampler.h"

#include <string>

namespace pen {

static_assert(MAX_LOGPROBS == PEN_MAX_LOGPROBS, "the header's rows are the kernel's");
static_assert(NOT_FINITE == PEN_SAMPLED_NOT_FINITE, "the header's value is the kernel's");

namespace {

// Copies a slot's lists, one after another, into the buffer from which the sampler's state is set up.
class ListUpload {
 public:
  explicit ListUpload(pen_model& model) : model_(model) {}

  template <class T>
  const T* operator()(const T* from, uint32_t count) {
    static_assert(sizeof(T) == 4, "lists of words");
    uint32_t* place = model_.scratch.slot_lists.as<uint32_t>() + used_;
    used_ += count;
    if (used_ > model_.scratch.slot_lists.size() / 4) throw StatusError(PEN_INVALID_ARG, "a slot's lists are longer than the context");
    // The source is pageable memory, so the driver stages it before the call returns.
    if (count) check(cudaMemcpyAsync(place, from, count * 4, cudaMemcpyHostToDevice, model_.stream.handle), "copying a slot's lists");
    return reinterpret_cast<const T*>(place);
  }

 private:
  pen_model& model_;
  size_t used_ = 0;
};

}  // namespace

void init_slot(pen_model& m, const pen_slot_init& init) {
  if (init.slot >= m.desc.max_slots) throw StatusError(PEN_INVALID_ARG, "the slot to set up does not exist");
  const auto limit = [](uint32_t count, int most, const char* what) {
    if (count > uint32_t(most)) throw StatusError(PEN_UNSUPPORTED, "more than " + std::to_string(most) + what);
  };
  limit(init.num_biases, MAX_BIASES, " logit biases");
  limit(init.num_suppressed, MAX_SUPPRESSED, " suppressed ids");
  const SlotParams params{init.temperature, init.top_p, init.min_p, init.presence_penalty, init.frequency_penalty, init.repetition_penalty,
                          init.top_k, init.min_tokens, init.num_biases, init.num_suppressed, init.num_generated, init.seed};
  const bool repetition = init.repetition_penalty != 1.0f;
  const bool penalties = repetition || init.presence_penalty != 0 || init.frequency_penalty != 0;
  SlotLists lists{};
  lists.num_prompt = repetition ? init.num_prompt : 0;
  lists.num_generated = penalties ? init.num_generated : 0;
  ListUpload upload(m);
  lists.prompt = upload(init.prompt, lists.num_prompt);
  lists.generated = upload(init.generated, lists.num_generated);
  lists.bias_ids = upload(init.bias_ids, init.num_biases);
  lists.biases = upload(init.biases, init.num_biases);
  lists.suppressed = upload(init.suppressed, init.num_suppressed);
  sampler_reset(m.launch(false), m.sampler, init.slot, params, lists);
}

void sample_step(pen_model& m, const Step& step, bool overlap) {
  if (step.num_rows == 0) return;
  Sample args{};
  args.logits = m.scratch.logits.as<float>();
  args.num_rows = step.num_rows;
  args.slots = step.slots;
  args.masks = m.scratch.masks.as<uint32_t>();
  args.mask_of = step.mask_of;
  args.results = step.results;
  args.workspace = m.scratch.sampler.as<void>();
  args.workspace_bytes = m.scratch.sampler.size();
  sample(m.launch(overlap), m.sampler, args);
}

void sample_or_lose(pen_model& m, const Step& step, bool overlap) {
  try {
    sample_step(m, step, overlap);
  } catch (const CudaError& error) {
    throw StatusError(PEN_CUDA, error.what());
  }
}

void logprobs_step(pen_model& m, const Step& step, const InFlight& f) {
  Logprobs args{};
  args.logits = m.scratch.logits.as<float>();
  args.num_rows = step.num_rows;
  args.slots = step.slots;
  args.num_likeliest = step.num_logprobs;
  args.logprobs = f.logprobs.as<float>();
  args.ids = f.logprob_ids.as<int32_t>();
  // This kernel may follow a graph, whose programmatic dependent it cannot be.
  logprobs(m.launch(false), m.sampler, args);
}

}  // namespace pen
