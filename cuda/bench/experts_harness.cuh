// Helpers that the checks of experts share: random inputs, guarded arrays on the device, stacks of random matrices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "../quant/repack.h"
#include "gpu.h"

namespace pen::bench {

inline std::mt19937 random_bits(11);
inline float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(random_bits); }
inline int failures = 0;

inline void expect(bool good, const char* what) {
  if (good) return;
  if (failures++ < 40) std::printf("FAILED: %s\n", what);
}

constexpr size_t GUARD = 64;  // elements after every buffer that no kernel may touch

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

inline std::vector<float> floats(size_t n, float size) {
  std::vector<float> x(n);
  for (auto& v : x) v = uniform(-size, size);
  return x;
}

// Rows of halves. Columns from `columns` are zero.
inline std::vector<__half> halves(int rows, int ld, int columns, float size) {
  std::vector<__half> x(size_t(rows) * ld, __half(0.0f));
  for (int r = 0; r < rows; r++) {
    for (int i = 0; i < columns; i++) x[size_t(r) * ld + i] = __float2half_rn(uniform(-size, size));
  }
  return x;
}

// A stack of random matrices in a type's records. `glu`: each is made of two halves whose rows share tiles. `alike`: all matrices are
// equal, which takes less time to make.
struct Stack {
  Matrix one;
  Array<uint8_t> records;
  Stack(const QuantRow& q, int rows, int cols, int count, bool glu = false, bool alike = false)
      : one{nullptr, rows, cols, q.format, q.record_bytes}, records(one.bytes() * count) {
    check(cudaMemset(records.data, 0, records.size), "zero");
    Array<int> overflow(1);
    const int parts = glu ? 2 : 1, part_rows = rows / parts;
    std::vector<uint8_t> blocks(size_t(part_rows) * cols / q.block_size * q.block_bytes);
    for (int i = 0; i < count * parts; i++) {
      const bool fresh = i == 0 || !alike;
      if (fresh) {
        for (size_t at = 0; at < blocks.size(); at += 4) {
          const uint32_t word = uint32_t(random_bits());
          std::memcpy(&blocks[at], &word, std::min<size_t>(4, blocks.size() - at));
        }
      }
      for (size_t at = 0; fresh && at < blocks.size(); at += q.block_bytes) {
        const __half scale = __float2half_rn(q.block_size == 1 ? uniform(-0.1f, 0.1f) : uniform(0.0005f, 0.002f));
        if (q.id == 39) {
          blocks[at] = uint8_t(118 + random_bits() % 4);  // a power of two
        } else {
          std::memcpy(&blocks[at], &scale, 2);
        }
        if (q.id == 14) std::memcpy(&blocks[at + 208], &scale, 2);
        if (q.id == 12) std::memcpy(&blocks[at + 2], &scale, 2);
      }
      Array<uint8_t> source(blocks);
      uint8_t* const place = records.data + i / parts * one.bytes();
      const Placement placement = !glu ? Placement::WHOLE : i % 2 ? Placement::LOWER_HALF : Placement::UPPER_HALF;
      repack(Launch{gpu()}, q.id, Repack{source.data, place, 0, part_rows, part_rows, cols, placement, overflow.data});
      check(cudaDeviceSynchronize(), "repack");
    }
    one.data = records.data;
  }
};

}  // namespace pen::bench
