// Checks and times general attention (cuda/attention/general.h).
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/attention_general.cu cuda/attention/*.cu -o attention_general
//   attention_general [--quick] [--time]
// Each failure prints a line that names the case, the check and the first wrong element. The exit code is then 1.
#include "attention_general_world.cuh"

namespace pen::bench {
namespace {

// Reports the first element whose bits differ.
void same_bits(const GeneralWorld& world, const __half* got, const __half* want, int rows, const std::string& where) {
  const int width = world.out_width(), dim = world.shape.value_dim;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < static_cast<size_t>(rows) * width; ++i) {
    if (bits(got[i]) == bits(want[i])) continue;
    if (wrong++ == 0) first = i;
  }
  const int row = static_cast<int>(first / width), column = static_cast<int>(first % width);
  report(wrong == 0, where + text(": %zu elements differ, first row %d head %d dim %d: %g is not %g", wrong, row, column / dim,
                                  column % dim,
                                  __half2float(got[first]), __half2float(want[first])));
}

void exact(const GeneralWorld& world, int seq, int position, const __half* got, const std::string& where) {
  const int dim = world.shape.value_dim;
  for (int head = 0; head < world.shape.num_heads; ++head) {
    const std::vector<double> want = world.reference(world.seqs[seq], position, head);
    double error = 0.0, power = 0.0;
    int bad = -1;
    for (int d = 0; d < dim; ++d) {
      const double x = __half2float(got[head * dim + d]), e = x - want[d];
      error += e * e, power += want[d] * want[d];
      if (bad < 0 && !(fabs(e) <= 2e-2)) bad = d;
    }
    const double nmse = error / power;
    if (nmse == nmse && power > 1e-6) worst_attention = std::max(worst_attention, nmse);
    const bool ok = within_rounding(error, power, dim) && bad < 0;
    report(ok, where + text(": seq %d position %d head %d: error %.3g, dim %d: %g is not %g", seq, position, head, nmse, std::max(bad, 0),
                            __half2float(got[head * dim + std::max(bad, 0)]), want[std::max(bad, 0)]));
    if (!ok) return;
  }
}

// Compares rows of whole prompts with the reference, and chunks, single rows and batches with whole prompts, bit by bit.
void check_case(const GeneralShape& shape, const std::vector<int>& lengths, uint64_t seed, bool quick) {
  Random random{seed};
  const GeneralWorld world(shape, lengths, random);
  GeneralRunner runner(world);
  const int width = world.out_width(), num_seqs = static_cast<int>(lengths.size());
  const std::string name = text("%s (%d/%d heads of %d, values of %d)", shape.name, shape.num_heads, shape.num_kv_heads, shape.head_dim,
                                shape.value_dim);
  std::vector<std::vector<__half>> rows;
  for (int s = 0; s < num_seqs; ++s) {
    const int length = lengths[s];
    const std::string where = name + text(" whole, length %d", length);
    rows.push_back(runner.run({{s, length, length}}, {}, where));
    for (int position : {0, length / 3, length / 2, length - 1}) {
      exact(world, s, position, rows[s].data() + static_cast<size_t>(position) * width, where);
    }
    GeneralOptions plain;
    plain.workspace = false, plain.overlap = true;
    same_bits(world, runner.run({{s, length, length}}, plain, where).data(), rows[s].data(), length, where + ", not split");
    if (shape.bidirectional) continue;
    for (int begin = 0; begin < length;) {
      const int end = std::min(length, begin + 1 + random.below(quick ? 40 : 300));
      const std::string chunk = name + text(" chunk [%d, %d) of length %d", begin, end, length);
      same_bits(world, runner.run({{s, end, end - begin}}, {}, chunk).data(), rows[s].data() + static_cast<size_t>(begin) * width,
                end - begin, chunk);
      begin = end;
    }
    for (int bound : {0, 5000, 40000}) {
      for (bool workspace : {true, false}) {
        GeneralOptions options;
        options.max_context = bound, options.workspace = workspace;
        const std::string single = name + text(" one row at the end of length %d, bound %d, workspace %d", length, bound, workspace);
        same_bits(world, runner.run({{s, length, 1}}, options, single).data(), rows[s].data() + static_cast<size_t>(length - 1) * width, 1,
                  single);
      }
    }
  }
  for (int round = 0; round < (quick ? 4 : 12); ++round) {
    std::vector<GeneralItem> items;
    for (int i = 0; i < num_seqs + 2; ++i) {
      const int s = random.below(num_seqs), end = shape.bidirectional ? lengths[s] : 1 + random.below(lengths[s]), kind = random.below(4);
      if (kind == 0) items.push_back({-1, 0, 1});
      items.push_back({s, end, shape.bidirectional ? end : kind == 1 || round == 0 ? 1 : 1 + random.below(end)});
    }
    items.push_back({-1, 0, 1});
    GeneralOptions options;
    options.overlap = round % 2 == 1, options.views = round % 4 >= 2;
    const std::string where = name + text(" mixed step %d", round);
    const std::vector<__half> out = runner.run(items, options, where);
    size_t row = 0;
    for (const GeneralItem& item : items) {
      if (item.seq >= 0) {
        same_bits(world, out.data() + row * width, rows[item.seq].data() + static_cast<size_t>(item.context - item.rows) * width, item.rows,
                  where + text(" seq %d rows %d context %d", item.seq, item.rows, item.context));
      }
      row += item.rows;
    }
  }
  if (!world.has_fast()) return;
  // The kernels of attention.h must give the same bits.
  for (int s = 0; s < num_seqs; ++s) {
    const int end = lengths[s];
    GeneralOptions fast;
    fast.fast = true;
    const std::string where = name + text(" against attention.h, context %d", end);
    same_bits(world, runner.run({{s, end, end}}, fast, where).data(), rows[s].data(), end, where);
    same_bits(world, runner.run({{s, end, 1}}, fast, where).data(), rows[s].data() + static_cast<size_t>(end - 1) * width, 1, where);
  }
}

}  // namespace
}  // namespace pen::bench

int main(int argc, char** argv) {
  using namespace pen::bench;
  using pen::Window;
  bool quick = false, timing = false;
  for (int i = 1; i < argc; ++i) quick |= strcmp(argv[i], "--quick") == 0, timing |= strcmp(argv[i], "--time") == 0;
  try {
    // name, heads, K/V heads, head, value, page rows of K and V, page, window, kind, bidirectional, soft cap, ALiBi, sinks, latent
    const GeneralShape shapes[] = {
        {"plain", 6, 2, 64, 64, 64, 64, 32},
        {"plain of 128", 5, 1, 128, 128, 128, 128, 64, 100},
        {"DeepSeek-V3, fewer heads", 40, 1, 576, 512, 576, 576, 64, 0, Window::SLIDING, false, 0, 0, false, true},
        {"latent, one head", 1, 1, 576, 512, 576, 576, 32, 0, Window::SLIDING, false, 0, 0, false, true},
        {"latent, padded", 16, 1, 288, 256, 320, 320, 32, 0, Window::SLIDING, false, 0, 0, false, true},
        {"MiMo-V2", 8, 2, 192, 128, 192, 128, 32, 128, Window::SLIDING, false, 0, 0, true},
        {"gpt-oss", 16, 2, 64, 64, 64, 64, 32, 128, Window::SLIDING, false, 0, 0, true},
        {"Llama 4", 10, 2, 128, 128, 128, 128, 32, 96, Window::CHUNKED},
        {"BLOOM", 6, 6, 64, 64, 64, 64, 32, 0, Window::SLIDING, false, 0, 8.0f},
        {"MPT, soft cap", 12, 12, 80, 80, 80, 80, 32, 0, Window::SLIDING, false, 5.0f, 8.0f},
        {"ModernBERT local", 3, 3, 64, 64, 64, 64, 32, 128, Window::SYMMETRIC, true},
        {"ModernBERT global", 3, 3, 64, 64, 64, 64, 32, 0, Window::SYMMETRIC, true},
        {"JINA", 4, 4, 64, 64, 64, 64, 32, 0, Window::SLIDING, true, 0, 8.0f},
        {"heads of 512", 4, 1, 512, 512, 512, 512, 32, 70},
        {"Gemma 4 global", 16, 2, 512, 512, 512, 512, 32},
        {"heads of 512, no groups", 3, 3, 512, 512, 512, 512, 64},
        {"the longest", 2, 1, 1024, 1024, 1024, 1024, 32},
        {"long values", 3, 1, 72, 1000, 96, 1008, 32, 0, Window::SLIDING, false, 0, 0, true},
        {"odd sizes", 7, 7, 13, 9, 16, 16, 96},
        {"odd group", 33, 3, 100, 36, 104, 48, 32, 65},
    };
    uint64_t seed = 1;
    for (const GeneralShape& shape : shapes) {
      check_case(shape, quick ? std::vector<int>{1, 70} : std::vector<int>{1, 2, 33, 64, 65, 130, 511, 513, 1100}, seed++, quick);
      if (quick) check_case(shape, {530}, seed++, true);
    }
    printf("%d checks, %d failures; worst error %.3g\n", checks, failures, worst_attention);
    if (timing && failures == 0) time_general();
  } catch (const std::exception& e) {
    printf("FAIL %s\n", e.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
