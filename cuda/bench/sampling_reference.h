// The CPU's sampler (src/logits) as a reference for the device's: the same definitions by full sorts, with the margin of each decision.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../sampling/philox.cuh"
#include "../sampling/sampling.h"

namespace {

using namespace pen;

float bits_to_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
uint32_t float_to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

float ref_exp(float x) {
  const float ROUND = 12582912.0f;
  const float clamped = x > -87.0f ? x : -87.0f;
  const float shifted = clamped * 1.44269504088896340736f + ROUND;
  const float n = shifted - ROUND;
  const float r = (clamped - n * (355.0f / 512.0f)) - n * -2.1219444e-4f;
  float p = 1.0f / 5040.0f;
  for (float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) p = p * r + c;
  const uint32_t exponent = (float_to_bits(shifted) - float_to_bits(ROUND) + 127u) << 23;
  const float value = p * bits_to_float(exponent);
  return x > -87.0f ? value : 0.0f;
}

struct Settings {
  SlotParams p{};
  std::vector<uint32_t> prompt, generated, bias_ids, suppressed;
  std::vector<float> biases;
  std::string name;
};

struct Candidate {
  float weight;
  uint32_t id;
};

struct Drawn {
  int id;
  double margin;  // distance of the closest sum to the bound that decided, as a share of the total
};

struct Reference {
  Settings settings;
  std::map<uint32_t, uint32_t> counts;
  uint32_t num_generated = 0;

  explicit Reference(const Settings& s) : settings(s) {
    if (s.p.repetition_penalty != 1.0f) {
      for (uint32_t id : s.prompt) counts[id];
    }
    for (uint32_t id : s.generated) record(id);
  }
  bool penalties() const {
    return settings.p.repetition_penalty != 1.0f || settings.p.presence_penalty != 0.0f || settings.p.frequency_penalty != 0.0f;
  }
  void record(uint32_t id) {
    num_generated++;
    if (penalties()) counts[id]++;
  }

  Drawn choose(std::vector<float> x, const uint32_t* mask) const {
    const SlotParams& p = settings.p;
    const uint32_t vocab = uint32_t(x.size());
    for (const auto& [id, count] : counts) {
      if (id >= vocab) continue;
      if (p.repetition_penalty != 1.0f && std::isfinite(x[id])) {
        const float penalised = x[id] > 0.0f ? x[id] / p.repetition_penalty : x[id] * p.repetition_penalty;
        x[id] = std::min(std::max(penalised, -FLT_MAX), FLT_MAX);
      }
      if (count > 0) {
        const float scaled = p.frequency_penalty * float(count);
        x[id] -= p.presence_penalty + scaled;
      }
    }
    for (size_t i = 0; i < settings.bias_ids.size(); i++) {
      if (settings.bias_ids[i] < vocab) x[settings.bias_ids[i]] += settings.biases[i];
    }
    if (num_generated < p.min_tokens) {
      for (uint32_t id : settings.suppressed) {
        if (id < vocab && !std::isnan(x[id])) x[id] = -INFINITY;
      }
    }
    if (mask) {
      for (uint32_t id = 0; id < vocab; id++) {
        if (!(mask[id / 32] >> (id % 32) & 1) && !std::isnan(x[id])) x[id] = -INFINITY;
      }
    }
    float max = -INFINITY;
    uint32_t best = 0;
    for (uint32_t id = 0; id < vocab; id++) {
      if (std::isnan(x[id])) return {-2, 1.0};
      if (x[id] > max) max = x[id], best = id;
    }
    if (!std::isfinite(max)) return {-2, 1.0};
    if (p.temperature == 0.0f) return {int(best), 1.0};
    const double u = uniform(p.seed, num_generated);

    std::vector<float> weights(vocab);
    for (uint32_t id = 0; id < vocab; id++) weights[id] = ref_exp((x[id] - max) / p.temperature);
    double total = 0.0;  // as the CPU sums it: 16 lanes of float32 in blocks of 256
    for (uint32_t start = 0; start < vocab; start += 256) {
      float lanes[16] = {};
      for (uint32_t i = start; i < std::min(start + 256, vocab); i++) lanes[i % 16] += weights[i];
      double sum = 0.0;
      for (float lane : lanes) sum += lane;
      total += sum;
    }
    const bool top_k = p.top_k > 0 && p.top_k < vocab, min_p = p.min_p > 0.0f, top_p = p.top_p < 1.0f;
    std::vector<uint32_t> order(vocab);
    for (uint32_t id = 0; id < vocab; id++) order[id] = id;
    if (top_k) {
      std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return x[a] != x[b] ? x[a] > x[b] : a < b;  // -0 equals +0
      });
      order.resize(p.top_k);
      std::sort(order.begin(), order.end());
    }
    const float floor = !top_k && !min_p && top_p ? float(0.5 * (1.0 - double(p.top_p)) * total / vocab) : 0.0f;
    std::vector<Candidate> kept;
    double sum = 0.0;
    for (uint32_t id : order) {
      const float w = weights[id];
      if (w > 0.0f && w >= (min_p ? p.min_p : 0.0f) && w >= floor) {
        kept.push_back({w, id});
        sum += w;
      }
    }
    double margin = 1.0;
    if (top_p) {
      if (top_k || min_p) total = sum;
      std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) {
        return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
      });
      const double goal = double(p.top_p) * total;
      double running = 0.0;
      size_t keep = kept.size();
      for (size_t i = 0; i < kept.size(); i++) {
        running += kept[i].weight;
        margin = std::min(margin, std::fabs(running - goal) / total);
        if (running >= goal) {
          keep = i + 1;
          break;
        }
      }
      kept.resize(keep);
      sum = 0.0;
      for (const Candidate& c : kept) sum += c.weight;
    } else if (!top_k && !min_p) {
      return draw_all(weights, total, u);
    }
    if (kept.empty()) return {-2, margin};
    const double threshold = u * sum;
    double running = 0.0;
    for (const Candidate& c : kept) {
      running += c.weight;
      margin = std::min(margin, std::fabs(running - threshold) / sum);
      if (running > threshold) return {int(c.id), margin};
    }
    return {int(kept.back().id), margin};
  }

  // The two levels of the CPU's draw from the whole vocabulary.
  static Drawn draw_all(const std::vector<float>& weights, double total, double u) {
    const double threshold = u * total;
    double below = 0.0, margin = 1.0;
    uint32_t block = 0;
    for (uint32_t start = 0; start < weights.size(); start += 256) {
      float lanes[16] = {};
      for (uint32_t i = start; i < std::min<size_t>(start + 256, weights.size()); i++) lanes[i % 16] += weights[i];
      double sum = 0.0;
      for (float lane : lanes) sum += lane;
      if (sum > 0.0) {
        block = start;
        margin = std::min(margin, std::fabs(below + sum - threshold) / total);
        if (below + sum > threshold) break;
        below += sum;
      }
    }
    uint32_t last = block;
    for (uint32_t id = block; id < std::min<size_t>(block + 256, weights.size()); id++) {
      if (weights[id] > 0.0f) {
        last = id;
        below += weights[id];
        margin = std::min(margin, std::fabs(below - threshold) / total);
        if (below > threshold) break;
      }
    }
    return {int(last), margin};
  }
};

}  // namespace
