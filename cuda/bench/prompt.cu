// Checks copied blocks and vectors against the host's, on random odd shapes.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/prompt.cu cuda/prompt/*.cu -o prompt
//   prompt [--quick]
#include "../prompt/prompt.h"

#include "attention_harness.cuh"

using namespace pen;
using namespace pen::bench;

namespace {

void copies(Random& random, bool quick) {
  const int blocks = 2 + random.below(quick ? 6 : 40), words = 1 + random.below(quick ? 300 : 3000);
  std::vector<uint4> pages(size_t(blocks) * words);
  for (size_t i = 0; i < pages.size(); i++) pages[i] = make_uint4(uint32_t(i), random.below(1 << 30), 0, 1);
  std::vector<uint32_t> pairs;  // the upper half is written, the lower half is read
  const int half = blocks / 2, count = 1 + random.below(half);
  for (int i = 0; i < count; i++) {
    pairs.push_back(uint32_t(random.below(half)));
    pairs.push_back(uint32_t(half + i));
  }
  const Buffer<uint4> device_pages(pages);
  const Buffer<uint32_t> device_pairs(pairs);
  copy_blocks({gpu(), test_stream()}, device_pairs.get(), count, device_pages.get(), size_t(words) * sizeof(uint4));
  check(cudaStreamSynchronize(test_stream()), "copying blocks");
  for (int i = 0; i < count; i++) {
    std::copy_n(pages.begin() + size_t(pairs[2 * i]) * words, words, pages.begin() + size_t(pairs[2 * i + 1]) * words);
  }
  const std::string what = text("%d copies of %d words, %d blocks", count, words, blocks);
  report(memcmp(device_pages.read().data(), pages.data(), pages.size() * sizeof(uint4)) == 0, what);
  report(device_pages.guards_intact(), what + ": guards");
}

std::vector<float> normal(Random& random, size_t count, float scale) {
  std::vector<float> values(count);
  for (float& x : values) x = scale * random.normal();
  return values;
}

// An element of a row of the residual stream after the final norm, with or without a branch. With a bias, the norm is a LayerNorm.
double finished(const std::vector<float>& x, const std::vector<float>& branch, const std::vector<float>& branch_weight,
                const std::vector<float>& weight, const std::vector<float>& bias, int hidden, float eps, int row, int column) {
  const auto inverse = [&](auto value) {
    double sum = 0;
    for (int i = 0; i < hidden; i++) sum += value(i) * value(i);
    return 1.0 / sqrt(sum / hidden + eps);
  };
  const auto at = [&](const std::vector<float>& v, int i) { return double(v[size_t(row) * hidden + i]); };
  const double scale = branch.empty() ? 0.0 : inverse([&](int i) { return at(branch, i); });
  const auto moved = [&](int i) { return branch.empty() ? at(x, i) : at(x, i) + at(branch, i) * scale * branch_weight[i]; };
  double mean = 0;
  for (int i = 0; i < hidden && !bias.empty(); i++) mean += moved(i) / hidden;
  const auto centred = [&](int i) { return moved(i) - mean; };
  return centred(column) * inverse(centred) * weight[column] + (bias.empty() ? 0.0 : bias[column]);
}

// Checks that one vector's rows give the same bits in one chunk and in several, close to the host's result.
void vectors(Random& random, bool quick) {
  const int hidden = 4 * (1 + random.below(quick ? 70 : 1100)), rows = 1 + random.below(quick ? 20 : 200);
  const int slots = 3, slot = random.below(slots);
  const bool branched = random.below(2), layer_norm = random.below(2);
  const float eps = 1e-5f;
  const std::vector<float> x = normal(random, size_t(rows) * hidden, 3.0f), weight = normal(random, hidden, 1.0f);
  const std::vector<float> branch = branched ? normal(random, x.size(), 0.5f) : std::vector<float>();
  const std::vector<float> branch_weight = branched ? normal(random, hidden, 1.0f) : std::vector<float>();
  const std::vector<float> bias = layer_norm ? normal(random, hidden, 1.0f) : std::vector<float>();
  std::vector<int32_t> list(rows);
  for (int i = 0; i < rows; i++) list[i] = i;
  const Buffer<float> device_x(x), device_branch(branch), device_branch_weight(branch_weight), device_weight(weight), device_bias(bias);
  const Buffer<int32_t> device_list(list);
  const Norm moved{device_x.get(), branched ? device_branch.get() : nullptr, branched ? device_branch_weight.get() : nullptr, nullptr,
                   device_weight.get(), hidden, eps};
  const FinalNorm norm{layer_norm ? NormKind::LAYER : NormKind::RMS, moved, layer_norm ? device_bias.get() : nullptr};
  std::vector<float> first;
  for (int chunk : {rows, 7, 1}) {
    const Buffer<float> finished_rows(size_t(rows) * hidden), out(size_t(2) * hidden);
    const Buffer<double> sums(size_t(slots) * hidden);
    const Launch launch{gpu(), test_stream()};
    final_rows(launch, device_list.get(), rows, norm, finished_rows.get());
    for (int from = 0; from < rows; from += chunk) {
      const int to = std::min(rows, from + chunk);
      const Buffer<Pooled> pooled(std::vector<Pooled>{{slot, 1, from, to - from, from == 0, to == rows ? rows : 0}});
      pool_rows(launch, pooled.get(), 1, finished_rows.get(), sums.get(), out.get(), hidden);
      check(cudaStreamSynchronize(test_stream()), "a vector");
    }
    const std::string what =
        text("hidden %d, %d rows, chunks of %d%s%s", hidden, rows, chunk, branched ? ", a branch" : "", layer_norm ? ", LayerNorm" : "");
    const std::vector<float> got = out.read();
    const std::vector<float> vector(got.begin() + hidden, got.end());
    report(finished_rows.guards_intact() && out.guards_intact() && sums.guards_intact(), what + ": guards");
    if (first.empty()) {
      first = vector;
      bool close = true;
      for (int column = 0; column < hidden; column += 1 + hidden / 16) {
        double mean = 0;
        for (int row = 0; row < rows; row++) mean += finished(x, branch, branch_weight, weight, bias, hidden, eps, row, column) / rows;
        close = close && fabs(mean - vector[column]) < 1e-5 * (1 + fabs(mean));
      }
      report(close, what + ": off the host's");
    }
    report(memcmp(vector.data(), first.data(), hidden * 4) == 0, what + ": bits");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && !strcmp(argv[1], "--quick");
  Random random{7};
  try {
    for (int i = 0; i < (quick ? 5 : 60); i++) {
      copies(random, quick);
      vectors(random, quick);
    }
  } catch (const std::exception& error) {
    report(false, error.what());
  }
  printf("prompt: %d checks, %d failures\n", checks, failures);
  return failures ? 1 : 0;
}
