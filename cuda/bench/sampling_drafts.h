// Checks rows that share a slot against the same rows sampled one at a time.
#pragma once

#include "sampling_harness.h"

namespace {

// Samples all rows with their drafts: first `split` rows, then the others. Returns the ids.
std::vector<int32_t> run_drafts(Sampler& device, const Rows& rows, const std::vector<int32_t>& next, int split) {
  const int n = int(rows.slots.size()), vocab = device.vocab;
  Guarded<float> logits(rows.logits.size());
  Guarded<int32_t> slots(n), mask_of(n), drafts(n), drawn(n), sampled(n);
  Guarded<int32_t*> results(1);
  const size_t bytes = sampler_workspace(n, vocab);
  Guarded<uint32_t> workspace(bytes / 4);
  logits.put(rows.logits);
  slots.put(rows.slots);
  mask_of.put(rows.mask_of);
  drafts.put(next);
  results.put({sampled.get()});
  for (const auto& [first, count] : {std::pair<int, int>{0, split}, {split, n - split}}) {
    Sample args{logits.get() + size_t(first) * vocab, count, slots.get() + first, device.masks.get(), mask_of.get() + first, results.get(),
                workspace.get(), bytes};
    args.drafts = {drafts.get() + first, drawn.get() + first, first};
    if (count > 0) sample(Launch{gpu()}, device.state, args);
  }
  check(cudaDeviceSynchronize(), "drafts");
  EXPECT(drawn.intact() && sampled.intact() && workspace.intact() && drafts.intact(), "a guard zone of the drafts was written");
  EXPECT(drawn.take() == sampled.take(), "what was drawn is not what was returned");
  return sampled.take();
}

// Every setting in a slot with five rows, whose drafts are right up to a row that differs from slot to slot.
void compare_drafts(int vocab, int shape) {
  constexpr int EACH = 5;
  std::mt19937 rng(29 + vocab);
  const std::vector<Settings> settings = all_settings(vocab, rng);
  const int num = int(settings.size());
  std::vector<uint32_t> masks(ceil_div(vocab, 32));
  for (uint32_t& word : masks) word = rng() | rng();
  Rows rows;  // those of a slot are neighbours
  for (int i = 0; i < num * EACH; i++) {
    rows.slots.push_back(i / EACH);
    rows.mask_of.push_back(i % 3 == 0 ? 0 : -1);
    rows.logits.resize(rows.logits.size() + vocab);
    fill(rows.logits.data() + rows.logits.size() - vocab, vocab, shape, rng);
  }
  const auto right = [&](int slot) { return slot % (EACH + 1); };  // rows in front of the first wrong draft
  Sampler alone(vocab, num, masks), device(vocab, num, masks);
  for (int i = 0; i < num; i++) alone.reset(i, settings[i]);
  std::vector<int32_t> due(num * EACH, SKIPPED), next(num * EACH, -1);
  for (int step = 0; step < EACH; step++) {
    Rows one;
    for (int slot = 0; slot < num; slot++) {
      const int row = slot * EACH + step;
      const bool is_skipped = step > 0 && (step > right(slot) || due[row - 1] < 0);
      one.slots.push_back(is_skipped ? -1 : slot);
      one.mask_of.push_back(rows.mask_of[row]);
      one.logits.insert(one.logits.end(), rows.logits.begin() + size_t(row) * vocab, rows.logits.begin() + size_t(row + 1) * vocab);
    }
    const Results got = alone.run(one, "one at a time");
    for (int slot = 0; slot < num; slot++) {
      const int row = slot * EACH + step;
      if (one.slots[slot] < 0) continue;
      due[row] = got.sampled[slot];
      const bool is_right = step + 1 <= right(slot);
      next[row] = due[row] < 0 ? 0 : is_right ? due[row] : (due[row] + 1) % vocab;
    }
  }
  for (const int split : {num * EACH, EACH, 7, num * EACH - 3}) {
    for (int i = 0; i < num; i++) device.reset(i, settings[i]);
    const std::vector<int32_t> got = run_drafts(device, rows, next, split);
    for (int row = 0; row < num * EACH; row++) {
      EXPECT(got[row] == due[row], "vocab %d, %s, drafts, row %d: %d, due %d", vocab, settings[row / EACH].name.c_str(), row % EACH,
             got[row], due[row]);
    }
    EXPECT(device.last.take() == alone.last.take() && device.counts.take() == alone.counts.take(), "vocab %d: drafts left a trace", vocab);
    const std::vector<SlotParams> params = device.params.take(), expected = alone.params.take();
    for (int i = 0; i < num; i++) EXPECT(params[i].num_generated == expected[i].num_generated, "drafts: a number of tokens");
    device.check_guards("drafts");
  }
}

}  // namespace
