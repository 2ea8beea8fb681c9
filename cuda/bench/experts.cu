// Layers with experts, and the ops beside linear layers: choices and sums against float64 on the host, every choice in one group of its
// expert, and each product with the bits that linear() gives its row alone; LayerNorm, biases, activations and soft caps against float64.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/experts.cu cuda/{experts,elementwise,norm,linear,quant}/*.cu -o experts
//   experts [--quick]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../elementwise/elementwise.h"
#include "../experts/experts.h"
#include "../quant/repack.h"
#include "gpu.h"

using namespace pen;
using pen::bench::gpu;

namespace {

std::mt19937 random_bits(11);
float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(random_bits); }
int failures = 0;

void expect(bool good, const char* what) {
  if (!good) std::printf("FAILED: %s\n", what), failures++;
}

constexpr size_t GUARD = 64;  // elements behind every buffer that no kernel may touch

template <typename T>
struct Array {
  T* data = nullptr;
  size_t size;
  explicit Array(size_t n) : size(n) {
    check(cudaMalloc(&data, (n + GUARD) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data, 0x5a, (n + GUARD) * sizeof(T)), "poison");
  }
  explicit Array(const std::vector<T>& from) : Array(from.size()) {
    check(cudaMemcpy(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~Array() {
    std::vector<uint8_t> guard(GUARD * sizeof(T));
    check(cudaMemcpy(guard.data(), data + size, guard.size(), cudaMemcpyDeviceToHost), "copy");
    expect(std::all_of(guard.begin(), guard.end(), [](uint8_t b) { return b == 0x5a; }), "a guard zone is whole");
    cudaFree(data);
  }
  Array(const Array&) = delete;
  std::vector<T> get() const {
    std::vector<T> out(size);
    check(cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return out;
  }
};

struct Shape {
  int rows, experts, used, hidden, ffn;
};

std::vector<__half> halves(size_t n, float size) {
  std::vector<__half> x(n);
  for (auto& v : x) v = __float2half_rn(uniform(-size, size));
  return x;
}

// Choices by sorting, weights in double.
void check_routing(const Shape& s, const Routing& r, const std::vector<float>& scores, const std::vector<uint32_t>& slots,
                   const std::vector<int32_t>& chosen, const std::vector<float>& weights) {
  for (int row = 0; row < s.rows; row++) {
    if (slots[row] == NO_SLOT) {
      for (int i = 0; i < s.used; i++) expect(chosen[row * s.used + i] == -1, "padding chooses nothing");
      continue;
    }
    const float* score = &scores[size_t(row) * s.experts];
    std::vector<int> order(s.experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
    double total = 0;
    for (int i = 0; i < (r.normalise ? s.used : s.experts); i++) total += std::exp(double(score[order[i]]) - score[order[0]]);
    for (int i = 0; i < s.used; i++) {
      const double weight = std::exp(double(score[order[i]]) - score[order[0]]) / total;
      expect(chosen[row * s.used + i] == order[i], "the highest scores are chosen");
      expect(std::abs(weights[row * s.used + i] - weight) < 1e-5, "a choice's weight");
    }
  }
}

// A stack of random matrices in a type's records.
struct Stack {
  Matrix one;
  Array<uint8_t> records;
  Stack(const QuantRow& q, int rows, int cols, int count)
      : one{nullptr, rows, cols, q.format, q.record_bytes}, records(one.bytes() * count) {
    check(cudaMemset(records.data, 0, records.size), "zero");
    Array<int> overflow(1);
    for (int i = 0; i < count; i++) {
      std::vector<uint8_t> blocks(size_t(rows) * cols / q.block_size * q.block_bytes);
      for (auto& b : blocks) b = uint8_t(random_bits());
      for (size_t at = 0; at < blocks.size(); at += q.block_bytes) {
        const __half scale = __float2half_rn(q.block_size == 1 ? uniform(-0.1f, 0.1f) : uniform(0.0005f, 0.002f));
        std::memcpy(&blocks[at], &scale, 2);
        if (q.id == 12) std::memcpy(&blocks[at + 2], &scale, 2);
      }
      Array<uint8_t> source(blocks);
      uint8_t* const place = records.data + i * one.bytes();
      repack(Launch{gpu()}, q.id, Repack{source.data, place, 0, rows, rows, cols, Placement::WHOLE, overflow.data});
      check(cudaDeviceSynchronize(), "repack");
    }
    one.data = records.data;
  }
};

void check_products(const Shape& s, uint32_t type, const std::vector<int32_t>& chosen, const Array<int32_t>& chosen_device) {
  const QuantRow& q = *quant_row(type);
  const int ld = int(round_up(s.hidden, CHUNK)), choices = s.rows * s.used;
  Stack stack(q, s.ffn, s.hidden, s.experts);
  std::vector<__half> x = halves(size_t(s.rows) * ld, 1.0f);
  for (int row = 0; row < s.rows; row++) std::fill(&x[size_t(row) * ld + s.hidden], &x[size_t(row) * ld] + ld, __half(0.0f));
  Array<__half> input(x);
  // Each row with each expert's matrix.
  Array<float> all(size_t(s.experts) * s.rows * s.ffn);
  for (int e = 0; e < s.experts; e++) {
    Linear args{};
    args.w[0] = stack.one;
    args.w[0].data += e * stack.one.bytes();
    args.num_segments = 1;
    args.x = input.data, args.ldx = ld, args.num_tokens = s.rows, args.ldo = s.ffn;
    args.out = all.data + size_t(e) * s.rows * s.ffn;
    args.epilogue = Epilogue::STORE;
    linear(Launch{gpu()}, args);
  }
  const std::vector<float> exact = all.get();
  for (int group : {8, 32, 64}) {
    const int groups = most_groups(choices, s.experts, group);
    Array<int32_t> expert_of(groups), order(size_t(groups) * group);
    const Grouping grouping{chosen_device.data, choices, s.experts, group, groups, expert_of.data, order.data};
    group_choices(Launch{gpu()}, grouping);
    const std::vector<int32_t> of = expert_of.get(), places = order.get();
    std::vector<int> seen(choices);
    for (size_t i = 0; i < places.size(); i++) {
      if (places[i] < 0) continue;
      seen[places[i]]++;
      expect(of[i / group] == chosen[places[i]], "a choice is in a group of its expert");
    }
    for (int c = 0; c < choices; c++) expect(seen[c] == (chosen[c] >= 0), "every choice has one place");
    Array<float> out(size_t(choices) * s.ffn);
    ExpertLinear args{};
    args.w[0] = stack.one;
    args.num_segments = 1;
    args.expert_of = expert_of.data, args.order = order.data;
    args.x = input.data, args.ldx = ld, args.share = s.used;
    args.out = out.data, args.ldo = s.ffn;
    args.epilogue = Epilogue::STORE;
    expert_linear(Launch{gpu()}, args, group, groups);
    const std::vector<float> got = out.get();
    bool same = true;
    for (int c = 0; c < choices; c++) {
      if (chosen[c] < 0) continue;
      same &= std::memcmp(&got[size_t(c) * s.ffn], &exact[(size_t(chosen[c]) * s.rows + c / s.used) * s.ffn], size_t(s.ffn) * 4) == 0;
    }
    expect(same, "a product has the bits of its row alone");
  }
}

void check_shape(const Shape& s, bool normalise) {
  std::vector<float> scores(size_t(s.rows) * s.experts), router(s.hidden);
  for (auto& x : scores) x = std::round(uniform(-4.0f, 4.0f) * 8) / 8;  // some are equal
  for (auto& x : router) x = uniform(-0.2f, 0.2f);
  std::vector<uint32_t> slots(s.rows);
  for (int i = 0; i < s.rows; i++) slots[i] = s.rows > 2 && i % 7 == 5 ? NO_SLOT : uint32_t(i);
  const int ld = int(round_up(s.hidden, CHUNK)), choices = s.rows * s.used;
  Array<float> scores_d(scores), router_d(router), weights(choices), share(s.rows);
  Array<uint32_t> slots_d(slots);
  Array<__half> h(halves(size_t(s.rows) * ld, 1.0f));
  Array<int32_t> chosen(choices);
  const Routing routing{scores_d.data, slots_d.data, h.data, router_d.data, s.rows, s.experts, s.used, ld, s.hidden, normalise,
                        chosen.data, weights.data, share.data};
  route(Launch{gpu()}, routing);
  const std::vector<int32_t> choice = chosen.get();
  const std::vector<float> weight = weights.get(), shares = share.get();
  check_routing(s, routing, scores, slots, choice, weight);
  const std::vector<__half> input = h.get();
  for (int row = 0; row < s.rows; row++) {
    double dot = 0;
    for (int i = 0; i < s.hidden; i++) dot += double(__half2float(input[size_t(row) * ld + i])) * router[i];
    expect(slots[row] == NO_SLOT || std::abs(shares[row] - 1 / (1 + std::exp(-dot))) < 1e-4, "the shared expert's weight");
  }
  for (uint32_t type : {1u, 8u, 12u, 40u}) {
    if (s.hidden % quant_row(type)->block_size == 0) check_products(s, type, choice, chosen);
  }
  std::vector<float> outputs(size_t(choices) * s.hidden), shared(size_t(s.rows) * s.hidden), before(shared.size());
  for (auto* list : {&outputs, &shared, &before}) for (auto& x : *list) x = uniform(-1.0f, 1.0f);
  Array<float> outputs_d(outputs), shared_d(shared), out(before);
  const Combine combine{outputs_d.data, weights.data, shared_d.data, share.data, slots_d.data, out.data, s.hidden, s.used, true};
  pen::combine(Launch{gpu()}, combine, s.rows);
  const std::vector<float> got = out.get();
  for (size_t i = 0; i < got.size(); i++) {
    const size_t row = i / s.hidden, column = i % s.hidden;
    double sum = double(shares[row]) * shared[i] + before[i];
    for (int k = 0; k < s.used; k++) sum += double(weight[row * s.used + k]) * outputs[(row * s.used + k) * s.hidden + column];
    expect(slots[row] == NO_SLOT ? got[i] == before[i] : std::abs(got[i] - sum) < 1e-4, "the sum of a row's experts");
  }
}

void check_elementwise(int rows, int hidden) {
  const int ld = int(round_up(hidden, CHUNK));
  std::vector<float> x(size_t(rows) * hidden), weight(hidden), bias(hidden);
  for (auto* list : {&x, &weight, &bias}) for (auto& v : *list) v = uniform(-2.0f, 2.0f);
  Array<float> x_d(x), weight_d(weight), bias_d(bias);
  Array<__half> h(size_t(rows) * ld);
  const LayerNorm norm{x_d.data, weight_d.data, bias_d.data, hidden, 1e-5f, nullptr, h.data, ld};
  layer_norm(Launch{gpu()}, norm, rows);
  const std::vector<__half> got = h.get();
  for (int r = 0; r < rows; r++) {
    const float* row = &x[size_t(r) * hidden];
    double mean = 0, square = 0;
    for (int i = 0; i < hidden; i++) mean += row[i] / double(hidden);
    for (int i = 0; i < hidden; i++) square += (row[i] - mean) * (row[i] - mean) / hidden;
    for (int i = 0; i < hidden; i++) {
      const double exact = (row[i] - mean) / std::sqrt(square + 1e-5) * weight[i] + bias[i];
      expect(std::abs(__half2float(got[size_t(r) * ld + i]) - exact) < 1e-3 * (1 + std::abs(exact)), "LayerNorm");
    }
  }
  for (bool gated : {false, true}) {
    const int ffn = gated ? hidden / 2 : hidden;
    const Activate args{x_d.data, weight_d.data, bias_d.data, h.data, ffn, ld, gated, Epilogue::GELU_MUL};
    activate(Launch{gpu()}, args, rows);
    const std::vector<__half> out = h.get();
    for (int r = 0; r < rows; r++) {
      for (int i = 0; i < ffn; i++) {
        const float* row = &x[size_t(r) * ffn * (gated ? 2 : 1)];
        const double up = double(row[gated ? ffn + i : i]) + bias[i], gate = gated ? double(row[i]) + weight[i] : up;
        const double exact = 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * (gated ? up : 1);
        expect(std::abs(__half2float(out[size_t(r) * ld + i]) - exact) < 1e-3 * (1 + std::abs(exact)), "an activation");
      }
    }
  }
  add_bias(Launch{gpu()}, x_d.data, bias_d.data, rows, hidden);
  soft_cap(Launch{gpu()}, x_d.data, 3.0f, rows, hidden);
  const std::vector<float> capped = x_d.get();
  for (size_t i = 0; i < capped.size(); i++) {
    expect(std::abs(capped[i] - 3 * std::tanh((double(x[i]) + bias[i % hidden]) / 3)) < 1e-5, "a bias and a soft cap");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  std::vector<Shape> shapes = {{1, 5, 2, 96, 40}, {3, 9, 4, 256, 72}, {33, 8, 2, 256, 100}};
  if (!quick) shapes.insert(shapes.end(), {{200, 60, 4, 512, 176}, {700, 8, 2, 256, 260}, {64, 128, 8, 768, 96}, {1, 128, 8, 1024, 768}});
  for (const Shape& s : shapes) {
    for (bool normalise : {false, true}) check_shape(s, normalise);
  }
  for (int hidden : {8, 100, 768, 1600}) check_elementwise(3, hidden);
  check(cudaDeviceSynchronize(), "the end");
  std::printf(failures ? "%d checks failed\n" : "all checks passed\n", failures);
  return failures != 0;
}
