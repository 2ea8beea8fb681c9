// Checks routing against its rules in float64 on the host.
#pragma once

#include <numeric>

#include "../experts/experts.h"
#include "experts_harness.cuh"

namespace pen::bench {

struct Rule {
  Gating gating = Gating::SOFTMAX;
  bool normalise = false, biased = false, scaled = false;
  int groups = 0, groups_used = 0, chunk_group = 0;
};

inline int num_rows = 0, num_close = 0;  // rows that were checked

struct Chosen {
  std::vector<int> experts;
  std::vector<double> weights;
  bool close;  // two decisive ranks differ by less than float32 can tell
};

// The rules of src/engine/cpu/routing.rs.
inline Chosen choose(const float* scores, const std::vector<float>& bias, const Rule& rule, int experts, int used, double scale) {
  const double highest = *std::max_element(scores, scores + experts);
  double total = 0;
  for (int i = 0; i < experts; i++) total += std::exp(scores[i] - highest);
  std::vector<double> weights(experts), ranks(experts);
  for (int i = 0; i < experts; i++) {
    weights[i] = rule.gating == Gating::SIGMOID ? 1 / (1 + std::exp(-double(scores[i]))) : std::exp(scores[i] - highest) / total;
    ranks[i] = (rule.gating == Gating::SOFTMAX_OF_CHOSEN ? scores[i] : weights[i]) + (rule.biased && !rule.chunk_group ? bias[i] : 0);
  }
  std::vector<int> order(experts);
  std::iota(order.begin(), order.end(), 0);
  const auto best_first = [](const std::vector<double>& by) { return [&by](int a, int b) { return by[a] > by[b]; }; };
  bool close = false;
  const auto look = [&](const std::vector<int>& sorted, const std::vector<double>& by, int first) {
    for (int i = 0; i < first && i + 1 < int(sorted.size()); i++) {
      const double apart = by[sorted[i]] - by[sorted[i + 1]];
      close |= apart > 0 && apart < 2e-7;
    }
  };
  if (rule.groups > 1) {
    const int size = experts / rule.groups;
    std::vector<double> sums(rule.groups);
    for (int g = 0; g < rule.groups; g++) {
      std::vector<double> own(ranks.begin() + g * size, ranks.begin() + (g + 1) * size);
      std::sort(own.rbegin(), own.rend());
      sums[g] = own[0] + (size > 1 ? own[1] : 0);
    }
    std::vector<int> groups(rule.groups);
    std::iota(groups.begin(), groups.end(), 0);
    std::stable_sort(groups.begin(), groups.end(), best_first(sums));
    look(groups, sums, rule.groups_used);
    groups.resize(rule.groups_used);
    const auto outside = [&](int i) { return std::find(groups.begin(), groups.end(), i / size) == groups.end(); };
    order.erase(std::remove_if(order.begin(), order.end(), outside), order.end());
  }
  std::stable_sort(order.begin(), order.end(), best_first(ranks));
  look(order, ranks, used);
  order.resize(used);
  Chosen out{order, {}, close};
  if (rule.chunk_group) {
    for (int& e : out.experts) e /= rule.chunk_group;
  }
  double sum = 0;
  for (int e : out.experts) {
    out.weights.push_back(rule.gating == Gating::SOFTMAX_OF_CHOSEN && !rule.chunk_group ? std::exp(scores[e] - highest) : weights[e]);
    sum += out.weights.back();
  }
  const bool divided = rule.normalise || rule.chunk_group || rule.gating == Gating::SOFTMAX_OF_CHOSEN;
  for (double& w : out.weights) w = w / (divided ? std::max(sum, 6.1035156e-5) : 1) * (rule.chunk_group ? 1 : scale);
  return out;
}

inline void check_rule(const Rule& rule, int rows, int experts, int used) {
  std::vector<float> scores(size_t(rows) * experts), bias = floats(experts, 0.3f), factors = floats(experts, 2.0f);
  for (auto& x : scores) x = std::round(uniform(-4.0f, 4.0f) * 8) / 8;  // some are equal
  std::vector<uint32_t> slots(rows);
  for (int i = 0; i < rows; i++) slots[i] = i % 7 == 5 ? NO_SLOT : uint32_t(i);
  const float broken[] = {std::nanf(""), INFINITY, -INFINITY};
  const auto is_broken = [&](int row) { return row % 5 == 3; };
  for (int row = 0; row < rows; row++) {
    if (is_broken(row)) scores[size_t(row) * experts + row * 11 % experts] = broken[row % 3];
  }
  if (rule.chunk_group) used = std::min(used, ceil_div(experts, rule.chunk_group));
  const float scale = rule.scaled ? 2.5f : 1.0f;
  Array<float> scores_d(scores), bias_d(bias), factors_d(factors), weights(size_t(rows) * used);
  Array<uint32_t> slots_d(slots);
  Array<int32_t> chosen(size_t(rows) * used);
  Routing r{scores_d.data, slots_d.data, nullptr, nullptr, rows, experts, used, 0, 0, rule.normalise, chosen.data, weights.data, nullptr};
  r.gating = rule.gating;
  if (rule.biased) r.choice_bias = bias_d.data;
  if (rule.scaled) r.output_scales = factors_d.data;
  r.groups = rule.groups, r.groups_used = rule.groups_used, r.chunk_group = rule.chunk_group, r.scale = scale;
  route(Launch{gpu()}, r);
  const std::vector<int32_t> choice = chosen.get();
  const std::vector<float> weight = weights.get();
  for (int row = 0; row < rows; row++) {
    const auto got = choice.begin() + size_t(row) * used;
    const auto share = weight.begin() + size_t(row) * used;
    if (slots[row] == NO_SLOT) {
      expect(std::all_of(got, got + used, [](int e) { return e == -1; }), "padding chooses nothing");
      continue;
    }
    if (is_broken(row)) {
      expect(std::all_of(share, share + used, [](float w) { return w != w; }), "a score that is not finite makes every weight NaN");
      expect(std::all_of(got, got + used, [&](int e) { return e >= 0 && e < experts; }), "a broken row's experts exist");
      continue;
    }
    const Chosen exact = choose(&scores[size_t(row) * experts], bias, rule, experts, used, scale);
    num_rows++, num_close += exact.close;
    if (exact.close) continue;
    for (int i = 0; i < used; i++) {
      const int e = exact.experts[i];
      const double w = exact.weights[i] * (rule.scaled && !rule.chunk_group ? factors[e] : 1);
      expect(got[i] == e, "the highest ranks are chosen");
      expect(std::abs(share[i] - w) < 1e-5 * std::max(1.0, std::abs(w)), "a choice's weight");
    }
  }
}

inline void check_routing(bool quick) {
  std::vector<std::array<int, 2>> sizes = {{8, 2}, {128, 8}, {160, 6}};
  if (!quick) sizes.insert(sizes.end(), {{32, 4}, {60, 4}, {256, 8}, {512, 10}, {512, 40}, {640, 12}, {4096, 64}});
  for (const auto& [experts, used] : sizes) {
    for (Gating gating : {Gating::SOFTMAX, Gating::SIGMOID, Gating::SOFTMAX_OF_CHOSEN}) {
      for (int bits = 0; bits < 8; bits++) {
        Rule rule{gating, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
        check_rule(rule, 21, experts, used);
        rule.groups = 4, rule.groups_used = 3;
        check_rule(rule, 9, experts, used);
      }
      Rule adjugate{gating, true, true, true};
      adjugate.chunk_group = 2;
      check_rule(adjugate, 9, experts, used);
    }
    Rule many{Gating::SIGMOID, true, true};
    many.groups = experts / 2, many.groups_used = (experts / 2 + used) / 2;
    if (many.groups <= MAX_EXPERT_GROUPS) check_rule(many, 9, experts, used);
  }
  expect(num_close * 20 < num_rows, "the routes of 19 rows of 20 are compared");
}

}  // namespace pen::bench
