// Times sampling: several calls in a captured graph, median of several runs.
#pragma once

#include "graph_time.h"
#include "sampling_harness.h"

namespace {

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
      Sampler device(vocab, rows, {});
      std::vector<int32_t> slots(rows);
      for (int r = 0; r < rows; r++) slots[r] = r;
      Guarded<int32_t> slot_of(rows), asked(rows), sampled(rows), ids(size_t(rows) * MAX_LOGPROBS);
      Guarded<float> logprobs(size_t(rows) * (1 + MAX_LOGPROBS));
      Guarded<int32_t*> results(1);
      slot_of.put(slots);
      results.put({sampled.get()});
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
        // A graph of several calls, like the engine's. Before their wait, the kernels may read what no call here changes.
        constexpr int CALLS = 12;
        cudaStream_t stream;
        check(cudaStreamCreate(&stream), "stream");
        const Launch launch{gpu(), stream, true};
        const double us = pen::bench::graph_us(stream, 10, [&] {
          for (int i = 0; i < CALLS; i++) {
            float* const set = sets[i % SETS];
            sample(launch, device.state, Sample{set, rows, slot_of.get(), nullptr, nullptr, results.get(), workspace.get(), bytes});
            const Logprobs wanted{set, rows, slot_of.get(), nullptr, asked.get(), logprobs.get(), ids.get()};
            if (c.logprobs >= 0) pen::logprobs(launch, device.state, wanted);
          }
        });
        printf("%-32s %8d %6d %10.2f\n", c.name, vocab, rows, us / CALLS);
        cudaStreamDestroy(stream);
      }
    }
  }
}

}  // namespace
