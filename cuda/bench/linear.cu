// Checks linear layers: every type's decoder against the gguf package and its products against float64, both on the host, and that every
// kernel and every number of tokens give the same bits. Also times them. Reads tests/golden/quants, so it runs in the project's folder.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/linear.cu cuda/{linear,norm}/*.cu cuda/quant/*.cu -o linear
//   linear [--quick] [--time | --few]
//   linear --many (timings of 65 to 2048 tokens by each kind of block of hopper.cuh, without the tests)
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "../linear/hopper.h"
#include "../linear/rows.h"
#include "../quant/blocks_book.cuh"
#include "linear_product.h"
#include "linear_time.h"

using namespace pen;
using pen::bench::Array;
using pen::bench::by_blocks;
using pen::bench::by_k_tiles;
using pen::bench::by_prefill;
using pen::bench::empty_linear;
using pen::bench::failures;
using pen::bench::gpu;
using pen::bench::Kernel;
using pen::bench::product;
using pen::bench::random_bits;
using pen::bench::random_blocks;
using pen::bench::random_halves;
using pen::bench::RandomProduct;
using pen::bench::test_arrivals;
using pen::bench::uniform;
using pen::bench::upload;

namespace {

// A weight of the file in float32.
template <class Block, class Format>
float weight_of(const uint8_t* block, int i) {
  if constexpr (Format::id == FORMAT_H16) {
    return Block::value(block, i);
  } else {
    const float weight = Format::level(Block::code(block, i)) * Block::scale(block, i);
    if constexpr (Format::has_min) return weight + Block::min(block, i);
    return weight;
  }
}
float weight_at(uint32_t id, const uint8_t* block, int i) {
  switch (id) {
#define QUANT(type, name, size, bytes, block_type, layout) \
  case type: return weight_of<block_type, layout>(block, i);
#include "../quant/types.inc"
#undef QUANT
  }
  return NAN;
}

// Checks decoders against the gguf package, on the host: tests/golden/quants/NAME.bin holds blocks and their weights. Loading refuses
// weights beyond float16's range.
void test_blocks(const QuantRow& q) {
  std::ifstream file(std::string("tests/golden/quants/") + q.name + ".bin", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t each = q.block_bytes + 4 * q.block_size, count = bytes.size() / each;
  if (count == 0) {
    printf("FAIL %s: tests/golden/quants/%s.bin was not found: run this in the project's directory\n", q.name, q.name);
    failures++;
    return;
  }
  for (size_t i = 0; i < count * q.block_size; i++) {
    const auto* block = reinterpret_cast<const uint8_t*>(&bytes[i / q.block_size * q.block_bytes]);
    const float got = weight_at(q.id, block, int(i % q.block_size));
    float want;
    std::memcpy(&want, &bytes[count * q.block_bytes + 4 * i], 4);
    if (std::fabs(want) <= 65504.0f && got != want) {
      printf("FAIL %s: weight %zu is %g, not %g\n", q.name, i, got, want);
      failures++;
      return;
    }
  }
}

void test_type(const QuantRow& q, int rows, int cols, int most, bool hopper, Slicing slicing = {}) {
  const auto blocks = random_blocks(q, rows, cols);
  const size_t row_bytes = size_t(cols) / q.block_size * q.block_bytes;
  Matrix shape{nullptr, rows, cols, q.format, q.record_bytes};
  Array<uint8_t> records(shape.bytes());
  const Matrix w = upload(q, blocks, rows, cols, records);
  const int ldx = int(round_up(cols, K_TILE));
  std::vector<__half> x(size_t(most) * ldx, __float2half(0.0f));
  for (int n = 0; n < most; n++) {
    for (int k = 0; k < cols; k++) x[size_t(n) * ldx + k] = __float2half_rn(std::normal_distribution<float>()(random_bits));
  }
  Array<__half> dx(x);
  Linear args = empty_linear();
  args.w[0] = w;
  args.num_segments = 1;
  args.x = dx.data;
  args.ldx = ldx;
  args.num_tokens = most;
  args.slicing = slicing;
  const std::vector<float> whole = product(linear_prefill_any, args, rows);
  double error = 0, norm = 0;
  for (int r = 0; r < rows; r++) {
    std::vector<double> row(cols);
    for (int k = 0; k < cols; k++) row[k] = weight_at(q.id, &blocks[r * row_bytes + k / q.block_size * q.block_bytes], k % q.block_size);
    for (int n = 0; n < std::min(most, 9); n++) {
      double y = 0;
      for (int k = 0; k < cols; k++) y += row[k] * double(__half2float(x[size_t(n) * ldx + k]));
      const double d = whole[size_t(n) * rows + r] - y;
      error += d * d;
      norm += y * y;
    }
  }
  const double nmse = error / norm;
  // Weights of types with a minimum are rounded twice on the way to float16 (scale and minimum): up to 1.2e-7.
  if (!(nmse <= 1e-6)) { printf("FAIL %s %dx%d: error %.3g\n", q.name, rows, cols, nmse); failures++; }
  const auto same = [&](const std::vector<float>& y, int first, int tokens, const char* what) {
    const float* expected = &whole[size_t(first) * rows];
    if (std::memcmp(y.data(), expected, size_t(tokens) * rows * 4) == 0) return;
    size_t bad = 0, at = 0;
    double worst = 0;
    for (size_t i = 0; i < size_t(tokens) * rows; i++) {
      if (std::memcmp(&y[i], &expected[i], 4) != 0) {
        if (!bad++) at = i;
        worst = std::max(worst, double(std::fabs(y[i] - expected[i])));
      }
    }
    printf("FAIL %s %dx%d, %d slices%s: %s: %zu of %d bits differ, first token %zu row %zu: %g and %g, worst %g\n", q.name, rows, cols,
           slicing.count(), slicing.halves ? " in halves" : "", what, bad, tokens * rows, at / rows, at % rows, y[at], expected[at], worst);
    failures++;
  };
  if (hopper) {
    same(product(by_prefill, args, rows), 0, most, "wgmma");
    for (const auto& [tokens, kernel] : {std::pair<int, Kernel>{64, by_blocks(64)}, {128, by_blocks(128)}, {128, by_k_tiles}}) {
      // Blocks that share a tile give up waiting at once, or soon.
      for (int max_wait_cycles : {Linear{}.max_wait_cycles, 0, 1000, 3000}) {
        Linear left = args;
        left.max_wait_cycles = max_wait_cycles;
        char what[64];
        snprintf(what, sizeof what, "wgmma, blocks of %d tokens, waits of %d cycles", tokens, max_wait_cycles);
        same(product(kernel, left, rows), 0, most, what);
      }
    }
    for (int warpgroups = 1; warpgroups <= 4; warpgroups++) {
      for (int shares = 1; shares <= (shape_of(args).can_share() ? SLICES : 1); shares *= 2) {
        const int tokens = std::min(most, shares == 4 ? 4 + warpgroups : warpgroups * 15 + shares - 4);
        Linear part = args;
        part.num_tokens = tokens;
        if (shares < least_shares(shape_of(part))) continue;
        char what[64];
        snprintf(what, sizeof what, "%d tokens, %d warpgroups, %d shares", tokens, warpgroups, shares);
        const auto kernel = [=](const Launch& launch, const Linear& a) { linear_rows(launch, a, {warpgroups, shares, 0}); };
        same(product(kernel, part, rows), 0, tokens, what);
        for (int max_wait_cycles : {0, 1000}) {
          if (shares == 1) break;
          part.max_wait_cycles = max_wait_cycles;
          same(product(kernel, part, rows), 0, tokens, "shares that leave");
        }
      }
    }
  }
  for (int tokens : {1, 2, 7, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65}) {
    if (tokens > most) continue;
    Linear part = args;
    const int first = most - tokens;
    part.x = dx.data + size_t(first) * ldx;
    part.num_tokens = tokens;
    char what[64];
    snprintf(what, sizeof what, "%d tokens", tokens);
    same(product(linear, part, rows), first, tokens, what);
  }
}

// Checks that devices which have some slices each, and one that has all of them, give the same bits. They are added as Slicing says.
void test_shards(const QuantRow& q, int rows, int cols, int tokens) {
  RandomProduct random(q, rows, cols, tokens);
  Linear whole = random.args;
  whole.slicing.halves = true;
  const std::vector<float> expected = product(pen::linear, whole, rows);
  for (int bits : {0, 2}) {  // eight shards, and two
    const int each = 1 << bits, k_tiles = whole.w[0].k_tiles(), own = k_tiles * each / SLICES;
    std::vector<std::vector<float>> sums;
    for (int first = 0; first < SLICES; first += each) {
      // The records of a row tile that belong to the slices.
      const int begin = slice_begin(first, k_tiles), bytes = q.record_bytes;
      Array<uint8_t> records(size_t(whole.w[0].tiles()) * own * bytes);
      check(cudaMemcpy2D(records.data, size_t(own) * bytes, whole.w[0].data + size_t(begin) * bytes, size_t(k_tiles) * bytes,
                         size_t(own) * bytes, whole.w[0].tiles(), cudaMemcpyDeviceToDevice), "columns");
      Linear part = random.args;
      part.w[0].data = records.data, part.w[0].cols = own * K_TILE, part.x += begin * K_TILE;
      part.slicing.bits = bits;
      sums.push_back(product(pen::linear, part, rows));
    }
    bool right = true;
    for (size_t i = 0; i < expected.size(); i++) {
      float halves[2] = {};
      for (size_t k = 0; k < sums.size(); k++) halves[2 * k / sums.size()] += sums[k][i];
      const float sum = halves[0] + halves[1];
      right &= std::memcmp(&sum, &expected[i], 4) == 0;
    }
    if (!right) printf("FAIL %s: shards of %d slices, %d tokens\n", q.name, each, tokens), failures++;
  }
}

// Checks gate and up in shared tiles: the epilogue applied to the sums of separate matrices.
void test_glu(const QuantRow& q, int ffn, int cols, Epilogue epilogue) {
  const int most = 70, ldx = int(round_up(cols, K_TILE)), ldo = int(round_up(ffn, K_TILE));
  const auto gate = random_blocks(q, ffn, cols), up = random_blocks(q, ffn, cols);
  Matrix one{nullptr, ffn, cols, q.format, q.record_bytes}, both{nullptr, 2 * ffn, cols, q.format, q.record_bytes};
  Array<uint8_t> r1(one.bytes()), r2(one.bytes()), r3(both.bytes());
  std::vector<__half> x(size_t(most) * ldx, __float2half(0.0f));
  for (int n = 0; n < most; n++) {
    for (int k = 0; k < cols; k++) x[size_t(n) * ldx + k] = __float2half_rn(std::normal_distribution<float>()(random_bits));
  }
  Array<__half> dx(x);
  Linear args = empty_linear();
  args.num_segments = 1;
  args.x = dx.data;
  args.ldx = ldx;
  args.num_tokens = most;
  args.w[0] = upload(q, gate, ffn, cols, r1);
  const auto g = product(linear, args, ffn);
  args.w[0] = upload(q, up, ffn, cols, r2);
  const auto u = product(linear, args, ffn);
  args.w[0] = upload(q, gate, ffn, cols, r3, true, &up);
  args.epilogue = epilogue;
  args.ldo = ldo;
  std::vector<__half> first;
  for (int tokens : {1, 9, 40, 64, 70}) {
    Array<__half> out(std::vector<__half>(size_t(most) * ldo, __float2half(7.0f)));
    args.out16 = out.data;
    args.num_tokens = tokens;
    linear(Launch{gpu()}, args);
    check(cudaDeviceSynchronize(), "glu");
    const auto y = out.get();
    double error = 0, norm = 0;
    bool same = true, outside = false;
    for (int n = 0; n < most; n++) {
      for (int i = 0; i < ldo; i++) {
        const float got = __half2float(y[size_t(n) * ldo + i]);
        if (n >= tokens || i >= ffn) { outside |= got != 7.0f; continue; }
        const double a = g[size_t(n) * ffn + i];
        const double silu = a / (1 + std::exp(-a)), gelu = 0.5 * a * (1 + std::tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)));
        const double activated = epilogue == Epilogue::SILU_MUL ? silu : gelu;
        const double want = activated * u[size_t(n) * ffn + i];
        error += (got - want) * (got - want);
        norm += want * want;
        if (!first.empty() && n == 0) same &= std::memcmp(&first[i], &y[i], 2) == 0;
      }
    }
    if (first.empty()) first = y;
    if (!(error / norm <= 1e-6) || !same || outside) {
      printf("FAIL glu %s %d tokens: error %.3g, same bits %d, wrote outside %d\n", q.name, tokens, error / norm, same, outside);
      failures++;
    }
  }
}

// Checks a product that normalises its own input against the norm's kernel followed by the product, with and without a branch.
void test_norm(const QuantRow& q, int rows, int cols) {
  constexpr int MOST = 8;  // most tokens
  const RandomProduct random(q, rows, cols, MOST);
  const auto floats = [](size_t count) {
    std::vector<float> all(count);
    for (auto& v : all) v = std::ldexp(uniform(-1, 1), int(random_bits() % 8) - 4);
    return Array<float>(all);
  };
  const size_t count = size_t(MOST) * cols;
  const Array<float> x = floats(count), branch = floats(count), weight = floats(cols), branch_weight = floats(cols);
  const int ldh = int(round_up(cols, K_TILE));
  for (const bool branched : {false, true}) {
    for (int tokens = 1; takes_norm(tokens, cols); tokens++) {
      std::vector<float> moved[2], out[2];
      for (const bool own : {false, true}) {
        const Array<float> y(std::vector<float>(size_t(MOST) * rows, 7.0f)), x_out(std::vector<float>(count, 7.0f));
        const Array<__half> h(std::vector<__half>(size_t(MOST) * ldh, __float2half(0.0f)));
        Norm norm{x.data, nullptr, branch_weight.data, nullptr, weight.data, cols, 1e-5f};
        if (branched) norm.branch = branch.data, norm.x_out = x_out.data;
        Linear args = random.args;
        args.num_tokens = tokens, args.x = h.data, args.ldx = ldh, args.out = y.data, args.ldo = rows;
        if (own) args.norm = norm;
        else rms_norm(Launch{gpu()}, norm, nullptr, tokens, h.data, ldh);
        linear(Launch{gpu()}, args);
        check(cudaDeviceSynchronize(), "norm");
        moved[own] = x_out.get(), out[own] = y.get();
      }
      if (std::memcmp(out[0].data(), out[1].data(), out[0].size() * 4) || std::memcmp(moved[0].data(), moved[1].data(), count * 4)) {
        printf("FAIL norm %s %d x %d, %d tokens, branch %d: other bits\n", q.name, rows, cols, tokens, branched);
        failures++;
      }
    }
  }
}

// Checks every epilogue of the kernel for many tokens, with blocks that take several tiles each, against the kernel that runs on all
// devices. The sums are added to values of all sizes. Nothing may be written beyond the rows, the tokens and the row's end.
void test_epilogues(const QuantRow& q, int rows, int cols, int tokens, int offset, bool hopper, bool halves = false) {
  const RandomProduct random(q, rows, cols, tokens);
  Linear args = random.args;
  args.slicing.halves = halves;
  args.ldo = int(round_up(rows, 8)) + 16;
  args.out_offset[0] = offset;
  std::vector<float> before(size_t(tokens + 1) * args.ldo);
  for (auto& v : before) v = std::ldexp(uniform(-1, 1), int(random_bits() % 40) - 30);
  for (const Epilogue epilogue : {Epilogue::STORE, Epilogue::ADD, Epilogue::SILU_MUL, Epilogue::GELU_MUL}) {
    if (halves && is_gated(epilogue)) break;
    args.epilogue = epilogue;
    std::vector<float> expected;
    int number = 0;
    std::vector<Kernel> kernels{linear_prefill_any, by_prefill, pen::linear};
    if (hopper) {
      for (int block : HOPPER_TOKENS) kernels.push_back(by_blocks(block));
      kernels.push_back(by_k_tiles);
    }
    for (const Kernel& kernel : kernels) {
      for (int max_wait_cycles : {Linear{}.max_wait_cycles, 0}) {
        Array<float> out(before);
        args.out = out.data;
        args.out16 = reinterpret_cast<__half*>(out.data);
        args.max_wait_cycles = max_wait_cycles;
        kernel(Launch{gpu()}, args);
        check(cudaDeviceSynchronize(), "epilogues");
        test_arrivals(args);
        const std::vector<float> y = out.get();
        if (expected.empty()) expected = y;
        if (std::memcmp(y.data(), expected.data(), before.size() * 4) == 0) continue;
        printf("FAIL %s: epilogue %d of %d tokens, %d rows, kernel %d, halves %d\n", q.name, int(epilogue), tokens, rows, number, halves);
        failures++;
      }
      number++;
    }
  }
}

// Checks that three segments of these types in one call equal three calls. Their x comes from a preceding product on the same stream with
// programmatic launches, and is NaN before.
void test_segments(int cols, const int (&rows)[3], const uint32_t (&ids)[3], bool hopper) {
  const int most = 700, ldo = rows[0] + rows[1] + rows[2];
  std::vector<std::unique_ptr<Array<uint8_t>>> keep;
  const auto random_matrix = [&](uint32_t id, int rows, int cols) {
    const QuantRow& q = *quant_row(id);
    keep.push_back(std::make_unique<Array<uint8_t>>(Matrix{nullptr, rows, cols, q.format, q.record_bytes}.bytes()));
    return upload(q, random_blocks(q, rows, cols), rows, cols, *keep.back());
  };
  Array<__half> first_x(random_halves(size_t(most) * K_TILE)), x(size_t(most) * cols);
  Linear first = empty_linear(), one = first, all = first;
  first.w[0] = random_matrix(1, 2 * cols, K_TILE);
  first.num_segments = 1, first.x = first_x.data, first.ldx = K_TILE, first.out16 = x.data, first.ldo = cols;
  first.epilogue = Epilogue::SILU_MUL;
  one.num_segments = 1, all.num_segments = 3;
  one.x = all.x = x.data, one.ldx = all.ldx = cols, all.ldo = ldo;
  for (int i = 0, offset = 0; i < 3; offset += rows[i++]) all.w[i] = random_matrix(ids[i], rows[i], cols), all.out_offset[i] = offset;
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::vector<Kernel> kernels{pen::linear};
  if (hopper && ids[1] == ids[0] && ids[2] == ids[0]) {
    for (int block : HOPPER_TOKENS) kernels.push_back(by_blocks(block));
  }
  if (hopper && ids[1] == ids[0] && has_pair(quant_row(ids[0])->format, quant_row(ids[2])->format)) kernels.push_back(pen::bench::as_pair);
  for (int tokens : {1, 3, 8, 20, 40, 70, 200, most}) {
    first.num_tokens = one.num_tokens = all.num_tokens = tokens;
    std::vector<std::vector<float>> expected;
    for (size_t number = 0; number < kernels.size(); number++) {
      Array<float> out(size_t(tokens) * ldo);
      all.out = out.data;
      check(cudaMemsetAsync(x.data, 0xff, size_t(most) * cols * 2, stream), "memset");
      linear(Launch{gpu(), stream, true}, first);
      kernels[number](Launch{gpu(), stream, true}, all);
      check(cudaStreamSynchronize(stream), "segments");
      const auto y = out.get();
      for (int i = 0; i < 3; i++) {
        one.w[0] = all.w[i];
        if (number == 0) expected.push_back(product(pen::linear, one, rows[i]));
        for (int n = 0; n < tokens; n++) {
          if (std::memcmp(&y[size_t(n) * ldo + all.out_offset[i]], &expected[i][size_t(n) * rows[i]], rows[i] * 4) == 0) continue;
          printf("FAIL segments of %d columns: %d tokens, token %d, segment %d, kernel %zu\n", cols, tokens, n, i, number);
          failures++;
          break;
        }
      }
    }
  }
  cudaStreamDestroy(stream);
}

// Runs two streams at the same time, as two models do: blocks that share a tile may wait for blocks that cannot start. Each product is
// launched many times, so that the next launch reuses the words of the previous one.
void test_streams(const QuantRow& q, int rows, int cols, int tokens) {
  constexpr int STREAMS = 2, LAUNCHES = 50;
  const RandomProduct random(q, rows, cols, tokens);
  Linear args = random.args;
  args.ldo = rows;
  const std::vector<float> expected = product(linear_prefill_any, args, rows);
  Array<uint8_t> slabs(args.slab_bytes);
  Array<uint32_t> arrivals(std::vector<uint32_t>(MAX_SHARED_TILES, 0));
  std::vector<std::unique_ptr<Array<float>>> outs;
  cudaStream_t streams[STREAMS];
  for (auto& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  for (int i = 0; i < STREAMS * LAUNCHES; i++) outs.push_back(std::make_unique<Array<float>>(expected.size()));
  for (int launch = 0; launch < LAUNCHES; launch++) {
    for (int i = 0; i < STREAMS; i++) {
      Linear part = args;
      part.out = outs[launch * STREAMS + i]->data;
      if (i > 0) part.slabs = reinterpret_cast<float*>(slabs.data), part.arrivals = arrivals.data;
      linear(Launch{gpu(), streams[i], true}, part);
    }
  }
  check(cudaDeviceSynchronize(), "streams");
  args.arrivals = arrivals.data;
  test_arrivals(args);
  test_arrivals(empty_linear());
  int wrong = 0;
  for (const auto& out : outs) wrong += std::memcmp(out->get().data(), expected.data(), expected.size() * 4) != 0;
  if (wrong) printf("FAIL %s: %d of %zu products of %d tokens on two streams\n", q.name, wrong, outs.size(), tokens);
  failures += wrong != 0;
  for (auto& stream : streams) cudaStreamDestroy(stream);
}

// Checks each matrix of a stack against the same matrix alone.
void test_stack(const QuantRow& q, int count, int rows, int cols, int tokens) {
  const RandomProduct random(q, count * rows, cols, count * tokens);
  Linear all = random.args;
  all.stacked = count, all.ldx = count * cols, all.num_tokens = tokens;
  const Kernel stack = [](const Launch& launch, const Linear& args) { failures += !linear_stack(launch, args); };
  const std::vector<float> got = product(stack, all, count * rows);
  for (int i = 0; i < count; i++) {
    Linear one = all;
    one.w[0].rows = rows, one.w[0].data += i * one.w[0].bytes(), one.x += i * cols;
    const std::vector<float> expected = product(linear_prefill_any, one, rows);
    bool right = true;
    for (int t = 0; t < tokens; t++) right &= !std::memcmp(&got[(size_t(t) * count + i) * rows], &expected[size_t(t) * rows], rows * 4);
    if (!right) printf("FAIL %s: matrix %d of a stack, %d tokens\n", q.name, i, tokens), failures++;
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, timing = false, few = false, many = false;
  for (int i = 1; i < argc; i++) {
    quick |= !std::strcmp(argv[i], "--quick");
    timing |= !std::strcmp(argv[i], "--time") || !std::strcmp(argv[i], "--few");
    few |= !std::strcmp(argv[i], "--few");
    many |= !std::strcmp(argv[i], "--many");
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device");
  const bool hopper = properties.major == 9;
  if (many) return pen::bench::time_many(), 0;
  const uint32_t ids[] = {
#define QUANT(type, name, size, bytes, block, layout) type,
#include "../quant/types.inc"
#undef QUANT
  };
  for (uint32_t id : ids) {
    const QuantRow& q = *quant_row(id);
    test_blocks(q);
    test_type(q, 48, 256, 130, hopper);
    test_type(q, 48, q.block_size == 256 ? 8192 : 8256, 130, hopper, {3, true});
    if (q.block_size <= 32) test_type(q, 33, 96, 66, hopper);
    if (q.block_size == 1) test_type(q, 7, 40, 20, hopper);
    if (!quick) {
      test_type(q, 1000, q.block_size == 256 ? 1536 : 576, 200, hopper);
      test_type(q, 272, 14336, 140, hopper);
      test_type(q, 272, 14336, 140, hopper, {3, true});
    }
    test_glu(q, 40, 256, id % 2 ? Epilogue::SILU_MUL : Epilogue::GELU_MUL);
    if (!quick) test_glu(q, 1540, 512, Epilogue::SILU_MUL);
    printf("%s done, %d failures\n", q.name, failures);
    fflush(stdout);
  }
  // Several tiles and records per warp, all requested before the wait. Slices without a record. Blocks that cross segments.
  test_type(*quant_row(6), 3000, 320, 20, hopper);
  if (!quick) test_type(*quant_row(6), 6000, 896, 70, hopper);
  // More tiles than blocks, so that each block takes several, with all numbers of tokens.
  test_type(*quant_row(2), 3000, 576, 1500, hopper);
  test_epilogues(*quant_row(2), 6000, 256, 700, 8, hopper);
  test_epilogues(*quant_row(8), 5992, 128, 1000, 4, hopper);
  test_epilogues(*quant_row(12), 4096, 256, 640, 1, hopper);
  // Halves that are even or not, and few slices.
  for (const int cols : {8192, 8256, 8704, 9728}) test_type(*quant_row(8), 200, cols, 130, hopper, {3, true});
  for (const int bits : {0, 1, 2}) test_type(*quant_row(12), 304, 1024, 300, hopper, {bits, false});
  for (const int bits : {0, 1, 2}) test_type(*quant_row(8), 304, 576, 130, hopper, {bits, false});
  for (const int tokens : {1, 6, 12, 40, 64, 300}) test_shards(*quant_row(12), 520, 8192, tokens);
  for (const int tokens : {65, 128, 300, 700}) {
    for (const uint32_t id : {12u, 8u, 1u}) test_epilogues(*quant_row(id), 5128, 8192, tokens, 8, hopper, true);
    test_epilogues(*quant_row(8), 2592, 9728, tokens, 4, hopper, true);
    test_epilogues(*quant_row(12), 2600, 8704, tokens, 1, hopper, true);
  }
  for (const int tokens : {7, 16, 30, 60}) test_epilogues(*quant_row(14), 4096, 8192, tokens, 4, hopper, true);
  // Several whole tiles per block. Their sums are written in parts unless slices are short.
  for (int cols : {4096, 3072, 2560, 2048, 1536}) test_epilogues(*quant_row(12), 5128, cols, 1000, 4, hopper);
  for (uint32_t id : {13u, 14u}) test_epilogues(*quant_row(id), 5128, 4096, 1100, 8, hopper);
  for (int cols : {3008, 2112}) test_epilogues(*quant_row(8), 5128, cols, 1000, 4, hopper);
  // Tiles that several blocks share, after tiles that are not shared.
  if (!quick) {
    for (int tokens : {800, 1000, 1152}) test_epilogues(*quant_row(12), 2592, 4096, tokens, 4, hopper);
    test_type(*quant_row(1), 2600, 4096, 900, hopper);
  }
  // Whole and shared tiles whose last blocks have none, some or all of their row tiles.
  for (uint32_t id : {12u, 14u, 8u, 1u}) {
    for (int tokens : {65, 96, 127, 128, 129, 192, 257, 300}) {
      test_epilogues(*quant_row(id), 2 * 8 * 16 * (tokens % 3) + 16 * (tokens % 11) + 520, 256, tokens, 8, hopper);
      if (!quick) test_epilogues(*quant_row(id), 16 * (tokens % 25) + tokens % 2 * 3000 + 200, 4096, tokens, 8, hopper);
    }
  }
  for (int tokens : {7, 16, 30, 60, 130}) test_epilogues(*quant_row(14), 4096, 4096, tokens, 4, hopper);
  for (int tokens : {16, 50, 64, 128, 200}) test_streams(*quant_row(12), 2048, 4096, tokens);
  for (const auto& ids : {std::array<uint32_t, 3>{12, 8, 14}, {12, 12, 14}, {13, 13, 14}, {12, 12, 12}, {14, 14, 14}}) {
    const uint32_t types[3] = {ids[0], ids[1], ids[2]};
    test_segments(1024, {256, 40, 64}, types, hopper);
    test_segments(256, {3000, 40, 1064}, types, hopper);
    if (!quick) test_segments(1024, {6000, 1000, 1008}, types, hopper);
    if (!quick) test_segments(4096, {1000, 5000, 1008}, types, hopper);
  }
  for (int cols : {64, 576, 640, 896, 1024, 1088, 2048}) {
    test_norm(*quant_row(8), 200, cols);
    test_norm(*quant_row(2), 9728, cols);
  }
  for (int tokens : hopper ? std::vector<int>{17, 100, 300} : std::vector<int>{}) {
    for (uint32_t id : {8u, 1u, 12u}) test_stack(*quant_row(id), id % 4 + 2, id == 1 ? 256 : 512, 256 * (id / 4) + 64 * (id == 1), tokens);
  }
  printf("linear: %d failures\n", failures);
  if (timing) {
    const auto time = [&](const QuantRow& q, int rows, int cols) { pen::bench::time_shape(q, rows, cols, hopper, few); };
    for (uint32_t id : {12u, 14u, 8u, 1u, 23u, 21u, 16u, 35u, 40u}) {
      time(*quant_row(id), 4096, 4096);
      time(*quant_row(id), 28672, 4096);
      time(*quant_row(id), 4096, 14336);
    }
    time(*quant_row(3), 576, 576);
    time(*quant_row(3), 3072, 576);
    time(*quant_row(6), 9728, 896);
    time(*quant_row(1), 2048, 2048);
    time(*quant_row(1), 16384, 2048);
  }
  return failures != 0;
}
