// Queues the sampling of a step.
#include "sampler.h"

#include <algorithm>
#include <string>

#include "program.h"

namespace pen {

static_assert(MAX_LOGPROBS == PEN_MAX_LOGPROBS, "the header's rows are the kernel's");
static_assert(NOT_FINITE == PEN_SAMPLED_NOT_FINITE && SKIPPED == PEN_SAMPLED_SKIPPED, "the header's values are the kernel's");

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

// Some of a step's rows of logits.
struct RowRange {
  int first, count;
};

Sample sample_args(const pen_model& m, const Step& step, RowRange rows) {
  Sample args{};
  args.logits = m.scratch.logits.as<float>();
  args.num_rows = rows.count;
  args.slots = step.slots + rows.first;
  args.masks = m.scratch.masks.as<uint32_t>();
  args.mask_of = step.mask_of + rows.first;
  args.results = step.results;
  args.workspace = m.scratch.sampler.as<void>();
  args.workspace_bytes = m.scratch.sampler.size();
  return args;
}

void queue_logprobs(pen_model& m, const Step& step, const InFlight& f, RowRange rows) {
  Logprobs args{};
  args.logits = m.scratch.logits.as<float>();
  args.num_rows = rows.count;
  args.slots = step.slots + rows.first;
  args.chosen = step.shares_slots ? m.scratch.drawn.as<int32_t>() + rows.first : nullptr;
  args.num_likeliest = step.num_logprobs + rows.first;
  args.logprobs = f.logprobs.as<float>() + size_t(rows.first) * (1 + MAX_LOGPROBS);
  args.ids = f.logprob_ids.as<int32_t>() + size_t(rows.first) * MAX_LOGPROBS;
  // This kernel may follow a graph, whose programmatic dependent it cannot be.
  logprobs(m.launch(false), m.sampler, args);
}

void copy_logits(pen_model& m, InFlight& f, RowRange rows) {
  if (!f.wants_logits || rows.count == 0) return;
  const size_t vocab = m.desc.vocab_size, end = size_t(rows.first + rows.count) * vocab;
  if (f.logits.size() < end) f.logits.resize(end);
  check(cudaMemcpyAsync(f.logits.data() + rows.first * vocab, m.scratch.logits.as<float>(), rows.count * vocab * sizeof(float),
                        cudaMemcpyDeviceToHost, m.stream.handle), "copying logits");
}

// Sends the masks of some rows, one after another in the order in which the rows name them, and which of these each row has.
void send_masks(pen_model& m, const Step& step, const InFlight& f, const pen_masks& masks, RowRange rows) {
  if (rows.count == 0) return;
  const size_t words = ceil_div(int(m.desc.vocab_size), 32);
  int32_t* const mask_of = reinterpret_cast<int32_t*>(f.meta.as<uint8_t>() + f.mask_of);
  std::vector<int32_t> place(masks.num_masks, -1);
  int count = 0;
  for (uint32_t k = 0; k < masks.num_sampled; k++) {
    const int row = f.row_of[k], mask = masks.mask_of[k];
    if (row < rows.first || row >= rows.first + rows.count) continue;
    if (mask >= 0 && place[mask] < 0) {
      std::copy_n(masks.masks + mask * words, words, f.masks.as<uint32_t>() + count * words);
      place[mask] = count++;
    }
    mask_of[row] = mask < 0 ? -1 : place[mask];
  }
  const auto copy = [&](const void* to, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(const_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice, m.stream.handle), "copying masks");
  };
  copy(step.mask_of + rows.first, mask_of + rows.first, size_t(rows.count) * 4);
  if (count > 0) copy(m.scratch.masks.as<uint8_t>(), f.masks.as<uint8_t>(), count * words * 4);
}

// Samples rows of which several share a slot, as many at a time as the logits' buffer holds.
void sample_drafts(pen_model& m, const Step& step, InFlight& f, const pen_masks* masks) {
  const Scratch& s = m.scratch;
  const Launch launch = m.launch(false);
  const int most = int(m.desc.max_slots);
  find_drafts(launch, m.sampler, step.inputs, step.view.num_tokens, step.gather, step.num_rows, s.drafts.as<int32_t>());
  for (int first = 0; first < step.num_rows; first += most) {
    const RowRange rows{first, std::min(most, step.num_rows - first)};
    if (first > 0) head(m, step.gather + first, rows.count);
    // The masks of the rows before have left the pinned memory only now.
    if (masks && first > 0) check(cudaStreamSynchronize(m.stream.handle), "masks");
    if (masks) send_masks(m, step, f, *masks, rows);
    copy_logits(m, f, rows);
    Sample args = sample_args(m, step, rows);
    args.drafts = {s.drafts.as<int32_t>() + first, s.drawn.as<int32_t>() + first, first};
    sample(launch, m.sampler, args);
    if (!f.num_logprobs.empty()) queue_logprobs(m, step, f, rows);
  }
}

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

void sample_step(pen_model& m, const Step& step, const Paging& paging, bool overlap) {
  if (step.num_rows > 0) sample(m.launch(overlap), m.sampler, sample_args(m, step, {0, step.num_rows}));
  if (step.of_slots) advance(m.launch(overlap), m.slots, step.num_rows, paging);
}

void sample_or_lose(pen_model& m, const Step& step, const Paging& paging, bool overlap) {
  try {
    sample_step(m, step, paging, overlap);
  } catch (const CudaError& error) {
    throw StatusError(PEN_CUDA, error.what());
  }
}

void logprobs_step(pen_model& m, const Step& step, const InFlight& f) { queue_logprobs(m, step, f, {0, step.num_rows}); }

void sample_rows(pen_model& m, const Step& step, InFlight& f, const pen_masks* masks) {
  try {
    if (step.shares_slots) return sample_drafts(m, step, f, masks);
    const RowRange all{0, step.num_rows};
    if (masks) send_masks(m, step, f, *masks, all);
    copy_logits(m, f, all);
    sample_step(m, step, f.paging, !masks && !f.wants_logits);
    if (!f.num_logprobs.empty()) queue_logprobs(m, step, f, all);
  } catch (const CudaError& error) {
    throw StatusError(PEN_CUDA, error.what());
  }
}

}  // namespace pen
