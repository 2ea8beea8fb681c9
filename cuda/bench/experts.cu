// Checks layers with experts: choices, activations and sums against float64 on the host, that every choice is in one group of its expert,
// and that each product has the bits that linear() gives its row alone. Also checks LayerNorm and soft caps against float64.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/experts.cu cuda/{experts,elementwise,norm,linear,quant}/*.cu -o experts
//   experts [--quick | --time [SHAPE [ROWS]]]
#include <array>

#include "../elementwise/elementwise.h"
#include "experts_decode.cuh"
#include "experts_products.cuh"
#include "experts_routing.cuh"
#include "experts_time.cuh"

using namespace pen;
using namespace pen::bench;

namespace {

void check_elementwise(int rows, int hidden) {
  const int ld = int(round_up(hidden, K_TILE));
  std::vector<float> x = floats(size_t(rows) * hidden, 2.0f), weight = floats(hidden, 2.0f), bias = floats(hidden, 2.0f);
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
  soft_cap(Launch{gpu()}, x_d.data, 3.0f, rows, hidden);
  const std::vector<float> capped = x_d.get();
  for (size_t i = 0; i < capped.size(); i++) {
    expect(std::abs(capped[i] - 3 * std::tanh(double(x[i]) / 3)) < 1e-5, "a soft cap");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) {
    time_shapes(argc > 2 ? argv[2] : nullptr, argc > 3 ? std::atoi(argv[3]) : 0);
    return 0;
  }
  check_routing(quick);
  check_decode(quick);
  std::vector<Shape> shapes = {{1, 5, 2, 96, 40}, {3, 9, 4, 256, 72}, {33, 8, 2, 256, 96}, {40, 24, 2, 512, 264}, {100, 24, 4, 1024, 264}};
  if (!quick) shapes.insert(shapes.end(), {{200, 60, 4, 512, 176}, {700, 8, 2, 256, 264}, {64, 128, 8, 768, 96}, {1, 128, 8, 1024, 768}});
  for (const Shape& s : shapes) check_shape(s);
  for (int hidden : {8, 100, 768, 1600}) check_elementwise(3, hidden);
  check(cudaDeviceSynchronize(), "the end");
  std::printf(failures ? "%d checks failed\n" : "all checks passed\n", failures);
  return failures != 0;
}
