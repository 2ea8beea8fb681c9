// Helpers that the checks and timings of sampling share: the sampler on the device, settings and logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gpu.h"
#include "sampling_reference.h"

namespace {

using pen::bench::gpu;

int failures = 0, checks = 0;
#define EXPECT(ok, ...)              \
  do {                               \
    checks++;                        \
    if (!(ok) && failures++ < 60) {  \
      printf("FAIL ");               \
      printf(__VA_ARGS__);           \
      printf("\n");                  \
    }                                \
  } while (0)

constexpr int GUARD = 64;
constexpr uint32_t POISON = 0x7fc0dead;

// An array between guard zones, filled with a pattern of NaN.
template <typename T>
struct Guarded {
  T* base = nullptr;
  size_t count;
  explicit Guarded(size_t count) : count(count) {
    check(cudaMalloc(&base, bytes()), "cudaMalloc");
    poison();
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { cudaFree(base); }
  size_t bytes() const { return round_up(count * sizeof(T), 256) + 2 * GUARD * 4; }
  T* get() const { return reinterpret_cast<T*>(reinterpret_cast<char*>(base) + GUARD * 4); }
  void poison() {
    std::vector<uint32_t> pattern(bytes() / 4, POISON);
    check(cudaMemcpy(base, pattern.data(), bytes(), cudaMemcpyHostToDevice), "copy");
  }
  void put(const std::vector<T>& values) {
    if (!values.empty()) check(cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  std::vector<T> take() const {
    std::vector<T> values(count);
    check(cudaMemcpy(values.data(), get(), count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }
  bool intact() const {
    uint32_t zones[2 * GUARD];
    check(cudaMemcpy(zones, base, GUARD * 4, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(zones + GUARD, reinterpret_cast<char*>(base) + bytes() - GUARD * 4, GUARD * 4, cudaMemcpyDeviceToHost), "copy");
    return std::all_of(zones, zones + 2 * GUARD, [](uint32_t word) { return word == POISON; });
  }
};

struct Rows {
  std::vector<float> logits;  // [rows, vocab]
  std::vector<int32_t> slots, mask_of, num_logprobs;
};
struct Results {
  std::vector<int32_t> sampled, ids;
  std::vector<float> logprobs;
};

struct Sampler {
  int vocab, slots;
  Guarded<SlotParams> params;
  Guarded<uint32_t> counts, bias_ids;
  Guarded<float> biases;
  Guarded<int32_t> last;
  Guarded<uint32_t> masks;
  SamplerState state;

  Sampler(int vocab, int slots, const std::vector<uint32_t>& mask_words)
      : vocab(vocab), slots(slots), params(slots), counts(size_t(slots) * vocab), bias_ids(size_t(slots) * MAX_BIASES),
        biases(size_t(slots) * MAX_BIASES), last(slots), masks(std::max<size_t>(mask_words.size(), 1)) {
    masks.put(mask_words);
    state = SamplerState{params.get(), counts.get(), bias_ids.get(), biases.get(), last.get(), slots, vocab};
  }

  void reset(int slot, const Settings& s) {
    Guarded<uint32_t> prompt(s.prompt.size() + 1), generated(s.generated.size() + 1), ids(s.bias_ids.size() + 1),
        forbidden(s.suppressed.size() + 1);
    Guarded<float> values(s.biases.size() + 1);
    prompt.put(s.prompt);
    generated.put(s.generated);
    ids.put(s.bias_ids);
    forbidden.put(s.suppressed);
    values.put(s.biases);
    SlotParams p = s.p;
    p.num_biases = uint32_t(s.bias_ids.size());
    p.num_suppressed = uint32_t(s.suppressed.size());
    const SlotLists lists{prompt.get(), generated.get(), ids.get(), forbidden.get(), values.get(), uint32_t(s.prompt.size()),
                          uint32_t(s.generated.size())};
    sampler_reset(Launch{gpu()}, state, uint32_t(slot), p, lists);
    check(cudaDeviceSynchronize(), "sampler_reset");
  }

  Results run(const Rows& rows, const char* what, bool overlap = false) {
    const int n = int(rows.slots.size());
    Guarded<float> logits(rows.logits.size()), logprobs(size_t(n) * (1 + MAX_LOGPROBS));
    Guarded<int32_t> slot_of(n), mask_of(n), asked(n), sampled(n), ids(size_t(n) * MAX_LOGPROBS);
    Guarded<int32_t*> results(1);
    const size_t bytes = sampler_workspace(n, vocab);
    Guarded<uint32_t> workspace(bytes / 4);
    logits.put(rows.logits);
    slot_of.put(rows.slots);
    mask_of.put(rows.mask_of);
    asked.put(rows.num_logprobs);
    results.put({sampled.get()});
    const Sample args{logits.get(), n, slot_of.get(), masks.get(), rows.mask_of.empty() ? nullptr : mask_of.get(), results.get(),
                      workspace.get(), bytes};
    const Logprobs wanted{logits.get(), n, slot_of.get(), nullptr, asked.get(), logprobs.get(), ids.get()};
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaDeviceSynchronize(), "before sample");
    sample(Launch{gpu(), stream, overlap}, state, args);
    if (!rows.num_logprobs.empty()) pen::logprobs(Launch{gpu(), stream, overlap}, state, wanted);
    check(cudaStreamSynchronize(stream), "sample");
    check(cudaStreamDestroy(stream), "stream");
    EXPECT(logits.intact() && logprobs.intact() && sampled.intact() && ids.intact() && workspace.intact() && slot_of.intact(),
           "%s: a guard zone of the step was written", what);
    return Results{sampled.take(), ids.take(), logprobs.take()};
  }

  void check_guards(const char* what) {
    EXPECT(params.intact() && counts.intact() && bias_ids.intact() && biases.intact() && last.intact(),
           "%s: a guard zone of the state was written", what);
  }
};

SlotParams neutral(uint64_t seed) {
  SlotParams p{};
  p.temperature = 1.0f;
  p.top_p = 1.0f;
  p.repetition_penalty = 1.0f;
  p.seed = seed;
  return p;
}

std::vector<Settings> all_settings(int vocab, std::mt19937& rng) {
  std::vector<Settings> all;
  const auto add = [&](const char* name, float temperature, uint32_t k, float top_p, float min_p) {
    Settings s;
    s.p = neutral(uint64_t(rng()) << 32 | rng());
    s.p.temperature = temperature;
    s.p.top_k = k;
    s.p.top_p = top_p;
    s.p.min_p = min_p;
    s.name = name;
    all.push_back(s);
  };
  add("greedy", 0.0f, 0, 1.0f, 0.0f);
  add("temperature 1", 1.0f, 0, 1.0f, 0.0f);
  add("temperature 0.3", 0.3f, 0, 1.0f, 0.0f);
  add("temperature 2", 2.0f, 0, 1.0f, 0.0f);
  add("temperature 1e-4", 1e-4f, 0, 1.0f, 0.0f);
  add("top_k 1", 1.0f, 1, 1.0f, 0.0f);
  add("top_k 40", 1.0f, 40, 1.0f, 0.0f);
  add("top_k vocab - 1", 1.5f, uint32_t(vocab - 1), 1.0f, 0.0f);
  add("top_k 3000", 2.0f, 3000, 1.0f, 0.0f);
  add("top_k 3000 top_p 0.8", 2.0f, 3000, 0.8f, 0.0f);
  add("top_p 0.9", 1.0f, 0, 0.9f, 0.0f);
  add("top_p 0.5 cold", 0.5f, 0, 0.5f, 0.0f);
  add("top_p 0.999 hot", 2.0f, 0, 0.999f, 0.0f);
  add("top_p 1e-6", 1.0f, 0, 1e-6f, 0.0f);
  add("top_p just below 1", 1.0f, 0, 0.99999994f, 0.0f);
  add("min_p 0.05", 1.0f, 0, 1.0f, 0.05f);
  add("min_p 1e-6", 2.0f, 0, 1.0f, 1e-6f);
  add("min_p 1", 1.0f, 0, 1.0f, 1.0f);
  add("min_p 0.02 top_p 0.7", 1.0f, 0, 0.7f, 0.02f);
  add("top_k 40 top_p 0.9", 0.8f, 40, 0.9f, 0.0f);
  add("top_k 50 min_p 0.1", 1.0f, 50, 1.0f, 0.1f);
  add("top_k 100 top_p 0.95 min_p 0.01", 1.2f, 100, 0.95f, 0.01f);
  const int filters = int(all.size());
  const auto any_id = [&] { return uint32_t(rng() % uint32_t(vocab)); };
  // Adds penalties, biases and suppression to some of the settings.
  for (int base : {0, 1, 6, 10, 16, 21}) {
    if (base >= filters) continue;
    Settings s = all[base];
    s.name += " + penalties";
    s.p.presence_penalty = 0.4f;
    s.p.frequency_penalty = 0.3f;
    s.p.repetition_penalty = base % 2 ? 1.3f : 1.0f;
    for (int i = 0; i < 200; i++) s.prompt.push_back(any_id());
    s.prompt.push_back(uint32_t(vocab) + 5);
    for (int i = 0; i < 50; i++) s.generated.push_back(i % 3 ? any_id() : 0);
    all.push_back(s);
    s.name += ", biases, suppression";
    const int count = base == 0 ? MAX_BIASES : 37;
    for (int i = 0; i < count; i++) {
      s.bias_ids.push_back(i % 9 == 8 ? s.bias_ids[rng() % s.bias_ids.size()] : any_id());
      s.biases.push_back(float(int(rng() % 2001) - 1000) * 0.007f);
    }
    s.bias_ids.back() = uint32_t(vocab) + 1;
    for (int i = 0; i < std::min(MAX_SUPPRESSED, std::max(vocab / 4, 2)); i++) s.suppressed.push_back(any_id());
    s.p.min_tokens = uint32_t(s.generated.size()) + 2;  // ends within the test
    all.push_back(s);
  }
  // Logits that overflow. Their ids are the likeliest possible, but the row is not broken.
  for (int base : {0, 1}) {
    Settings s = all[base];
    s.name += " + tiny repetition penalty";
    s.p.repetition_penalty = 1e-37f;
    for (int i = 0; i < 20; i++) s.prompt.push_back(any_id());
    all.push_back(s);
  }
  return all;
}

const char* SHAPES[] = {"peaked", "flat", "gauss", "equal", "ties", "mostly -inf", "huge", "signed zeros", "NaN", "+inf", "all -inf"};

void fill(float* x, int vocab, int shape, std::mt19937& rng) {
  std::normal_distribution<float> gauss;
  const auto unit = [&] { return float(rng() >> 8) / 16777216.0f; };
  for (int i = 0; i < vocab; i++) {
    switch (shape) {
      case 0: x[i] = -1.3f * logf(unit() * float(vocab) + 1.0f) + 14.0f; break;
      case 1: x[i] = 0.01f * gauss(rng) - 3.0f; break;
      case 3: x[i] = 2.5f; break;
      case 4: x[i] = roundf(gauss(rng) * 4.0f) * 0.5f; break;
      case 5: x[i] = rng() % 50 ? -INFINITY : 3.0f * gauss(rng); break;
      case 6: x[i] = 9000.0f * gauss(rng); break;
      case 7: x[i] = rng() % 3 ? (rng() % 2 ? 0.0f : -0.0f) : -1.0f; break;
      case 10: x[i] = -INFINITY; break;
      default: x[i] = 2.5f * gauss(rng); break;
    }
  }
  if (shape == 5) x[rng() % vocab] = 1.0f;
  if (shape == 8) x[rng() % vocab] = NAN;
  if (shape == 9) x[rng() % vocab] = INFINITY;
}

}  // namespace
