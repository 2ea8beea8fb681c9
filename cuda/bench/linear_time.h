// Times linear layers.
#pragma once

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "../linear/hopper.h"
#include "../quant/repack.h"
#include "graph_time.h"
#include "linear_harness.h"

namespace pen::bench {

// Copies of a product's weights that together exceed L2. Otherwise a product of few tokens would find its own weights there. Segments are
// stored one after the other.
struct TimedWeights {
  std::vector<std::unique_ptr<Array<uint8_t>>> copies;
  explicit TimedWeights(size_t bytes) {
    const int count = int(std::max<size_t>(1, std::min<size_t>(16, (size_t(200) << 20) / bytes)));
    for (int i = 0; i < count; i++) {
      copies.push_back(std::make_unique<Array<uint8_t>>(bytes));
      std::vector<uint8_t> noise(bytes);
      for (size_t j = 0; j < noise.size(); j += 4) { const uint32_t r = random_bits() & 0x23ff23ff; std::memcpy(&noise[j], &r, 4); }
      copies.back()->put(noise);
    }
  }
};

// Time of a product among others that follow it in a graph. [µs]
inline double product_us(const Kernel& kernel, Linear args, const TimedWeights& weights) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const int rounds = args.num_tokens <= 256 ? 32 : 4;
  const double us = graph_us(stream, 7, [&] {
    for (int i = 0; i < rounds; i++) {
      const uint8_t* data = weights.copies[i % weights.copies.size()]->data;
      for (int s = 0; s < args.num_segments; data += args.w[s++].bytes()) args.w[s].data = data;
      kernel(Launch{gpu(), stream, true}, args);
    }
  });
  cudaStreamDestroy(stream);
  return us / rounds;
}

// `few`: only one and eight tokens. Otherwise all numbers of tokens.
inline void time_shape(const QuantRow& q, int rows, int cols, bool hopper, bool few) {
  const Matrix shape{nullptr, rows, cols, q.format, q.record_bytes};
  const TimedWeights weights(shape.bytes());
  const std::vector<int> sizes = few ? std::vector<int>{1, 8} : std::vector<int>{1, 8, 16, 32, 64, 128, 256, 512, 2048};
  printf("%-5s %6d x %5d ", q.name, rows, cols);
  for (int tokens : sizes) {
    Array<__half> dx(random_halves(size_t(tokens) * cols));
    Array<float> out(size_t(tokens) * rows);
    Linear args = empty_linear();
    args.w[0] = shape, args.num_segments = 1;
    args.x = dx.data, args.ldx = cols, args.num_tokens = tokens;
    args.out = out.data, args.ldo = rows;
    const double us = product_us(pen::linear, args, weights);
    if (tokens <= 64) printf("| %d: %.2f us %.2f TB/s ", tokens, us, shape.bytes() / us * 1e-6);
    else printf("| %d: %.1f us %.0f TF ", tokens, us, 2.0 * rows * cols * tokens / us * 1e-6);
    if (tokens == 2048 && hopper) {
      const double any_us = product_us(linear_prefill_any, args, weights);
      printf("(mma %.0f TF) ", 2.0 * rows * cols * tokens / any_us * 1e-6);
    }
  }
  printf("\n");
  fflush(stdout);
}

// A product of many tokens as in a model: segments of these rows, and the epilogue.
struct TimedProduct {
  std::vector<int> rows;
  int cols;
  Epilogue epilogue;
  bool halves = false;
};

// Times hopper.cuh with blocks of 64 and 128 tokens and prints the plan's estimate next to it, for 65 tokens or more. A star marks the
// choice of the plan.
inline void time_blocks(const QuantRow& q, const TimedProduct& timed) {
  Linear args = empty_linear();
  int rows = 0;
  size_t bytes = 0;
  std::string name;
  for (int each : timed.rows) {
    args.w[args.num_segments] = Matrix{nullptr, each, timed.cols, q.format, q.record_bytes};
    args.out_offset[args.num_segments++] = rows;
    rows += each, bytes += args.w[args.num_segments - 1].bytes();
    name += (name.empty() ? "" : "+") + std::to_string(each);
  }
  const TimedWeights weights(bytes);
  args.epilogue = timed.epilogue, args.slicing.halves = timed.halves;
  args.ldx = timed.cols, args.ldo = is_gated(timed.epilogue) ? rows / 2 : rows;
  const char* epilogues[] = {"store", "add", "silu", "gelu"};
  printf("%s %s x %d %s%s: time [us], TFLOP/s, estimate [us] by blocks of\n", q.name, name.c_str(), timed.cols,
         epilogues[int(timed.epilogue)], timed.halves ? " in halves" : "");
  for (int tokens : {65, 96, 128, 192, 256, 512, 1024, 2048}) {
    const Array<__half> x(random_halves(size_t(tokens) * timed.cols));
    const Array<float> out(size_t(tokens) * rows);
    check(cudaMemset(out.data, 0, out.size * sizeof(float)), "memset");
    args.x = x.data, args.num_tokens = tokens, args.out = out.data, args.out16 = reinterpret_cast<__half*>(out.data);
    const int best = best_plan(product_device(gpu()), shape_of(args)).tokens;
    printf("  %4d tokens", tokens);
    for (int block : HOPPER_TOKENS) {
      const HopperPlan plan = plan_hopper(product_device(gpu()), shape_of(args), block);
      const double us = product_us(by_blocks(block), args, weights), flops = 2.0 * rows * timed.cols * tokens;
      printf(" | %3d%c %7.1f %4.0f TF est %7.1f (%d whole, %d by %d)", block, block == best ? '*' : ' ', us, flops / us * 1e-6, plan.us,
             plan.grid.whole, plan.grid.tiles() - plan.grid.whole, plan.grid.shares);
    }
    if (best == 128) printf(" | 128 by single chunks %7.1f", product_us(by_k_tiles, args, weights));
    printf("\n");
  }
  fflush(stdout);
}

// Times Q and K of one format together with V of another, in one launch and in two.
inline void time_pair(const QuantRow& qk, const QuantRow& v) {
  constexpr int COLS = 4096, ROWS = 6144;
  Linear args = empty_linear();
  args.num_segments = 3, args.ldx = COLS, args.ldo = ROWS;
  args.w[0] = Matrix{nullptr, 4096, COLS, qk.format, qk.record_bytes};
  args.w[1] = Matrix{nullptr, 1024, COLS, qk.format, qk.record_bytes};
  args.w[2] = Matrix{nullptr, 1024, COLS, v.format, v.record_bytes};
  args.out_offset[1] = 4096, args.out_offset[2] = 5120;
  const TimedWeights weights(args.w[0].bytes() + args.w[1].bytes() + args.w[2].bytes());
  const auto in_two = [](const Launch& launch, const Linear& args) {
    each_part(shape_of(args), [&](const ProductShape& part, int first) { by_prefill(launch, part_of(args, first, part.num_segments)); });
  };
  printf("%s 4096+1024, %s 1024 x 4096: one launch, two [us], estimates\n", qk.name, v.name);
  for (int tokens : {65, 96, 128, 192, 256, 512, 1024, 2048}) {
    const Array<__half> x(random_halves(size_t(tokens) * COLS));
    const Array<float> out(size_t(tokens) * ROWS);
    args.x = x.data, args.num_tokens = tokens, args.out = out.data;
    std::vector<ProductShape> parts;
    double us = 0;
    const ProductDevice device = product_device(gpu());
    each_part(shape_of(args), [&](const ProductShape& part, int) { parts.push_back(part), us += best_plan(device, part).us; });
    const HopperPair pair = plan_pair(device, parts[0], parts[1]);
    printf("  %4d tokens | %7.1f est %7.1f (blocks of %d, %d clusters first) | %7.1f est %7.1f\n", tokens,
           product_us(as_pair, args, weights), pair.us, pair.first.tokens, pair.clusters, product_us(in_two, args, weights), us);
  }
  fflush(stdout);
}

// Times the products of an 8B model in two formats, and of a 1B model in float16.
inline void time_many() {
  for (uint32_t id : {12u, 14u}) {
    time_blocks(*quant_row(id), {{4096, 1024, 1024}, 4096, Epilogue::STORE});
    time_blocks(*quant_row(id), {{4096}, 4096, Epilogue::ADD});
    time_blocks(*quant_row(id), {{28672}, 4096, Epilogue::SILU_MUL});
    for (const bool halves : {false, true}) time_blocks(*quant_row(id), {{4096}, 14336, Epilogue::ADD, halves});
  }
  time_pair(*quant_row(12), *quant_row(14));
  time_blocks(*quant_row(1), {{2048, 512, 512}, 2048, Epilogue::STORE});
  time_blocks(*quant_row(1), {{2048}, 2048, Epilogue::ADD});
  time_blocks(*quant_row(1), {{16384}, 2048, Epilogue::SILU_MUL});
  for (const bool halves : {false, true}) time_blocks(*quant_row(1), {{2048}, 8192, Epilogue::ADD, halves});
}

}  // namespace pen::bench
