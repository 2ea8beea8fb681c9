// Sampling on the device against the CPU's sampler (a port of src/logits with a full sort), and its timings.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -Xcompiler -ffp-contract=off -cudart static cuda/bench/sample.cu cuda/src/sample.cu -o bench_sample
//   bench_sample [--quick] [--time]
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../src/ops.h"
#include "sample_reference.h"

using namespace pen;

namespace {

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

// --- the device ---

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

struct Device {
  int vocab, slots;
  Guarded<SlotParams> params;
  Guarded<uint32_t> counts, bias_ids;
  Guarded<float> biases;
  Guarded<int32_t> last;
  Guarded<uint32_t> masks;
  SamplerState state;

  Device(int vocab, int slots, const std::vector<uint32_t>& mask_words)
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
    sampler_reset(Launch{}, state, uint32_t(slot), p, prompt.get(), uint32_t(s.prompt.size()), generated.get(),
                  uint32_t(s.generated.size()), ids.get(), values.get(), forbidden.get());
    check(cudaDeviceSynchronize(), "sampler_reset");
  }

  Results run(const Rows& rows, const char* what, bool overlap = false) {
    const int n = int(rows.slots.size());
    Guarded<float> logits(rows.logits.size()), logprobs(size_t(n) * (1 + MAX_LOGPROBS));
    Guarded<int32_t> slot_of(n), mask_of(n), asked(n), sampled(n), copy(n), ids(size_t(n) * MAX_LOGPROBS);
    Guarded<int32_t*> copy_at(1);
    const size_t bytes = sampler_workspace(n, vocab);
    Guarded<uint32_t> workspace(bytes / 4);
    logits.put(rows.logits);
    slot_of.put(rows.slots);
    mask_of.put(rows.mask_of);
    asked.put(rows.num_logprobs);
    copy_at.put({copy.get()});
    Sample args{logits.get(), n, slot_of.get(), masks.get(), rows.mask_of.empty() ? nullptr : mask_of.get(),
                rows.num_logprobs.empty() ? nullptr : asked.get(), logprobs.get(), ids.get(), sampled.get(), copy_at.get(), workspace.get(),
                bytes};
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaDeviceSynchronize(), "before sample");
    sample(Launch{stream, overlap}, state, args);
    check(cudaStreamSynchronize(stream), "sample");
    check(cudaStreamDestroy(stream), "stream");
    EXPECT(logits.intact() && logprobs.intact() && sampled.intact() && copy.intact() && ids.intact() && workspace.intact() && slot_of.intact(),
           "%s: a guard zone of the step was written", what);
    const std::vector<int32_t> all = sampled.take(), copied = copy.take();
    for (int i = 0; i < n; i++) {
      const int due = rows.slots[i] < 0 ? int(POISON) : all[i];
      EXPECT(copied[i] == due, "%s: row %d: the copy says %d, due %d", what, i, copied[i], due);
    }
    return Results{all, ids.take(), logprobs.take()};
  }

  void check_guards(const char* what) {
    EXPECT(params.intact() && counts.intact() && bias_ids.intact() && biases.intact() && last.intact(),
           "%s: a guard zone of the state was written", what);
  }
};

// --- inputs ---

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
  // Penalties, biases and suppression on top of some of them.
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
  // Logits that overflow: the likeliest there can be, but no broken row.
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

// --- checks ---

// The same bits; any NaN is as good as another.
bool same_bits(float a, float b) { return float_to_bits(a) == float_to_bits(b) || (std::isnan(a) && std::isnan(b)); }

void check_logprobs(const float* x, int vocab, int asked, int sampled, const float* out, const int32_t* ids, const std::string& what) {
  if (asked < 0) {
    bool untouched = true;
    for (int i = 0; i <= MAX_LOGPROBS; i++) untouched &= float_to_bits(out[i]) == POISON;
    EXPECT(untouched, "%s: log-probabilities that nobody asked for", what.c_str());
    return;
  }
  if (sampled < 0) return;
  double max = -INFINITY, sum = 0.0;
  for (int i = 0; i < vocab; i++) max = std::max(max, double(x[i]));
  if (!std::isfinite(max)) {  // a +inf that was forbidden: there is no distribution
    EXPECT(std::isnan(out[0]), "%s: logprob of the sampled id %d: %g where there is none", what.c_str(), sampled, out[0]);
    return;
  }
  for (int i = 0; i < vocab; i++) sum += exp(double(x[i]) - max);
  const double norm = max + log(sum);
  const auto near = [&](float got, double due) {
    return due == -INFINITY ? got == -INFINITY : std::fabs(got - due) <= 2e-6 + 1e-6 * std::fabs(due);
  };
  EXPECT(near(out[0], x[sampled] - norm), "%s: logprob of the sampled id %d: %g, due %g", what.c_str(), sampled, out[0], x[sampled] - norm);
  const int n = std::min(std::min(asked, MAX_LOGPROBS), vocab);
  std::vector<int> order(vocab);
  for (int i = 0; i < vocab; i++) order[i] = i;
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int a, int b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  for (int i = 0; i < n; i++) {
    EXPECT(ids[i] == order[i] && near(out[1 + i], x[order[i]] - norm), "%s: likeliest %d of %d: id %d %g, due %d %g", what.c_str(), i, n,
           ids[i], out[1 + i], order[i], x[order[i]] - norm);
  }
}

void compare(int vocab, bool quick) {
  std::mt19937 rng(17 + vocab);
  const std::vector<Settings> settings = all_settings(vocab, rng);
  const int num = int(settings.size()), words = ceil_div(vocab, 32);
  std::vector<uint32_t> masks(3 * size_t(words));
  for (int i = 0; i < words; i++) {
    masks[i] = rng();
    masks[words + i] = rng() & rng() & rng() & rng() & rng();
    masks[2 * words + i] = 0;  // nothing is allowed
  }
  int compared = 0, uncertain = 0;
  // Large rows take the reference long: fewer shapes.
  const std::vector<int> shapes = vocab > 130000 ? std::vector<int>{0, 1, 3} : vocab > 60000 ? std::vector<int>{0, 1, 2, 4, 6}
                                  : quick        ? std::vector<int>{0, 4, 8} : std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (int shape : shapes) {
    Device device(vocab, 2 * num + 1, masks);
    // Every setting without and with a mask, each in a slot of its own, and a row of padding.
    Rows rows;
    std::vector<Reference> references;
    std::vector<std::string> names;
    for (int i = 0; i < 2 * num + 1; i++) {
      const bool padding = i == 2 * num;
      const Settings& s = settings[i % num];
      rows.slots.push_back(padding ? -1 : i);
      rows.mask_of.push_back(i < num || padding ? -1 : (i % 7 == 6 ? 2 : i % 2));
      rows.num_logprobs.push_back(padding ? 3 : i % 4 == 0 ? MAX_LOGPROBS : i % 4 == 1 ? 0 : i % 4 == 2 ? 5 : -1);
      const size_t start = rows.logits.size();
      rows.logits.resize(start + vocab);
      fill(rows.logits.data() + start, vocab, shape, rng);
      references.emplace_back(s);
      names.push_back("vocab " + std::to_string(vocab) + ", " + SHAPES[shape] + ", " + s.name + ", mask " +
                      std::to_string(rows.mask_of.back()));
      if (!padding) device.reset(i, s);
    }
    Results first;
    const int steps = vocab > 60000 || quick ? 2 : 4;
    for (int step = 0; step < steps; step++) {
      const Results got = device.run(rows, names[0].c_str(), step % 2 == 1);
      if (step == 0) first = got;
      std::vector<Drawn> all_due(2 * num);
      std::vector<std::thread> threads;
      std::atomic<int> next{0};
      for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); t++) {
        threads.emplace_back([&] {
          for (int i = next++; i < 2 * num; i = next++) {
            const float* x = rows.logits.data() + size_t(i) * vocab;
            const uint32_t* mask = rows.mask_of[i] < 0 ? nullptr : masks.data() + size_t(rows.mask_of[i]) * words;
            all_due[i] = references[i].choose(std::vector<float>(x, x + vocab), mask);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (int i = 0; i < 2 * num; i++) {
        const float* x = rows.logits.data() + size_t(i) * vocab;
        const Drawn due = all_due[i];
        const std::string what = names[i] + ", step " + std::to_string(step);
        uncertain += due.margin < 1e-11;
        EXPECT(got.sampled[i] == due.id || due.margin < 1e-11, "%s: sampled %d, due %d (margin %.1e)", what.c_str(), got.sampled[i],
               due.id, due.margin);
        // What was sampled is what both go on from.
        if (got.sampled[i] >= 0) references[i].record(uint32_t(got.sampled[i]));
        check_logprobs(x, vocab, rows.num_logprobs[i], got.sampled[i], &got.logprobs[size_t(i) * (1 + MAX_LOGPROBS)],
                       &got.ids[size_t(i) * MAX_LOGPROBS], what);
        compared += got.sampled[i] >= 0;
      }
      EXPECT(got.sampled[2 * num] == -1, "%s: a row of padding says %d", names[0].c_str(), got.sampled[2 * num]);
      const std::vector<int32_t> last = device.last.take();
      for (int i = 0; i < 2 * num; i++) {
        EXPECT(last[i] == got.sampled[i], "%s: last is %d, sampled %d", names[i].c_str(), last[i], got.sampled[i]);
      }
    }
    device.check_guards(names[0].c_str());
    const std::vector<SlotParams> params = device.params.take();
    const std::vector<uint32_t> counts = device.counts.take();
    for (int i = 0; i < 2 * num; i++) {
      EXPECT(params[i].num_generated == references[i].num_generated, "%s: %u generated, due %u", names[i].c_str(), params[i].num_generated,
             references[i].num_generated);
      if (!references[i].penalties()) continue;
      uint64_t sum = 0, due = 0;
      for (int id = 0; id < vocab; id++) sum += counts[size_t(i) * vocab + id] & 0x1fffffffu;
      for (const auto& [id, count] : references[i].counts) {
        if (id >= uint32_t(vocab)) continue;
        due += count;
        const uint32_t have = counts[size_t(i) * vocab + id] & 0x1fffffffu;
        EXPECT(have == count, "%s: id %u counted %u times, due %u", names[i].c_str(), id, have, count);
      }
      EXPECT(sum == due, "%s: %llu counted in all, due %llu", names[i].c_str(), (unsigned long long)sum, (unsigned long long)due);
    }
    // The first step again, each row alone or in a batch in reverse order: the same bits.
    for (int i = 0; i < 2 * num; i++) device.reset(i, settings[i % num]);
    Rows reversed = rows;
    std::reverse(reversed.slots.begin(), reversed.slots.end());
    std::reverse(reversed.mask_of.begin(), reversed.mask_of.end());
    std::reverse(reversed.num_logprobs.begin(), reversed.num_logprobs.end());
    const int n = 2 * num + 1;
    for (int i = 0; i < n; i++) {
      memcpy(&reversed.logits[size_t(i) * vocab], &rows.logits[size_t(n - 1 - i) * vocab], size_t(vocab) * 4);
    }
    const auto same = [&](const Results& got, int at, int i, const char* how) {
      const float* logprobs = &got.logprobs[size_t(at) * (1 + MAX_LOGPROBS)];
      EXPECT(got.sampled[at] == first.sampled[i] &&
                 std::equal(logprobs, logprobs + 1 + MAX_LOGPROBS, &first.logprobs[size_t(i) * (1 + MAX_LOGPROBS)], same_bits) &&
                 memcmp(&got.ids[size_t(at) * MAX_LOGPROBS], &first.ids[size_t(i) * MAX_LOGPROBS], 4 * MAX_LOGPROBS) == 0,
             "%s: not the same %s: %d and %d", names[i].c_str(), how, got.sampled[at], first.sampled[i]);
    };
    const Results back = device.run(reversed, names[0].c_str());
    for (int i = 0; i < n; i++) same(back, n - 1 - i, i, "in reverse order");
    for (int i = shape; i < 2 * num; i += quick ? 20 : 5) {
      device.reset(i, settings[i % num]);
      Rows alone;
      alone.logits.assign(rows.logits.begin() + size_t(i) * vocab, rows.logits.begin() + size_t(i + 1) * vocab);
      alone.slots = {rows.slots[i]};
      alone.mask_of = {rows.mask_of[i]};
      alone.num_logprobs = {rows.num_logprobs[i]};
      same(device.run(alone, names[i].c_str()), 0, i, "alone");
    }
  }
  printf("vocab %d: %d samples compared, %d at a tie of sums\n", vocab, compared, uncertain);
}

// Twelve likely ids, the rest impossible; the statistic stays below what one seed in 10,000 exceeds.
void chi_square(const char* name, float temperature, uint32_t k, float top_p, float min_p, int cells, double bar) {
  const int vocab = 1501, rows_n = 256, steps = 80;
  Device device(vocab, rows_n, {});
  Rows rows;
  rows.logits.assign(size_t(rows_n) * vocab, -INFINITY);
  std::vector<int> allowed;
  for (int i = 0; i < 12; i++) allowed.push_back(i * 131 + 3);
  for (int r = 0; r < rows_n; r++) {
    rows.slots.push_back(r);
    for (int i = 0; i < 12; i++) rows.logits[size_t(r) * vocab + allowed[i]] = -0.25f * float(i) + 2.0f;
    Settings s;
    s.p = neutral(977 + uint64_t(r) * 0x100000001ull);
    s.p.temperature = temperature;
    s.p.top_k = k;
    s.p.top_p = top_p;
    s.p.min_p = min_p;
    device.reset(r, s);
  }
  std::map<int, int> seen;
  for (int step = 0; step < steps; step++) {
    for (int id : device.run(rows, name).sampled) seen[id]++;
  }
  double total = 0.0, chi2 = 0.0;
  int counted = 0;
  for (int i = 0; i < cells; i++) total += exp(-0.25 * i / temperature);
  for (int i = 0; i < cells; i++) {
    const double due = exp(-0.25 * i / temperature) / total * rows_n * steps;
    counted += seen[allowed[i]];
    chi2 += (seen[allowed[i]] - due) * (seen[allowed[i]] - due) / due;
  }
  EXPECT(counted == rows_n * steps, "%s: %d of %d draws where they may be", name, counted, rows_n * steps);
  EXPECT(chi2 < bar, "%s: chi-square %.1f, bar %.1f", name, chi2, bar);
  printf("chi-square %s: %.1f (bar %.1f)\n", name, chi2, bar);
}

// --- timings ---

void timings() {
  struct Case {
    const char* name;
    float temperature, top_p, min_p;
    uint32_t top_k;
    int shape, logprobs;
    bool penalties;
  };
  const Case cases[] = {
      {"greedy", 0, 1, 0, 0, 0, -1, false},        {"greedy, penalties", 0, 1, 0, 0, 0, -1, true},
      {"greedy, 5 logprobs", 0, 1, 0, 0, 0, 5, false}, {"temperature 1", 1, 1, 0, 0, 0, -1, false},
      {"top_k 40", 1, 1, 0, 40, 0, -1, false},     {"top_p 0.9, peaked", 1, 0.9f, 0, 0, 0, -1, false},
      {"top_p 0.9, gauss", 1, 0.9f, 0, 0, 2, -1, false}, {"top_p 0.9, flat", 1, 0.9f, 0, 0, 1, -1, false},
      {"top_p 0.9, equal", 1, 0.9f, 0, 0, 3, -1, false}, {"min_p 0.05", 1, 1, 0.05f, 0, 0, -1, false},
      {"top_k 40 top_p 0.9 min_p 0.05", 1, 0.9f, 0.05f, 40, 0, -1, false},
      {"top_k 5000 top_p 0.9, gauss", 1, 0.9f, 0, 5000, 2, -1, false},
  };
  printf("\n%-32s %8s %6s %10s\n", "case", "vocab", "rows", "us");
  std::mt19937 rng(5);
  for (int vocab : {49152, 128256, 262144}) {
    for (int rows : {1, 16, 64, 256}) {
      if (rows != 1 && vocab != 128256) continue;
      constexpr int SETS = 3;
      Device device(vocab, rows, {});
      std::vector<int32_t> slots(rows);
      for (int r = 0; r < rows; r++) slots[r] = r;
      Guarded<int32_t> slot_of(rows), asked(rows), sampled(rows), ids(size_t(rows) * MAX_LOGPROBS);
      Guarded<float> logprobs(size_t(rows) * (1 + MAX_LOGPROBS));
      slot_of.put(slots);
      const size_t bytes = sampler_workspace(rows, vocab);
      Guarded<uint32_t> workspace(bytes / 4);
      std::vector<float> host(size_t(std::min(rows, 4)) * vocab);
      for (const Case& c : cases) {
        Guarded<float> sets0(size_t(rows) * vocab), sets1(size_t(rows) * vocab), sets2(size_t(rows) * vocab);
        float* sets[SETS] = {sets0.get(), sets1.get(), sets2.get()};
        for (float* set : sets) {
          const int distinct = std::min(rows, 4);
          for (int r = 0; r < distinct; r++) fill(host.data() + size_t(r) * vocab, vocab, c.shape, rng);
          for (int r = 0; r < rows; r += distinct) {
            check(cudaMemcpy(set + size_t(r) * vocab, host.data(), host.size() * 4, cudaMemcpyHostToDevice), "copy");
          }
        }
        asked.put(std::vector<int32_t>(rows, c.logprobs));
        for (int r = 0; r < rows; r++) {
          Settings s;
          s.p = neutral(uint64_t(r) + 1);
          s.p.temperature = c.temperature;
          s.p.top_p = c.top_p;
          s.p.min_p = c.min_p;
          s.p.top_k = c.top_k;
          if (c.penalties) s.p.presence_penalty = 0.1f, s.p.repetition_penalty = 1.1f;
          device.reset(r, s);
        }
        // A graph of several calls, as the engine runs them (nothing here depends on what is read ahead of the wait).
        constexpr int CALLS = 12;
        cudaStream_t stream;
        check(cudaStreamCreate(&stream), "stream");
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int i = 0; i < CALLS; i++) {
          Sample args{sets[i % SETS], rows, slot_of.get(), nullptr, nullptr, c.logprobs < 0 ? nullptr : asked.get(), logprobs.get(),
                      ids.get(), sampled.get(), nullptr, workspace.get(), bytes};
          sample(Launch{stream, true}, device.state, args);
        }
        check(cudaStreamEndCapture(stream, &graph), "capture");
        check(cudaGraphInstantiate(&exec, graph, 0), "graph");
        cudaEvent_t start, stop;
        check(cudaEventCreate(&start), "event");
        check(cudaEventCreate(&stop), "event");
        std::vector<float> times;
        for (int i = 0; i < 12; i++) {
          check(cudaEventRecord(start, stream), "event");
          check(cudaGraphLaunch(exec, stream), "launch");
          check(cudaEventRecord(stop, stream), "event");
          check(cudaEventSynchronize(stop), "event");
          float ms;
          check(cudaEventElapsedTime(&ms, start, stop), "event");
          if (i >= 2) times.push_back(ms * 1000.0f / CALLS);
        }
        std::sort(times.begin(), times.end());
        printf("%-32s %8d %6d %10.2f\n", c.name, vocab, rows, times[times.size() / 2]);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
        cudaEventDestroy(start);
        cudaEventDestroy(stop);
        cudaStreamDestroy(stream);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, time = false;
  for (int i = 1; i < argc; i++) {
    quick |= !strcmp(argv[i], "--quick");
    time |= !strcmp(argv[i], "--time");
  }
  try {
    const Words4 known = philox4x32(Words4{0, 0, 0, 0}, 0, 0);
    EXPECT(known.x == 0x6627e8d5 && known.y == 0xe169c58d && known.z == 0xbc57ac4c && known.w == 0x9b00dbd8, "philox's known answer");
    for (int vocab : {1, 7, 257, 4097, 32000, 49152, 128256, 151936, 262144}) {
      if (quick && vocab > 4097) break;
      compare(vocab, quick);
    }
    if (!quick) {
      chi_square("temperature 0.7", 0.7f, 0, 1.0f, 0.0f, 12, 37.4);
      chi_square("temperature 1", 1.0f, 0, 1.0f, 0.0f, 12, 37.4);
      chi_square("temperature 1.6", 1.6f, 0, 1.0f, 0.0f, 12, 37.4);
      chi_square("top_k 5", 1.0f, 5, 1.0f, 0.0f, 5, 23.6);
      chi_square("min_p 0.3", 1.0f, 0, 1.0f, 0.3f, 5, 23.6);
      chi_square("top_p 0.55", 1.0f, 0, 0.55f, 0.0f, 3, 18.4);
    }
    if (time) timings();
  } catch (const std::exception& error) {
    printf("FAIL %s\n", error.what());
    failures++;
  }
  printf("sample: %d checks, %d failures\n", checks, failures);
  return failures ? 1 : 0;
}
