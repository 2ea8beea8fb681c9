// Checks products, activations and sums of experts: bit for bit against linear() where a definition fixes the bits, otherwise against
// float64 on the host.
#pragma once

#include "../experts/experts.h"
#include "experts_harness.cuh"

namespace pen::bench {

struct Shape {
  int rows, experts, used, hidden, ffn;
  int choices() const { return rows * used; }
};

inline double activation(Activation kind, double x, const float* p) {
  switch (kind) {
    case Activation::SILU: return x / (1 + std::exp(-x));
    case Activation::GELU: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::GELU_ERF: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::RELU: return std::max(x, 0.0);
    case Activation::RELU_SQUARED: return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::XIELU:
      return x > 0 ? p[1] * x * x + p[2] * x : (std::expm1(std::min(x, double(p[3]))) - x) * p[0] + p[2] * x;
    default: return NAN;
  }
}
inline double gated(Activation kind, double gate, double up, const float* params) {
  if (kind != Activation::SWIGLU_CLAMPED) return activation(kind, gate, params) * up;
  const double g = std::min(gate, 7.0), u = std::min(std::max(up, -7.0), 7.0);
  return g / (1 + std::exp(-1.702 * g)) * (u + 1);
}

inline bool close(double got, double exact, double tolerance) { return std::abs(got - exact) <= tolerance * (1 + std::abs(exact)); }

// The choices of a step: different experts for each row, some of which are shared by many rows.
struct Choices {
  std::vector<int32_t> chosen;
  std::vector<uint32_t> slots;
  explicit Choices(const Shape& s) : chosen(s.choices(), -1), slots(s.rows) {
    for (int row = 0; row < s.rows; row++) {
      slots[row] = s.rows > 2 && row % 7 == 5 ? NO_SLOT : uint32_t(row);
      std::vector<int32_t> all(s.experts);
      for (int e = 0; e < s.experts; e++) all[e] = e;
      std::shuffle(all.begin(), all.end(), random_bits);
      if (row % 2) std::swap(all[0], *std::find(all.begin(), all.end(), 0));
      if (slots[row] != NO_SLOT) std::copy_n(all.begin(), s.used, &chosen[size_t(row) * s.used]);
    }
  }
};

// Multiplies each row by each expert's matrix through linear(): [experts, rows, matrix rows], rounded up to whole tiles.
inline std::vector<float> all_products(const Stack& stack, const Array<__half>& x, int ld, int rows, int experts) {
  const int width = stack.one.tiles() * TILE_ROWS;
  Array<float> all(size_t(experts) * rows * width);
  for (int e = 0; e < experts; e++) {
    Linear args{};
    args.w[0] = stack.one;
    args.w[0].rows = width;
    args.w[0].data += e * stack.one.bytes();
    args.num_segments = 1;
    args.x = x.data, args.ldx = ld, args.num_tokens = rows, args.ldo = width;
    args.out = all.data + size_t(e) * rows * width;
    args.epilogue = Epilogue::STORE;
    linear(Launch{gpu()}, args);
  }
  return all.get();
}

inline void check_grouping(const Shape& s, const Array<int32_t>& chosen, const Grouping& grouping, const Array<int32_t>& expert_of,
                           const Array<int32_t>& order, const Array<int32_t>& num_groups) {
  group_choices(Launch{gpu()}, grouping);
  const std::vector<int32_t> of = expert_of.get(), places = order.get(), choice = chosen.get();
  std::vector<int> seen(s.choices()), used(s.experts), groups(s.experts);
  for (size_t i = 0; i < places.size(); i++) {
    if (places[i] < 0) continue;
    seen[places[i]]++;
    expect(of[i / grouping.group] == choice[places[i]], "a choice is in a group of its expert");
  }
  for (int c = 0; c < s.choices(); c++) {
    expect(seen[c] == (choice[c] >= 0), "every choice has one place");
    if (choice[c] >= 0) used[choice[c]]++;
  }
  for (int e : of) {
    if (e >= 0) groups[e]++;
  }
  const auto begun = std::find(of.begin(), of.end(), -1) - of.begin();
  expect(num_groups.get()[0] == begun && std::all_of(of.begin() + begun, of.end(), [](int e) { return e < 0; }), "groups come first");
  for (int e = 0; e < s.experts; e++) expect(groups[e] == ceil_div(used[e], grouping.group), "an expert has no more groups than it needs");
}

// Checks products of all group sizes, stored and with activations.
inline void check_products(const Shape& s, uint32_t type, const Choices& choices) {
  const QuantRow& q = *quant_row(type);
  const int ld = int(round_up(s.hidden, K_TILE)), n = s.choices(), width = int(round_up(2 * s.ffn, TILE_ROWS));
  Stack stack(q, 2 * s.ffn, s.hidden, s.experts, true);
  Array<__half> x(halves(s.rows, ld, s.hidden, 1.0f));
  Array<int32_t> chosen(choices.chosen);
  std::vector<float> gate_bias = floats(size_t(s.experts) * s.ffn, 1.0f), up_bias = floats(size_t(s.experts) * s.ffn, 1.0f);
  Array<float> gate_d(gate_bias), up_d(up_bias);
  const std::vector<float> exact = all_products(stack, x, ld, s.rows, s.experts);
  for (int group : {8, 16, 32, 64, 128}) {
    const int groups = most_groups(n, s.experts, group);
    Array<int32_t> expert_of(groups), order(size_t(groups) * group), num_groups(1);
    const Grouping grouping{chosen.data, n, s.experts, group, groups, expert_of.data, order.data, num_groups.data};
    check_grouping(s, chosen, grouping, expert_of, order, num_groups);
    Array<float> out(size_t(n) * width);
    Array<__half> out16(size_t(n) * s.ffn);
    ExpertLinear args{};
    args.w[0] = stack.one;
    args.w[0].rows = width;
    args.num_segments = 1;
    args.expert_of = expert_of.data, args.order = order.data, args.num_groups = num_groups.data, args.group = group;
    args.x = x.data, args.ldx = ld, args.share = s.used;
    args.out = out.data, args.ldo = width;
    expert_linear(Launch{gpu()}, args, groups);
    args.w[0].rows = 2 * s.ffn;
    args.out16 = out16.data, args.ldo = s.ffn, args.glu = true;
    args.gate_bias = gate_d.data, args.up_bias = up_d.data;
    args.activation = group == 8 ? Activation::SWIGLU_CLAMPED : Activation::SILU;
    expert_linear(Launch{gpu()}, args, groups);
    const std::vector<float> got = out.get();
    const std::vector<__half> acted = out16.get();
    bool same = true, right = true;
    for (int c = 0; c < n; c++) {
      const int e = choices.chosen[c];
      if (e < 0) continue;
      const float* row = &exact[(size_t(e) * s.rows + c / s.used) * width];
      same &= std::memcmp(&got[size_t(c) * width], row, size_t(width) * 4) == 0;
      for (int i = 0; i < s.ffn; i++) {
        const int at = i / 8 * 16 + i % 8;
        const double gate = row[at] + gate_bias[size_t(e) * s.ffn + i], up = row[at + 8] + up_bias[size_t(e) * s.ffn + i];
        right &= close(__half2float(acted[size_t(c) * s.ffn + i]), gated(args.activation, gate, up, args.params), 1e-3);
      }
    }
    expect(same, "a product has the bits of its row alone");
    expect(right, "biases and activation behind a product");
  }
}

inline void check_activations(const Shape& s, const Choices& choices) {
  const int ld = int(round_up(s.ffn, K_TILE)) + 64, n = s.choices();
  Array<int32_t> chosen(choices.chosen);
  std::vector<float> gate_bias = floats(size_t(s.experts) * s.ffn, 1.0f), up_bias = floats(size_t(s.experts) * s.ffn, 1.0f);
  Array<float> gate_d(gate_bias), up_d(up_bias);
  for (int kind = 0; kind < 7; kind++) {
    for (bool has_gate : {true, false}) {
      if (!has_gate && Activation(kind) == Activation::SWIGLU_CLAMPED) continue;
      std::vector<float> x = floats(size_t(n) * s.ffn * (has_gate ? 2 : 1), 9.0f);
      x[0] = NAN;
      Array<float> x_d(x);
      Array<__half> out(size_t(n) * ld);
      ExpertActivate args{x_d.data, chosen.data, gate_d.data, up_d.data, out.data, s.ffn, ld, has_gate, Activation(kind),
                          {0.8f, 0.9f, 0.5f, -1e-6f}};
      expert_activate(Launch{gpu()}, args, n);
      const std::vector<__half> got = out.get();
      for (int c = 0; c < n; c++) {
        const int e = choices.chosen[c];
        if (e < 0) continue;
        for (int i = 0; i < int(round_up(s.ffn, K_TILE)); i++) {
          const float y = __half2float(got[size_t(c) * ld + i]);
          if (i >= s.ffn) {
            expect(y == 0, "columns behind an activation are zero");
            continue;
          }
          const float* row = &x[size_t(c) * s.ffn * (has_gate ? 2 : 1)];
          const double up = double(row[has_gate ? s.ffn + i : i]) + up_bias[size_t(e) * s.ffn + i];
          const double gate = double(row[i]) + gate_bias[size_t(e) * s.ffn + i];
          const double exact = has_gate ? gated(args.activation, gate, up, args.params) : activation(args.activation, up, args.params);
          expect(c == 0 && i == 0 ? y != y : close(y, exact, 2e-3), "an activation");
        }
      }
    }
  }
}

inline void check_sums(const Shape& s, const Choices& choices) {
  const int n = s.choices(), ld = int(round_up(s.hidden, K_TILE));
  const std::vector<float> outputs = floats(size_t(n) * s.hidden, 1), shared = floats(size_t(s.rows) * s.hidden, 1);
  const std::vector<float> before = floats(shared.size(), 1);
  const std::vector<float> weights = floats(n, 1), share = floats(s.rows, 1), bias = floats(size_t(s.experts) * s.hidden, 1);
  Array<float> outputs_d(outputs), shared_d(shared), weights_d(weights), share_d(share), bias_d(bias);
  Array<uint32_t> slots(choices.slots);
  Array<int32_t> chosen(choices.chosen);
  for (int bits = 0; bits < 64; bits++) {
    const bool add = bits & 1, has_shared = bits & 2, has_share = bits & 4, mean = bits & 8, weighed = bits & 16, biased = bits & 32;
    Array<float> out(before);
    Combine args{outputs_d.data, weighed ? weights_d.data : nullptr, has_shared ? shared_d.data : nullptr,
                 has_share ? share_d.data : nullptr, slots.data, out.data, s.hidden, s.used, add};
    args.scale = add ? 0.3f : 1.0f, args.factor = mean ? 1.0f : 0.7f, args.mean_shared = mean;
    args.chosen = chosen.data, args.num_experts = s.experts, args.down_bias = biased ? bias_d.data : nullptr;
    combine(Launch{gpu()}, args, s.rows);
    const std::vector<float> got = out.get();
    for (size_t i = 0; i < got.size(); i++) {
      const size_t row = i / s.hidden, column = i % s.hidden;
      if (choices.slots[row] == NO_SLOT) {
        expect(got[i] == before[i], "padding is left as it is");
        continue;
      }
      double sum = has_shared ? double(has_share ? share[row] : 1) * shared[i] : 0;
      for (int k = 0; k < s.used; k++) {
        const size_t c = row * s.used + k;
        const double y = outputs[c * s.hidden + column] + (biased ? bias[size_t(choices.chosen[c]) * s.hidden + column] : 0);
        sum += (weighed ? weights[c] : 1) * double(args.factor) * y;
      }
      sum *= (mean ? 0.5 : 1) * args.scale;
      expect(close(got[i], sum + (add ? before[i] : 0), 1e-5), "the sum of a row's experts");
    }
  }
  Array<__half> h(halves(s.rows, ld, s.hidden, 1)), weighed(size_t(n) * ld);
  weigh_input(Launch{gpu()}, WeighInput{h.data, weights_d.data, chosen.data, weighed.data, s.hidden, s.used, ld, ld}, s.rows);
  const std::vector<__half> x = h.get(), got = weighed.get();
  for (size_t i = 0; i < got.size(); i++) {
    const size_t c = i / ld, column = i % ld;
    if (choices.chosen[c] < 0) continue;
    const double exact = column < size_t(s.hidden) ? double(__half2float(x[c / s.used * ld + column])) * weights[c] : 0;
    expect(close(__half2float(got[i]), exact, 1e-3), "a weighted input");
  }
}

// Checks the shared expert's weight.
inline void check_share(const Shape& s, const Choices& choices) {
  const int ld = int(round_up(s.hidden, K_TILE));
  const std::vector<float> router = floats(s.hidden, 0.2f);
  Array<float> router_d(router), scores(floats(size_t(s.rows) * s.experts, 4)), weights(s.choices()), share(s.rows);
  Array<__half> h(halves(s.rows, ld, s.hidden, 1));
  Array<uint32_t> slots(choices.slots);
  Array<int32_t> chosen(s.choices());
  route(Launch{gpu()}, Routing{scores.data, slots.data, h.data, router_d.data, s.rows, s.experts, s.used, ld, s.hidden, true, chosen.data,
                               weights.data, share.data});
  const std::vector<__half> x = h.get();
  const std::vector<float> got = share.get();
  for (int row = 0; row < s.rows; row++) {
    double dot = 0;
    for (int i = 0; i < s.hidden; i++) dot += double(__half2float(x[size_t(row) * ld + i])) * router[i];
    expect(choices.slots[row] == NO_SLOT || std::abs(got[row] - 1 / (1 + std::exp(-dot))) < 1e-4, "the shared expert's weight");
  }
}

inline void check_shape(const Shape& s) {
  const Choices choices(s);
  for (uint32_t type : {1u, 8u, 12u, 39u}) {
    if (s.hidden % quant_row(type)->block_size == 0) check_products(s, type, choices);
  }
  check_activations(s, choices);
  check_sums(s, choices);
  check_share(s, choices);
}

}  // namespace pen::bench
