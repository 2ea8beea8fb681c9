// Checks and times cuda/heads, which finishes queries, keys and values.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/heads.cu cuda/heads/*.cu -o heads
//   heads [--quick] [--time]
// Each failure prints a line that names the case and the first wrong element. The exit code is then 1.
#include "../heads/heads.h"
#include "attention_harness.cuh"
#include "attention_time.cuh"

namespace pen::bench {
namespace {

enum class To { FLOAT, HALF, PAGES, PLACE };  // PLACE: float32 in place

struct HeadsShape {
  const char* name;
  int num_heads, dim;
  To to;
  HeadNorm norm = HeadNorm::NONE;
  bool bias = false, own_norms = false, norm_bias = false, after = false;
  int rope_dim = 0, rope_first = 0;
  bool halves = false;
  float clamp = 0.0f, temperature = 0.0f, floor = 1.0f, offset = 0.0f;
  int norm_dim = 0;
  int gap = 0;  // floats between heads that belong to no head
  bool weightless = false;
};

constexpr int MAX_POSITION = 9000, PAGE = 32;

struct HeadsWorld {
  HeadsShape s;
  int tokens, stride, ld, page_dim, num_blocks;
  std::vector<float> in, bias, weight, norm_bias, rope;
  std::vector<uint32_t> positions, slots;

  HeadsWorld(const HeadsShape& s, int tokens, Random& random)
      : s(s), tokens(tokens), stride(s.dim + s.gap), ld(s.num_heads * stride + 3), page_dim((s.dim + 7) / 8 * 8 + 8),
        num_blocks(tokens / PAGE + 2) {
    const auto fill = [&](std::vector<float>& x, size_t n, float scale, float shift) {
      x.resize(n);
      for (float& y : x) y = scale * random.normal() + shift;
    };
    fill(in, static_cast<size_t>(tokens) * ld, 2.0f, 0.3f);
    fill(bias, static_cast<size_t>(s.num_heads) * s.dim, 1.0f, 0.0f);
    fill(weight, static_cast<size_t>(s.num_heads) * s.dim, 0.3f, 1.0f);
    fill(norm_bias, static_cast<size_t>(s.num_heads) * s.dim, 0.5f, 0.0f);
    rope.resize(static_cast<size_t>(MAX_POSITION) * s.rope_dim);
    for (size_t i = 0; i < rope.size(); ++i) rope[i] = cosf(static_cast<float>(i % 977));
    std::vector<uint32_t> order(static_cast<size_t>(num_blocks) * PAGE);
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(static_cast<int>(i))]);
    for (int t = 0; t < tokens; ++t) {
      positions.push_back(random.below(MAX_POSITION));
      slots.push_back(t % 5 == 3 ? NO_SLOT : order[t]);
    }
  }

  std::vector<double> reference(int token, int head) const {
    std::vector<double> x(s.dim);
    for (int i = 0; i < s.dim; ++i) {
      x[i] = in[static_cast<size_t>(token) * ld + static_cast<size_t>(head) * stride + i];
      if (s.bias) x[i] += bias[head * s.dim + i];
      if (s.clamp > 0) x[i] = std::min<double>(std::max<double>(x[i], -s.clamp), s.clamp);
    }
    const auto norm = [&] {
      if (s.norm == HeadNorm::NONE) return;
      const int n = s.norm_dim > 0 ? s.norm_dim : s.dim, at = s.own_norms ? head * s.dim : 0;
      double mean = 0.0, squares = 0.0;
      if (s.norm == HeadNorm::LAYER) {
        for (int i = 0; i < n; ++i) mean += x[i] / n;
      }
      for (int i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
      for (int i = 0; i < n; ++i) {
        x[i] = (x[i] - mean) / sqrt(squares / n + 1e-5);
        if (!s.weightless) x[i] *= weight[at + i];
        if (s.norm_bias) x[i] += norm_bias[at + i];
      }
    };
    if (!s.after) norm();
    const int pairs = s.rope_dim / 2;
    for (int i = 0; i < pairs; ++i) {
      double& a = x[s.rope_first + (s.halves ? i : 2 * i)];
      double& b = x[s.rope_first + (s.halves ? i + pairs : 2 * i + 1)];
      const float* table = rope.data() + static_cast<size_t>(positions[token]) * s.rope_dim;
      const double c = table[i], sine = table[pairs + i], a0 = a;
      a = a0 * c - b * sine, b = a0 * sine + b * c;
    }
    if (s.after) norm();
    if (s.temperature != 0) {
      for (double& y : x) y *= 1.0 + s.temperature * log1p(::floor((static_cast<double>(positions[token]) + s.offset) / s.floor));
    }
    return x;
  }
};

// Runs rows [begin, end) as a separate step. Returns every element as a float: [rows, heads, dim], NaN where nothing was written.
std::vector<float> run(const HeadsWorld& w, int begin, int end, bool overlap, const std::string& where) {
  const HeadsShape& s = w.s;
  const int rows = end - begin, ld_out = s.num_heads * s.dim + 5;
  Buffer<float> in(std::vector<float>(w.in.begin() + static_cast<size_t>(begin) * w.ld, w.in.begin() + static_cast<size_t>(end) * w.ld));
  Buffer<float> bias(w.bias), weight(w.weight), norm_bias(w.norm_bias), rope(w.rope), out(static_cast<size_t>(rows) * ld_out);
  Buffer<uint32_t> positions(std::vector<uint32_t>(w.positions.begin() + begin, w.positions.begin() + end));
  Buffer<uint32_t> slots(std::vector<uint32_t>(w.slots.begin() + begin, w.slots.begin() + end));
  Buffer<__half> out16(static_cast<size_t>(rows) * ld_out), pages(static_cast<size_t>(w.num_blocks) * s.num_heads * PAGE * w.page_dim);
  Heads args{in.get(), w.ld, w.stride, s.num_heads, s.dim};
  args.bias = s.bias ? bias.get() : nullptr, args.clamp = s.clamp;
  args.norm = s.norm, args.norm_dim = s.norm_dim, args.norm_weight = s.weightless ? nullptr : weight.get();
  args.norm_bias = s.norm_bias ? norm_bias.get() : nullptr, args.norm_stride = s.own_norms ? s.dim : 0, args.eps = 1e-5f;
  args.norm_after_rope = s.after;
  args.rope = s.rope_dim > 0 ? rope.get() : nullptr, args.rope_dim = s.rope_dim, args.rope_first = s.rope_first;
  args.rope_halves = s.halves;
  args.temperature_scale = s.temperature, args.temperature_floor = s.floor, args.temperature_offset = s.offset;
  args.ld_out = ld_out, args.out_head_stride = s.dim;
  if (s.to == To::FLOAT) args.out = out.get();
  if (s.to == To::PLACE) args.out = in.get(), args.ld_out = w.ld, args.out_head_stride = w.stride;
  if (s.to == To::HALF) args.out16 = out16.get();
  if (s.to == To::PAGES) args.pages = pages.get(), args.block_size = PAGE, args.page_dim = w.page_dim;
  const StepView step{positions.get(), slots.get(), nullptr, nullptr, nullptr, rows, 0, 0, 1, 1};
  finish_heads({gpu(), test_stream(), overlap}, args, step);
  check(cudaDeviceSynchronize(), where.c_str());
  report(in.guards_intact() && out.guards_intact() && out16.guards_intact() && pages.guards_intact(),
         where + ": wrote outside of its memory");
  const std::vector<float> floats = s.to == To::PLACE ? in.read() : out.read();
  const std::vector<__half> halves = out16.read(), slots16 = pages.read();
  std::vector<float> result(static_cast<size_t>(rows) * s.num_heads * s.dim, NAN);
  size_t written = 0, expected = 0;
  bool padded = true, gaps = true;
  for (int t = 0; t < rows; ++t) {
    const uint32_t slot = w.slots[begin + t];
    for (int h = 0; h < s.num_heads; ++h) {
      float* to = result.data() + (static_cast<size_t>(t) * s.num_heads + h) * s.dim;
      const size_t at = static_cast<size_t>(t) * args.ld_out + static_cast<size_t>(h) * args.out_head_stride;
      if (slot == NO_SLOT) continue;
      expected += s.to == To::PAGES ? w.page_dim : s.dim;
      const __half* page =
          slots16.data() + ((static_cast<size_t>(slot / PAGE) * s.num_heads + h) * PAGE + slot % PAGE) * w.page_dim;
      for (int i = 0; i < s.dim; ++i) {
        to[i] = s.to == To::HALF ? __half2float(halves[at + i]) : s.to == To::PAGES ? __half2float(page[i]) : floats[at + i];
      }
      if (s.to == To::PAGES) {
        for (int i = s.dim; i < w.page_dim; ++i) padded &= bits(page[i]) == 0;
      }
      for (int i = 0; s.to == To::PLACE && i < s.gap; ++i) {
        gaps &= floats[at + s.dim + i] == w.in[static_cast<size_t>(begin + t) * w.ld + h * w.stride + s.dim + i];
      }
    }
  }
  const auto whole = [](__half x) { return !poisoned(x); };
  if (s.to == To::HALF) written = std::count_if(halves.begin(), halves.end(), whole);
  if (s.to == To::PAGES) written = std::count_if(slots16.begin(), slots16.end(), whole);
  if (s.to == To::FLOAT) written = std::count_if(floats.begin(), floats.end(), [](float x) { return x == x; });
  report(s.to == To::PLACE || written == expected, where + text(": %zu elements written, not %zu", written, expected));
  report(padded, where + ": the rest of a page's row is not zero");
  report(gaps, where + ": something between the heads changed");
  return result;
}

void check_case(const HeadsShape& s, int tokens, uint64_t seed) {
  Random random{seed};
  const HeadsWorld w(s, tokens, random);
  const std::string name = text("%s, %d heads of %d, %d tokens", s.name, s.num_heads, s.dim, tokens);
  const std::vector<float> all = run(w, 0, tokens, false, name);
  const size_t row = static_cast<size_t>(s.num_heads) * s.dim;
  const double unit = s.to == To::FLOAT || s.to == To::PLACE ? 4e-6 : 1.0 / 2040.0;
  for (int t = 0; t < tokens; ++t) {
    if (w.slots[t] == NO_SLOT) continue;
    for (int h = 0; h < s.num_heads; ++h) {
      const std::vector<double> want = w.reference(t, h);
      const float* got = all.data() + t * row + static_cast<size_t>(h) * s.dim;
      for (int i = 0; i < s.dim; ++i) {
        const double e = fabs(got[i] - want[i]);
        if (e <= unit * fabs(want[i]) + 4e-5) continue;
        report(false, name + text(": token %d head %d element %d: %g is not %g", t, h, i, got[i], want[i]));
        return;
      }
      report(true, name);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const int begin = random.below(tokens), end = begin + 1 + random.below(tokens - begin);
    const std::vector<float> part = run(w, begin, end, i % 2 == 1, name + " part");
    report(memcmp(part.data(), all.data() + begin * row, part.size() * sizeof(float)) == 0,
           name + text(": tokens [%d, %d) alone differ from the batch", begin, end));
  }
}

// Checks that NaN and infinity stay visible, and that float16 stays finite.
void check_visible() {
  Random random{99};
  HeadsShape s{"NaN", 1, 64, To::HALF};
  s.clamp = 8.0f, s.norm = HeadNorm::NONE;
  HeadsWorld w(s, 1, random);
  w.in[3] = NAN, w.in[5] = 1e9f;
  const std::vector<float> out = run(w, 0, 1, false, "NaN and clamp");
  report(out[3] != out[3] && out[5] == 8.0f, "NaN and clamp");
  w.s.clamp = 0.0f;
  w.in[5] = -1e9f;
  const std::vector<float> unclamped = run(w, 0, 1, false, "float16's range");
  report(unclamped[3] != unclamped[3] && unclamped[5] == -65504.0f, "float16's range");
}

void time_heads() {
  const HeadsShape shapes[] = {{"Llama-3.1-8B queries", 32, 128, To::HALF}, {"Qwen3-4B queries", 32, 128, To::HALF, HeadNorm::RMS},
                               {"latent keys", 1, 576, To::PAGES, HeadNorm::RMS}};
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  const Launch launch{gpu(), test_stream(), device.major >= 9};
  printf("\n%s\n%-24s %8s %10s %10s\n", device.name, "shape", "tokens", "us", "GB/s");
  for (HeadsShape s : shapes) {
    for (int tokens : {1, 64, 2048}) {
      const size_t n = static_cast<size_t>(tokens) * s.num_heads * s.dim;
      Buffer<float> in(n), weight(s.dim), rope(static_cast<size_t>(tokens) * 64);
      Buffer<__half> out(n + 64 * 1024);
      std::vector<uint32_t> numbers;
      for (int t = 0; t < tokens; ++t) numbers.push_back(t);
      Buffer<uint32_t> positions(numbers), slots(numbers);
      Heads args{in.get(), s.num_heads * s.dim, s.dim, s.num_heads, s.dim};
      args.norm = s.norm, args.norm_weight = weight.get(), args.norm_dim = s.to == To::PAGES ? 512 : 0;
      args.rope = rope.get(), args.rope_dim = 64, args.rope_first = s.to == To::PAGES ? 512 : 0, args.rope_halves = true;
      if (s.to == To::PAGES) args.pages = out.get(), args.block_size = PAGE, args.page_dim = s.dim;
      if (s.to == To::HALF) args.out16 = out.get(), args.ld_out = args.ld_in, args.out_head_stride = s.dim;
      const StepView step{positions.get(), slots.get(), nullptr, nullptr, nullptr, tokens, 0, 0, 1, 1};
      const double us = time_chain(32, [&](int) { finish_heads(launch, args, step); });
      printf("%-24s %8d %10.2f %10.0f\n", s.name, tokens, us, 6.0 * n / us * 1e-3);
    }
  }
}

}  // namespace
}  // namespace pen::bench

int main(int argc, char** argv) {
  using namespace pen::bench;
  using pen::HeadNorm;
  bool quick = false, timing = false;
  for (int i = 1; i < argc; ++i) quick |= strcmp(argv[i], "--quick") == 0, timing |= strcmp(argv[i], "--time") == 0;
  try {
    // name, heads, size, output, norm, bias, own norms, norm bias, norm after rotation, rotated, from, halves, clamp, temperature, floor,
    // offset, normed elements, gap, weightless
    const HeadsShape shapes[] = {
        {"plain", 3, 64, To::HALF},
        {"Qwen2", 14, 64, To::HALF, HeadNorm::NONE, true, false, false, false, 64, 0, true},
        {"Qwen3 keys", 8, 128, To::PAGES, HeadNorm::RMS, false, false, false, false, 128, 0, true},
        {"query next to its gate", 4, 256, To::FLOAT, HeadNorm::RMS, false, false, false, false, 64, 0, true, 0, 0, 1, 0, 0, 256},
        {"latent keys", 1, 576, To::PAGES, HeadNorm::RMS, false, false, false, false, 64, 512, false, 0, 0, 1, 0, 512},
        {"latent queries", 16, 64, To::HALF, HeadNorm::NONE, false, false, false, false, 64, 0, false, 0, 0.1f, 512, 0, 0, 128},
        {"norm after rotation", 5, 128, To::FLOAT, HeadNorm::RMS, false, false, false, true, 128, 0, true},
        {"Llama 4", 5, 128, To::HALF, HeadNorm::RMS, false, false, false, true, 128, 0, false, 0, 0.1f, 8192, 1, 0, 0, true},
        {"LayerNorm of each head", 6, 80, To::FLOAT, HeadNorm::LAYER, true, true, true, false, 20, 0, true},
        {"clamp", 4, 128, To::PAGES, HeadNorm::NONE, true, false, false, false, 128, 0, false, 1.5f},
        {"in place", 9, 96, To::PLACE, HeadNorm::LAYER, true, false, false, false, 96, 0, false, 2.0f, 0.2f, 100, 3, 0, 32},
        {"in place, long", 2, 1000, To::PLACE, HeadNorm::LAYER, true, true, true, true, 500, 300, true, 0, 0, 1, 0, 0, 24},
        {"odd sizes", 7, 13, To::PAGES, HeadNorm::RMS, true, true, false, false, 6, 5, true},
        {"one element", 3, 1, To::FLOAT, HeadNorm::RMS},
        {"the longest", 2, 1024, To::HALF, HeadNorm::RMS, false, false, false, false, 1024, 0, false},
    };
    uint64_t seed = 1;
    for (const HeadsShape& shape : shapes) {
      for (int tokens : quick ? std::vector<int>{1, 7} : std::vector<int>{1, 2, 9, 100}) check_case(shape, tokens, seed++);
    }
    check_visible();
    printf("%d checks, %d failures\n", checks, failures);
    if (timing && failures == 0) time_heads();
  } catch (const std::exception& e) {
    printf("FAIL %s\n", e.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
