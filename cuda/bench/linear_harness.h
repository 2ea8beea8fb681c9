// Helpers that the checks and the timings of linear layers (linear.cu) share.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "../linear/hopper.h"
#include "gpu.h"

namespace pen::bench {

inline std::mt19937 random_bits(7);
inline float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(random_bits); }

template <typename T>
struct Array {
  T* data = nullptr;
  size_t size;
  explicit Array(size_t n) : size(n) { check(cudaMalloc(&data, n * sizeof(T)), "cudaMalloc"); }
  explicit Array(const std::vector<T>& from) : Array(from.size()) { put(from); }
  ~Array() { cudaFree(data); }
  void put(const std::vector<T>& from) { check(cudaMemcpy(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice), "copy"); }
  std::vector<T> get() const {
    std::vector<T> to(size);
    check(cudaMemcpy(to.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return to;
  }
};

// A linear layer with a workspace like the engine's.
inline Linear empty_linear() {
  constexpr size_t BYTES = size_t(64) << 20;
  static Array<uint8_t> slabs(BYTES);
  static Array<uint32_t> arrivals(std::vector<uint32_t>(MAX_SHARED_TILES, 0));
  Linear args{};
  args.slabs = reinterpret_cast<float*>(slabs.data);
  args.slab_bytes = BYTES;
  args.arrivals = arrivals.data;
  return args;
}

inline std::vector<__half> random_halves(size_t count) {
  std::vector<__half> all(count);
  for (auto& x : all) x = __float2half_rn(uniform(-1, 1));
  return all;
}

using Kernel = std::function<void(const Launch&, const Linear&)>;
// Runs hopper.cuh with blocks of `tokens` tokens.
inline Kernel by_blocks(int tokens) {
  return [=](const Launch& launch, const Linear& args) {
    run_hopper(launch, args, plan_hopper(product_device(launch.device), shape_of(args), tokens));
  };
}
// Runs hopper.cuh with blocks of 128 tokens that take single K tiles.
inline void by_k_tiles(const Launch& launch, const Linear& args) {
  run_hopper<128>(launch, args, plan_hopper(product_device(launch.device), shape_of(args), 128));
}
// Runs the best kernel for many tokens.
inline void by_prefill(const Launch& launch, const Linear& args) {
  launch_product(launch, args, choose_prefill(product_device(launch.device), shape_of(args)));
}
// Runs a product of two formats in one launch. The segments of the second format come last.
inline void as_pair(const Launch& launch, const Linear& args) {
  std::vector<Linear> parts;
  each_part(shape_of(args), [&](const ProductShape& part, int first) { parts.push_back(part_of(args, first, part.num_segments)); });
  const HopperPair plan = plan_pair(product_device(launch.device), shape_of(parts[0]), shape_of(parts[1]));
  if (!run_pair(launch, parts[0], parts[1], plan)) linear_prefill_any(launch, args);
}

}  // namespace pen::bench
