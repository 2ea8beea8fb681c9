// Helpers that the checks and timings of attention share.
#pragma once

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../attention/attention.h"
#include "gpu.h"

namespace pen::bench {

inline int failures = 0, checks = 0;
inline double worst_attention = 0.0, worst_qkv = 0.0;

inline void report(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  ++failures;
  printf("FAIL %s\n", what.c_str());
}

template <class... Args>
std::string text(const char* format, Args... args) {
  char line[512];
  snprintf(line, sizeof line, format, args...);
  return line;
}

struct Random {
  uint64_t state;
  uint64_t next() {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  float uniform() { return static_cast<float>(next() >> 40) * (2.0f / (1 << 24)) - 1.0f; }          // [-1, 1)
  float normal() { return (uniform() + uniform() + uniform() + uniform()) * 0.8660254f; }  // variance 1, near enough
};

// The numbers below n in random order.
inline std::vector<uint32_t> shuffled(int n, Random& random) {
  std::vector<uint32_t> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  for (int i = n - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// A sequence of `length` positions: its queries, and the pages that hold its K and V.
struct Sequence {
  int length;
  std::vector<uint32_t> blocks;
  std::vector<__half> q;  // [length, q_width]

  // Takes the sequence's pages from `order`, starting at index `used`.
  Sequence(int length, int block_size, int q_width, const std::vector<uint32_t>& order, size_t& used, Random& random)
      : length(length), q(static_cast<size_t>(length) * q_width) {
    for (int i = 0; i < ceil_div(length, block_size); ++i) blocks.push_back(order[used++]);
    for (__half& x : q) x = __float2half(2.0f * random.normal());
  }
};

// Device memory between guard zones. It starts as 0xff bytes, which are NaN as float16 and as float32.
template <class T>
struct Buffer {
  static constexpr size_t GUARD = 4096;
  char* base = nullptr;
  size_t n;
  explicit Buffer(size_t n) : n(n) {
    check(cudaMalloc(&base, n * sizeof(T) + 2 * GUARD), "cudaMalloc");
    poison();
  }
  explicit Buffer(const std::vector<T>& host) : Buffer(host.size()) { write(host); }
  Buffer(const Buffer&) = delete;
  ~Buffer() { cudaFree(base); }
  T* get() const { return reinterpret_cast<T*>(base + GUARD); }
  void poison() { check(cudaMemset(base, 0xff, n * sizeof(T) + 2 * GUARD), "cudaMemset"); }
  void write(const std::vector<T>& host) {
    if (!host.empty()) check(cudaMemcpy(get(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "write");
  }
  std::vector<T> read() const {
    std::vector<T> host(n);
    if (n) check(cudaMemcpy(host.data(), get(), n * sizeof(T), cudaMemcpyDeviceToHost), "read");
    return host;
  }
  bool guards_intact() const {
    std::vector<unsigned char> a(GUARD), b(GUARD);
    check(cudaMemcpy(a.data(), base, GUARD, cudaMemcpyDeviceToHost), "guard");
    check(cudaMemcpy(b.data(), base + GUARD + n * sizeof(T), GUARD, cudaMemcpyDeviceToHost), "guard");
    const auto whole = [](unsigned char x) { return x == 0xff; };
    return std::all_of(a.begin(), a.end(), whole) && std::all_of(b.begin(), b.end(), whole);
  }
};

// Two views of a step, as the engine makes them for mixed steps: sequences with one row, and sequences with more.
struct Views {
  Buffer<uint32_t> numbers;
  StepView single, many;

  // `rows`: per sequence. Sequences without rows are in neither view.
  Views(const StepView& step, const std::vector<int>& rows, const std::vector<uint32_t>& contexts)
      : numbers(rows.size()), single(step), many(step) {
    std::vector<uint32_t> order;
    const auto view = [&](StepView& of, auto wanted) {
      of.sequences = numbers.get() + order.size();
      of.num_seqs = 0, of.max_query = 1, of.max_context = 1;
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!wanted(rows[i])) continue;
        order.push_back(static_cast<uint32_t>(i));
        of.num_seqs++;
        of.max_query = std::max(of.max_query, rows[i]), of.max_context = std::max(of.max_context, static_cast<int>(contexts[i]));
      }
    };
    view(single, [](int n) { return n == 1; });
    view(many, [](int n) { return n > 1; });
    numbers.write(order);
  }
};

inline uint16_t bits(__half x) {
  uint16_t b;
  memcpy(&b, &x, 2);
  return b;
}
inline bool poisoned(__half x) { return bits(x) == 0xffff; }
inline __half poison_half() {
  const uint16_t b = 0xffff;
  __half x;
  memcpy(static_cast<void*>(&x), &b, 2);
  return x;
}

// Whether the squared error of `count` float16 values is within the rounding of P and of the output, which is about 1e-7 of their power.
// Below float16's smallest normal number, where rows end up if a sink is strong, an element errs by up to 2^-25 instead.
inline bool within_rounding(double error, double power, int count) { return error <= 2e-6 * power + count * 0x1p-50; }

struct Shape {
  const char* name;
  int num_heads, num_kv_heads, head_dim, block_size;
  uint32_t window;
  float soft_cap = 0.0f;
  bool sinks = false, chunked = false;
};

// A separate stream, because the default one takes no programmatic launches. It is ordered with the copies, which use the default one.
inline cudaStream_t test_stream() {
  static cudaStream_t stream = [] {
    cudaStream_t s;
    check(cudaStreamCreate(&s), "cudaStreamCreate");
    return s;
  }();
  return stream;
}

}  // namespace pen::bench
