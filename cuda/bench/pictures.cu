// Checks and times cuda/pictures: attention among rows of a picture encoder's step, and mixed rows.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/pictures.cu cuda/pictures/*.cu -o pictures
//   pictures [--quick] [--time]
// Each failure prints a line that names the case and the first wrong element. The exit code is then 1.
#include "../pictures/among.h"
#include "../pictures/mix.h"
#include "attention_harness.cuh"
#include "graph_time.h"

namespace pen::bench {
namespace {

struct AmongShape {
  const char* name;
  int num_heads, num_kv_heads, dim, value_dim;
};

// Rows of spans one behind another, with a row that no span has between them.
struct AmongWorld {
  AmongShape s;
  int stride, value_stride, ld_q, ld_k, ld_v, ld_out, rows = 0, longest = 0;
  std::vector<int> first, length;
  std::vector<__half> q, k, v;
  float scale;

  AmongWorld(const AmongShape& s, const std::vector<int>& lengths, Random& random)
      : s(s), stride((s.dim + 7) / 8 * 8), value_stride((s.value_dim + 7) / 8 * 8), length(lengths) {
    const auto padded = [](int n) { return (n + 63) / 64 * 64; };
    ld_q = padded(s.num_heads * stride), ld_k = padded(s.num_kv_heads * stride), ld_v = padded(s.num_kv_heads * value_stride);
    ld_out = padded(s.num_heads * s.value_dim);
    for (const int n : lengths) first.push_back(rows), rows += n + 1, longest = std::max(longest, n);
    scale = 1.0f / sqrtf(static_cast<float>(s.dim));
    const auto fill = [&](std::vector<__half>& x, int ld, int heads, int step, int dim) {
      x.assign(static_cast<size_t>(rows) * ld, __float2half(0.0f));
      for (int r = 0; r < rows; ++r) {
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < dim; ++i) x[static_cast<size_t>(r) * ld + h * step + i] = __float2half(1.5f * random.normal());
        }
      }
    };
    fill(q, ld_q, s.num_heads, stride, s.dim), fill(k, ld_k, s.num_kv_heads, stride, s.dim);
    fill(v, ld_v, s.num_kv_heads, value_stride, s.value_dim);
  }

  std::vector<AmongTile> tiles(int block_rows) const {
    std::vector<AmongTile> all;
    for (size_t i = 0; i < length.size(); ++i) {
      for (int row = 0; row < length[i]; row += block_rows) {
        all.push_back({first[i] + row, std::min(block_rows, length[i] - row), first[i], length[i]});
      }
    }
    return all;
  }

  std::vector<double> reference(int span, int row, int head) const {
    const int kv_head = head / (s.num_heads / s.num_kv_heads);
    std::vector<double> p(length[span]), out(s.value_dim);
    double most = -1e300, sum = 0.0;
    for (int i = 0; i < length[span]; ++i) {
      double dot = 0.0;
      for (int d = 0; d < s.dim; ++d) {
        dot += static_cast<double>(__half2float(q[static_cast<size_t>(row) * ld_q + head * stride + d])) *
               __half2float(k[static_cast<size_t>(first[span] + i) * ld_k + kv_head * stride + d]);
      }
      p[i] = dot * scale, most = std::max(most, p[i]);
    }
    for (double& x : p) x = exp(x - most), sum += x;
    for (int i = 0; i < length[span]; ++i) {
      for (int d = 0; d < s.value_dim; ++d) {
        out[d] += p[i] / sum * __half2float(v[static_cast<size_t>(first[span] + i) * ld_v + kv_head * value_stride + d]);
      }
    }
    return out;
  }
};

Launch bench_launch() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  return Launch{gpu(), test_stream(), device.major >= 9};
}

// Returns the output, of which the rows between spans stay poisoned.
std::vector<__half> run_among(const AmongWorld& w, int block_rows, const std::string& what) {
  Buffer<__half> q(w.q), k(w.k), v(w.v), out(static_cast<size_t>(w.rows) * w.ld_out);
  const std::vector<AmongTile> all = w.tiles(block_rows);
  Buffer<AmongTile> tiles(all);
  const AmongShape& s = w.s;
  const Among args{q.get(), k.get(), v.get(), out.get(), w.ld_q, w.ld_k, w.ld_v, w.ld_out, w.stride, w.value_stride,
                   s.num_heads, s.num_kv_heads, s.dim, s.value_dim, w.scale};
  among(bench_launch(), args, {tiles.get(), static_cast<int>(all.size()), block_rows}, w.rows, w.rows);
  check(cudaStreamSynchronize(test_stream()), what.c_str());
  report(out.guards_intact(), what + ": writes outside of its output");
  return out.read();
}

void check_among(const AmongShape& s, const std::vector<int>& lengths, uint64_t seed) {
  Random random{seed};
  const AmongWorld w(s, lengths, random);
  const std::string what = text("among %s, %zu spans up to %d", s.name, lengths.size(), w.longest);
  const std::vector<__half> got = run_among(w, 64, what), wide = run_among(w, 128, what + " by 128");
  report(memcmp(got.data(), wide.data(), got.size() * sizeof(__half)) == 0, what + ": other bits in larger blocks");
  const int dim = std::max(s.dim, s.value_dim), widest = among_block_rows(65, dim, has_among_wide(gpu(), dim));
  if (widest > 128) {
    const std::vector<__half> widest_got = run_among(w, widest, what + " by warpgroups");
    report(memcmp(got.data(), widest_got.data(), got.size() * sizeof(__half)) == 0, what + ": other bits by warpgroups");
  }
  for (size_t span = 0; span < lengths.size(); ++span) {
    for (int row = w.first[span]; row < w.first[span] + lengths[span]; row += lengths[span] > 200 ? 37 : 1) {
      for (int head = 0; head < s.num_heads; ++head) {
        const std::vector<double> expected = w.reference(static_cast<int>(span), row, head);
        double error = 0.0, power = 0.0;
        for (int d = 0; d < s.value_dim; ++d) {
          const double x = __half2float(got[static_cast<size_t>(row) * w.ld_out + head * s.value_dim + d]);
          error += x == x ? (x - expected[d]) * (x - expected[d]) : 1e9, power += expected[d] * expected[d];
        }
        const bool ok = within_rounding(error, power, s.value_dim);
        report(ok, text("%s: row %d, head %d: squared error %.2e of %.2e", what.c_str(), row, head, error, power));
        if (!ok) return;
      }
    }
    const __half between = got[static_cast<size_t>(w.first[span] + lengths[span]) * w.ld_out];
    report(poisoned(between), what + ": writes a row of no span");
  }
}

void check_mix(int rows, int parts, int len, bool interleaved, bool add, uint64_t seed) {
  Random random{seed};
  const int sources = 2 * rows + 3, width = parts * len;
  std::vector<float> from(static_cast<size_t>(sources) * len), to(static_cast<size_t>(rows) * width), expected, weights;
  for (float& x : from) x = random.normal();
  for (float& x : to) x = random.normal();
  std::vector<uint32_t> ends, terms;
  expected = to;
  for (int row = 0; row < rows; ++row) {
    for (int part = 0; part < parts; ++part) {
      const size_t begin = terms.size();
      for (int t = random.below(5); t > 0; --t) terms.push_back(random.below(sources)), weights.push_back(random.normal());
      ends.push_back(static_cast<uint32_t>(terms.size()));
      for (int i = 0; i < len; ++i) {
        float& x = expected[static_cast<size_t>(row) * width + (interleaved ? part + i * parts : part * len + i)];
        volatile float sum = add ? x : 0.0f;
        for (size_t t = begin; t < terms.size(); ++t) {
          const volatile float product = weights[t] * from[static_cast<size_t>(terms[t]) * len + i];
          sum = sum + product;
        }
        x = sum;
      }
    }
  }
  Buffer<float> from_device(from), to_device(to), weights_device(weights);
  Buffer<uint32_t> ends_device(ends), terms_device(terms);
  mix(bench_launch(), Mix{from_device.get(), to_device.get(), len, width, len, parts, interleaved, add},
      {ends_device.get(), terms_device.get(), weights_device.get()}, rows);
  check(cudaStreamSynchronize(test_stream()), "mix");
  const std::vector<float> got = to_device.read();
  const bool same = memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
  report(same && to_device.guards_intact(), text("mix of %d rows of %d parts of %d", rows, parts, len));
}

void time_among() {
  const struct {
    AmongShape shape;
    int rows, span;
  } cases[] = {{{"SigLIP-400M, 4096 patches", 16, 16, 72, 72}, 4096, 4096},
               {{"Qwen2.5-VL, 5476 patches", 16, 16, 80, 80}, 5476, 5476},
               {{"Qwen2.5-VL, windows of 64", 16, 16, 80, 80}, 5476, 64},
               {{"CLIP-L, 577 rows", 16, 16, 64, 64}, 577, 577},
               {{"GLM-4.5V, 4096 patches", 12, 12, 128, 128}, 4096, 4096}};
  printf("\n%-28s %10s %10s\n", "shape", "us", "TFLOP/s");
  for (const auto& c : cases) {
    Random random{7};
    std::vector<int> lengths;
    for (int left = c.rows; left > 0; left -= c.span) lengths.push_back(std::min(left, c.span));
    const AmongWorld w(c.shape, lengths, random);
    Buffer<__half> q(w.q), k(w.k), v(w.v), out(static_cast<size_t>(w.rows) * w.ld_out);
    const int block_rows = among_block_rows(w.longest, c.shape.dim, has_among_wide(gpu(), c.shape.dim));
    const std::vector<AmongTile> all = w.tiles(block_rows);
    Buffer<AmongTile> tiles(all);
    const Among args{q.get(), k.get(), v.get(), out.get(), w.ld_q, w.ld_k, w.ld_v, w.ld_out, w.stride, w.value_stride,
                     c.shape.num_heads, c.shape.num_kv_heads, c.shape.dim, c.shape.value_dim, w.scale};
    const Launch launch = bench_launch();
    constexpr int CALLS = 16, RUNS = 9;
    const double us = graph_us(test_stream(), RUNS, [&] {
      for (int i = 0; i < CALLS; ++i) among(launch, args, {tiles.get(), static_cast<int>(all.size()), block_rows}, w.rows, w.rows);
    }) / CALLS;
    const double flops = 4.0 * c.rows * std::min(c.rows, c.span) * c.shape.num_heads * c.shape.dim;
    printf("%-28s %10.1f %10.0f\n", c.shape.name, us, flops / us * 1e-6);
  }
}

}  // namespace
}  // namespace pen::bench

int main(int argc, char** argv) {
  using namespace pen::bench;
  bool quick = false, timing = false;
  for (int i = 1; i < argc; ++i) quick |= strcmp(argv[i], "--quick") == 0, timing |= strcmp(argv[i], "--time") == 0;
  try {
    // name, heads, key heads, elements of keys and of values
    const AmongShape shapes[] = {{"SigLIP", 4, 4, 72, 72},     {"Qwen2.5-VL", 4, 4, 80, 80}, {"CLIP", 3, 3, 64, 64},
                                 {"Llama 4", 4, 4, 88, 88},    {"GLM-4.5V", 2, 2, 128, 128}, {"grouped heads", 6, 2, 96, 96},
                                 {"tiny", 4, 4, 16, 16},       {"odd keys", 2, 1, 20, 12},   {"long values", 2, 2, 32, 100},
                                 {"short values", 2, 2, 112, 6}};
    uint64_t seed = 1;
    for (const AmongShape& shape : shapes) {
      check_among(shape, {1}, seed++);
      check_among(shape, {64, 64, 64, 7, 40}, seed++);
      check_among(shape, {65, 1, 130, 200}, seed++);
      if (!quick) check_among(shape, {577, 1024}, seed++);
    }
    for (const bool add : {false, true}) {
      for (const bool interleaved : {false, true}) {
        check_mix(1, 1, 1, interleaved, add, seed++);
        check_mix(9, 4, 72, interleaved, add, seed++);
        check_mix(50, 9, 1152, interleaved, add, seed++);
      }
    }
    printf("%d checks, %d failures\n", checks, failures);
    if (timing && failures == 0) time_among();
  } catch (const std::exception& e) {
    printf("FAIL %s\n", e.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
