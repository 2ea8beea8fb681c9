// Mixers for the checks and timings of recurrences: their inputs, their launch, and their definition in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../recurrence/recurrence.h"
#include "gpu.h"

namespace pen::bench {

inline std::mt19937 random_bits(5);
inline float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(random_bits); }
inline int below(int n) { return int(random_bits() % unsigned(n)); }
inline int failures = 0;
inline double largest_error = 0;  // relative to the largest value

inline void expect(bool good, const std::string& name, const char* what) {
  if (!good && ++failures <= 50) std::printf("FAILED: %s: %s\n", name.c_str(), what);
}

constexpr size_t GUARD = 64;  // elements after every buffer that no kernel may touch

template <typename T>
struct Array {
  T* data = nullptr;
  size_t size;
  explicit Array(size_t n) : size(n) {
    check(cudaMalloc(&data, (n + GUARD) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data, 0xff, (n + GUARD) * sizeof(T)), "poison");  // floats: NaN
  }
  explicit Array(const std::vector<T>& from) : Array(from.size()) {
    check(cudaMemcpy(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  ~Array() {
    std::vector<uint8_t> guard(GUARD * sizeof(T));
    check(cudaMemcpy(guard.data(), data + size, guard.size(), cudaMemcpyDeviceToHost), "copy");
    expect(std::all_of(guard.begin(), guard.end(), [](uint8_t b) { return b == 0xff; }), "a buffer", "its guard zone is whole");
    cudaFree(data);
  }
  Array(const Array&) = delete;
  std::vector<T> get() const {
    std::vector<T> out(size);
    check(cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return out;
  }
};

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// A mixer whose inputs are side by side in a row.
struct Mixer {
  std::string name;
  int in, out, state;  // floats per row, per row, per sequence
  std::function<void(Floats& row)> fill;
  // Runs the mixer on rows of `ld_in` and `ld_out` floats. The state starts `at` floats after the start of a slot.
  std::function<void(const Launch&, const float* in, int ld_in, float* out, int ld_out, const States&, int at, const StepView&)> run;
  // Computes one row of one sequence in float64. The state has the same layout as on the device.
  std::function<void(const float* row, Doubles& state, double* out)> reference;
};

inline Mixer scan_mixer(std::string name, int heads, int keys, int values, int group, bool by_channel, bool with_steps, int shift) {
  const int inner = heads * values, shared = heads / group * keys, num_steps = by_channel ? inner : heads;
  // shift: floats between the parts, which move them off multiples of 16 bytes.
  const int b = inner + shift, c = b + shared, factors = c + shared + shift, steps = factors + heads, width = steps + num_steps;
  Floats a(by_channel ? size_t(inner) * keys : 0);
  for (auto& x : a) x = -uniform(0.1f, 8.0f);
  const auto device = std::make_shared<Array<float>>(a);
  Mixer mixer{name, width, inner, inner * keys, {}, {}, {}};
  mixer.fill = [=](Floats& row) {
    for (int i = 0; i < factors; i++) row[i] = uniform(-1.0f, 1.0f);
    for (int i = factors; i < steps; i++) row[i] = uniform(0.8f, 1.0f);
    for (int i = steps; i < width; i++) row[i] = uniform(0.001f, 0.2f);
  };
  mixer.run = [=](const Launch& launch, const float* in, int ld_in, float* out, int ld_out, const States& states, int at,
                  const StepView& step) {
    Scan scan{};
    scan.x = {in, ld_in, values}, scan.b = {in + b, ld_in, keys}, scan.c = {in + c, ld_in, keys};
    scan.group = group, scan.by_channel = by_channel, scan.a = device->data;
    if (!by_channel) scan.factors = {in + factors, ld_in, 1};
    if (by_channel || with_steps) scan.steps = {in + steps, ld_in, by_channel ? values : 1};
    scan.heads = heads, scan.keys = keys, scan.values = values;
    scan.states = states, scan.state_at = at, scan.out = out, scan.ld_out = ld_out;
    pen::scan(launch, scan, step);
  };
  mixer.reference = [=](const float* row, Doubles& state, double* out) {
    for (int i = 0; i < inner; i++) {
      const int head = i / values, from = head / group * keys;
      const double step = by_channel ? row[steps + i] : with_steps ? row[steps + head] : 1.0;
      out[i] = 0;
      for (int k = 0; k < keys; k++) {
        double& s = state[size_t(i) * keys + k];
        s *= by_channel ? std::exp(step * a[size_t(i) * keys + k]) : double(row[factors + head]);
        s += row[b + from + k] * step * row[i];
        out[i] += s * row[c + from + k];
      }
    }
  };
  return mixer;
}

inline Mixer delta_mixer(std::string name, int heads, int key_heads, bool tiled, bool by_key, int keys, int values, int shift) {
  const int shared = key_heads * keys, inner = heads * values, num_decays = by_key ? heads * keys : heads;
  const int k = shared + shift, v = k + shared, decay = v + inner + shift, beta = decay + num_decays, width = beta + heads;
  Mixer mixer{name, width, inner, inner * keys, {}, {}, {}};
  mixer.fill = [=](Floats& row) {
    for (int i = 0; i < decay; i++) row[i] = uniform(-1.0f, 1.0f);
    for (int head = 0; head < key_heads; head++) {  // keys of length 1, because the state would grow otherwise
      float* const key = &row[k + head * keys];
      double length = 0;
      for (int i = 0; i < keys; i++) length += double(key[i]) * key[i];
      for (int i = 0; i < keys; i++) key[i] /= float(std::sqrt(length));
    }
    for (int i = decay; i < beta; i++) row[i] = uniform(0.7f, 1.0f);
    for (int i = beta; i < width; i++) row[i] = uniform(0.0f, 1.0f);
  };
  mixer.run = [=](const Launch& launch, const float* in, int ld_in, float* out, int ld_out, const States& states, int at,
                  const StepView& step) {
    Delta delta{};
    delta.q = {in, ld_in, keys}, delta.k = {in + k, ld_in, keys}, delta.v = {in + v, ld_in, values};
    delta.decay = {in + decay, ld_in, by_key ? keys : 1}, delta.beta = {in + beta, ld_in, 1};
    delta.by_key = by_key, delta.heads = heads, delta.num_key_heads = key_heads, delta.tiled = tiled;
    delta.keys = keys, delta.values = values, delta.states = states, delta.state_at = at;
    delta.out = out, delta.ld_out = ld_out;
    delta_rule(launch, delta, step);
  };
  mixer.reference = [=](const float* row, Doubles& state, double* out) {
    for (int i = 0; i < inner; i++) {
      const int head = i / values, from = (tiled ? head % key_heads : head / (heads / key_heads)) * keys;
      double* const s = &state[size_t(i) * keys];
      double known = 0;
      for (int j = 0; j < keys; j++) {
        s[j] *= row[decay + (by_key ? head * keys + j : head)];
        known += s[j] * row[k + from + j];
      }
      const double news = row[beta + head] * (row[v + i] - known);
      out[i] = 0;
      for (int j = 0; j < keys; j++) {
        s[j] += row[k + from + j] * news;
        out[i] += s[j] * row[from + j];
      }
    }
  };
  return mixer;
}

inline Mixer convolution_mixer(std::string name, int channels, int taps, bool with_bias, bool silu) {
  Floats kernel(size_t(channels) * taps), bias(channels);
  for (auto* list : {&kernel, &bias}) for (auto& x : *list) x = uniform(-1.0f, 1.0f);
  const auto kernel_d = std::make_shared<Array<float>>(kernel), bias_d = std::make_shared<Array<float>>(bias);
  Mixer mixer{name, channels, channels, (taps - 1) * channels, {}, {}, {}};
  mixer.fill = [](Floats& row) { for (auto& x : row) x = uniform(-1.0f, 1.0f); };
  mixer.run = [=](const Launch& launch, const float* in, int ld_in, float* out, int ld_out, const States& states, int at,
                  const StepView& step) {
    const float* const added = with_bias ? bias_d->data : nullptr;
    convolve(launch, Convolution{in, ld_in, out, ld_out, kernel_d->data, added, channels, taps, silu, states, at}, step);
  };
  mixer.reference = [=](const float* row, Doubles& state, double* out) {
    state.insert(state.end(), row, row + channels);
    for (int c = 0; c < channels; c++) {
      double y = with_bias ? bias[c] : 0;
      for (int j = 0; j < taps; j++) y += double(kernel[size_t(c) * taps + j]) * state[size_t(j) * channels + c];
      out[c] = silu ? y / (1 + std::exp(-y)) : y;
    }
    state.erase(state.begin(), state.begin() + channels);
  };
  return mixer;
}

}  // namespace pen::bench
