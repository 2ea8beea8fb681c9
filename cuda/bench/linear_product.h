// Random matrices and products with checked outputs, for the checks of linear layers (linear.cu).
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../quant/repack.h"
#include "linear_harness.h"

namespace pen::bench {

inline int failures = 0;

inline uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
inline void put_half(std::vector<uint8_t>& blocks, size_t at, float x) {
  const uint16_t h = half_bits(x);
  std::memcpy(&blocks[at], &h, 2);
}

// Random blocks with scales as large as those of real files. The cases are ggml's type ids (quant/types.inc), and the offsets are those of
// a block's scales.
inline std::vector<uint8_t> random_blocks(const QuantRow& q, size_t rows, size_t cols) {
  std::vector<uint8_t> blocks(rows * cols / q.block_size * q.block_bytes);
  for (auto& byte : blocks) byte = uint8_t(random_bits());
  for (size_t at = 0; at < blocks.size(); at += q.block_bytes) {
    const auto put = [&](int offset, float x) { put_half(blocks, at + offset, x); };
    switch (q.id) {
      case 0: { const float x = uniform(-0.1f, 0.1f); std::memcpy(&blocks[at], &x, 4); break; }
      case 1: put(0, uniform(-0.1f, 0.1f)); break;
      case 30: { const float x = uniform(-0.1f, 0.1f); std::memcpy(&blocks[at], reinterpret_cast<const char*>(&x) + 2, 2); break; }
      case 2: case 6: case 8: put(0, uniform(0.0005f, 0.01f)); break;
      case 3: case 7: put(0, uniform(0.0005f, 0.01f)); put(2, uniform(-0.1f, 0.0f)); break;
      case 10: put(80, uniform(0.0005f, 0.005f)); put(82, uniform(0.0005f, 0.005f)); break;
      case 11: put(108, uniform(0.0001f, 0.001f)); break;
      case 12: case 13: put(0, uniform(0.0001f, 0.0005f)); put(2, uniform(0.0001f, 0.0005f)); break;
      case 14: put(208, uniform(0.00001f, 0.0001f)); break;
      case 16: case 17: case 22: put(0, uniform(0.0003f, 0.002f)); break;
      case 18: case 21: put(0, uniform(0.0001f, 0.001f)); break;
      case 19: put(0, uniform(0.001f, 0.01f)); break;
      case 20: put(0, uniform(0.0001f, 0.001f)); break;
      case 23: put(0, uniform(0.00001f, 0.0001f)); break;
      case 29: {  // the half is spread over four nibbles
        const uint16_t half = half_bits(uniform(0.001f, 0.01f));
        for (int i = 0; i < 4; i++) blocks[at + 49 + 2 * i] = uint8_t((blocks[at + 49 + 2 * i] & 15) | (half >> (4 * i) & 15) << 4);
        break;
      }
      case 34: put(52, uniform(0.01f, 0.1f)); break;
      case 35: put(64, uniform(0.01f, 0.1f)); break;
      case 39: blocks[at] = uint8_t(118 + random_bits() % 5); break;
      case 40:  // scales around 2^-6
        for (int i = 0; i < 4; i++) blocks[at + i] = uint8_t(4 + random_bits() % 12);
        break;
    }
  }
  return blocks;
}

inline Matrix upload(const QuantRow& q, const std::vector<uint8_t>& blocks, int rows, int cols, Array<uint8_t>& records,
                     bool shared = false, const std::vector<uint8_t>* second = nullptr) {
  Matrix m{records.data, shared ? 2 * rows : rows, cols, q.format, q.record_bytes};
  Array<int> overflow(std::vector<int>{0});
  check(cudaMemset(records.data, 0, records.size), "memset");
  const size_t row_bytes = size_t(cols) / q.block_size * q.block_bytes;
  const int piece = shared ? 24 : 48;  // in pieces, as the loader does
  for (int half = 0; half < (shared ? 2 : 1); half++) {
    const auto& from = half ? *second : blocks;
    for (int first = 0; first < rows; first += piece) {
      const int count = std::min(piece, rows - first);
      Array<uint8_t> part(std::vector<uint8_t>(from.begin() + first * row_bytes, from.begin() + (first + count) * row_bytes));
      repack(Launch{gpu()}, q.id, Repack{part.data, records.data, first, count, rows, cols,
                                    !shared ? Placement::WHOLE : half ? Placement::LOWER_HALF : Placement::UPPER_HALF, overflow.data});
      check(cudaDeviceSynchronize(), "repack");
    }
  }
  return m;
}

// A random matrix and random tokens.
struct RandomProduct {
  Array<uint8_t> records;
  Array<__half> x;
  Linear args = empty_linear();
  RandomProduct(const QuantRow& q, int rows, int cols, int tokens)
      : records(Matrix{nullptr, rows, cols, q.format, q.record_bytes}.bytes()), x(random_halves(size_t(tokens) * cols)) {
    args.w[0] = upload(q, random_blocks(q, rows, cols), rows, cols, records);
    args.num_segments = 1, args.x = x.data, args.ldx = cols, args.num_tokens = tokens;
  }
};

// Checks that the words by which blocks that share a tile synchronise are zero after each kernel.
inline void test_arrivals(const Linear& args) {
  std::vector<uint32_t> words(MAX_SHARED_TILES);
  check(cudaMemcpy(words.data(), args.arrivals, words.size() * 4, cudaMemcpyDeviceToHost), "copy");
  const auto left = std::find_if(words.begin(), words.end(), [](uint32_t word) { return word != 0; });
  if (left == words.end()) return;
  printf("FAIL: word %zu of the arrivals is %#x after a kernel\n", size_t(left - words.begin()), *left);
  failures++;
}

inline std::vector<float> product(const Kernel& kernel, const Linear& args, int rows) {
  Linear a = args;
  std::vector<uint32_t> poison(size_t(a.num_tokens) * rows + 64, 0x7fc01234u);
  Array<float> out(poison.size());
  check(cudaMemcpy(out.data, poison.data(), poison.size() * 4, cudaMemcpyHostToDevice), "copy");
  a.out = out.data;
  a.ldo = rows;
  kernel(Launch{gpu()}, a);
  check(cudaDeviceSynchronize(), "product");
  test_arrivals(a);
  std::vector<float> y = out.get();
  for (size_t i = size_t(a.num_tokens) * rows; i < y.size(); i++) {
    if (std::memcmp(&y[i], &poison[i], 4) == 0) continue;
    printf("FAIL: wrote past the end at +%zu\n", i - size_t(a.num_tokens) * rows);
    failures++;
    break;
  }
  y.resize(size_t(a.num_tokens) * rows);
  return y;
}

}  // namespace pen::bench
