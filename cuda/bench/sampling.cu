// Checks sampling on the device against the CPU's sampler (a port of src/logits with a full sort), and times it.
//
//   nvcc -std=c++17 -O3 -arch=native -Xcompiler -ffp-contract=off cuda/bench/sampling.cu cuda/sampling/*.cu -o sampling
//   sampling [--quick] [--time]
#include <atomic>
#include <map>
#include <thread>

#include "sampling_drafts.h"
#include "sampling_time.h"

namespace {

// Whether both have the same bits. All NaNs count as equal.
bool same_bits(float a, float b) { return float_to_bits(a) == float_to_bits(b) || (std::isnan(a) && std::isnan(b)); }

void check_logprobs(const float* x, int vocab, int asked, int sampled, const float* out, const int32_t* ids, const std::string& what) {
  if (asked < 0) {
    bool untouched = true;
    for (int i = 0; i <= MAX_LOGPROBS; i++) untouched &= float_to_bits(out[i]) == POISON;
    EXPECT(untouched, "%s: log-probabilities of a row that did not ask", what.c_str());
    return;
  }
  if (sampled < 0) return;
  double max = -INFINITY, sum = 0.0;
  for (int i = 0; i < vocab; i++) max = std::max(max, double(x[i]));
  if (!std::isfinite(max)) {  // a forbidden +inf: there is no distribution
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
    masks[2 * words + i] = 0;  // no id is allowed
  }
  int compared = 0, uncertain = 0;
  // The reference takes long for large rows, so these get fewer shapes.
  const std::vector<int> shapes = vocab > 130000 ? std::vector<int>{0, 1, 3} : vocab > 60000 ? std::vector<int>{0, 1, 2, 4, 6}
                                  : quick        ? std::vector<int>{0, 4, 8} : std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (int shape : shapes) {
    Sampler device(vocab, 2 * num + 1, masks);
    // Every setting with and without a mask, each in a separate slot, and a row of padding.
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
        // Both continue with what the device sampled.
        if (got.sampled[i] >= 0) references[i].record(uint32_t(got.sampled[i]));
        check_logprobs(x, vocab, rows.num_logprobs[i], got.sampled[i], &got.logprobs[size_t(i) * (1 + MAX_LOGPROBS)],
                       &got.ids[size_t(i) * MAX_LOGPROBS], what);
        compared += got.sampled[i] >= 0;
      }
      EXPECT(got.sampled[2 * num] == int(POISON), "%s: a row of padding says %d", names[0].c_str(), got.sampled[2 * num]);
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
    // Repeats the first step with each row alone, and in a batch in reverse order. The bits must be the same.
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

// Tests the distribution over twelve likely ids, with all others impossible. `bar`: one seed in 10,000 exceeds this statistic.
void chi_square(const char* name, float temperature, uint32_t k, float top_p, float min_p, int cells, double bar) {
  const int vocab = 1501, rows_n = 256, steps = 80;
  Sampler device(vocab, rows_n, {});
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
    for (int vocab : {7, 257, 4097, 32000}) {
      if (quick && vocab > 257) break;
      for (int shape : {0, 4}) compare_drafts(vocab, shape);
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
