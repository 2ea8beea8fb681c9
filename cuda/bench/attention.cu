// Checks and times cuda/attention: decode and prefill attention over pages, and the kernels that finish Q, K and V.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/attention.cu cuda/attention/*.cu -o attention
//   attention [--quick] [--time]
//   attention --many | --few | --prompts  (times many or few sequences or prompts, without checks)
// Each failure prints a line that names the case, the check and the first wrong element. The exit code is then 1.
#include "../device/kernel.cuh"
#include "attention_harness.cuh"
#include "attention_qkv.cuh"
#include "attention_time.cuh"

namespace pen::bench {
namespace {

// Sequences in shuffled pages. Page slots beyond a sequence's length are NaN.
struct World {
  Shape shape;
  float scale;
  int num_blocks = 0;
  std::vector<Sequence> seqs;
  std::vector<__half> k, v;  // pages
  std::vector<float> sinks;  // [num_heads]

  World(const Shape& shape, const std::vector<int>& lengths, Random& random)
      : shape(shape), scale(1.0f / sqrtf(static_cast<float>(shape.head_dim))) {
    for (int length : lengths) num_blocks += ceil_div(length, shape.block_size);
    num_blocks += 3;  // blocks that no sequence uses
    const std::vector<uint32_t> order = shuffled(num_blocks, random);
    k.assign(static_cast<size_t>(num_blocks) * shape.num_kv_heads * shape.block_size * shape.head_dim, poison_half());
    v = k;
    size_t used = 0;
    for (int length : lengths) {
      Sequence seq(length, shape.block_size, width(), order, used, random);
      for (int pos = 0; pos < length; ++pos) {
        for (int h = 0; h < shape.num_kv_heads; ++h) {
          for (int d = 0; d < shape.head_dim; ++d) {
            k[at(seq, pos, h) + d] = __float2half(random.normal());
            v[at(seq, pos, h) + d] = __float2half(random.normal() + 0.25f);
          }
        }
      }
      seqs.push_back(std::move(seq));
    }
    // One sink that takes nearly everything, and one that takes nothing.
    for (int h = 0; h < shape.num_heads; ++h) sinks.push_back(h == 1 ? 12.0f : h == 2 ? -INFINITY : 2.0f * random.normal());
  }
  size_t at(const Sequence& seq, int pos, int kv_head) const {
    const size_t block = seq.blocks[pos / shape.block_size];
    return ((block * shape.num_kv_heads + kv_head) * shape.block_size + pos % shape.block_size) * shape.head_dim;
  }
  int width() const { return shape.num_heads * shape.head_dim; }

  // The expected output of a head of the row at `pos`.
  std::vector<double> reference(const Sequence& seq, int pos, int head) const {
    const int kv_head = head / (shape.num_heads / shape.num_kv_heads), dim = shape.head_dim;
    const int window = static_cast<int>(shape.window);
    const int begin = window == 0 ? 0 : shape.chunked ? pos / window * window : std::max(pos + 1 - window, 0);
    const __half* q = seq.q.data() + static_cast<size_t>(pos) * width() + head * dim;
    std::vector<double> scores(pos + 1 - begin), out(dim, 0.0);
    double top = shape.sinks ? sinks[head] : -INFINITY;
    for (int key = begin; key <= pos; ++key) {
      const __half* row = k.data() + at(seq, key, kv_head);
      double s = 0.0;
      for (int d = 0; d < dim; ++d) s += static_cast<double>(__half2float(q[d])) * __half2float(row[d]);
      s *= scale;
      if (shape.soft_cap > 0) s = shape.soft_cap * tanh(s / shape.soft_cap);
      scores[key - begin] = s;
      top = std::max(top, s);
    }
    double sum = shape.sinks ? exp(sinks[head] - top) : 0.0;
    for (int key = begin; key <= pos; ++key) {
      const double p = exp(scores[key - begin] - top);
      const __half* row = v.data() + at(seq, key, kv_head);
      sum += p;
      for (int d = 0; d < dim; ++d) out[d] += p * __half2float(row[d]);
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

// Rows [context - num_rows, context) of a sequence (seq < 0: padding).
struct Item {
  int seq, context, num_rows;
};
struct StepOptions {
  bool decode = true, prefill = true, overlap = false;
  bool views = false;  // one view per kind of sequence, as in the engine's mixed steps
  int max_context = 0;  // 0: the true maximum
  bool workspace = true;
  int spare_tokens = 3;
};

struct Runner {
  const World& world;
  Buffer<__half> k, v;
  Buffer<float> sinks;
  explicit Runner(const World& world) : world(world), k(world.k), v(world.v), sinks(world.sinks) {}

  // Runs a step and returns its output rows in the items' order: [rows, width].
  std::vector<__half> run(const std::vector<Item>& items, const StepOptions& options, const std::string& where) {
    const Shape& shape = world.shape;
    const int width = world.width(), stride = static_cast<int>(round_up(width, 64)) + 64;
    std::vector<uint32_t> cu{0}, contexts, tables;
    std::vector<__half> q;
    int max_query = 1, max_context = 1, max_blocks = 1;
    for (const Item& item : items) max_blocks = std::max(max_blocks, ceil_div(item.context, shape.block_size));
    max_blocks += 2;
    for (const Item& item : items) {
      contexts.push_back(item.seq < 0 ? 0 : item.context);
      std::vector<uint32_t> table(max_blocks, 0x7fffffffu);  // entries that must not be looked up
      if (item.seq >= 0) {
        const Sequence& seq = world.seqs[item.seq];
        for (int i = 0; i < ceil_div(item.context, shape.block_size); ++i) table[i] = seq.blocks[i];
        const size_t begin = static_cast<size_t>(item.context - item.num_rows) * width;
        q.insert(q.end(), seq.q.begin() + begin, seq.q.begin() + begin + static_cast<size_t>(item.num_rows) * width);
        max_query = std::max(max_query, item.num_rows);
        max_context = std::max(max_context, item.context);
      }
      cu.push_back(cu.back() + (item.seq < 0 ? 0 : item.num_rows));
      tables.insert(tables.end(), table.begin(), table.end());
    }
    const int rows = cu.back(), num_tokens = rows + options.spare_tokens, num_seqs = static_cast<int>(items.size());
    q.resize(static_cast<size_t>(num_tokens) * width, poison_half());
    if (options.max_context != 0) max_context = std::max(max_context, options.max_context);
    const size_t bytes =
        options.workspace ? attention_workspace(gpu(), num_seqs, shape.num_heads, shape.num_kv_heads, shape.head_dim, max_context) : 0;

    Buffer<__half> d_q(q), out(static_cast<size_t>(num_tokens) * stride);
    Buffer<uint32_t> d_cu(cu), d_contexts(contexts), d_tables(tables);
    Buffer<float> workspace(bytes / sizeof(float));
    const StepView step{nullptr,    nullptr,  d_cu.get(), d_contexts.get(), d_tables.get(),
                        num_tokens, num_seqs, max_blocks, max_query,        max_context};
    const KvView kv{k.get(), v.get(), world.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim};
    const Attention args{d_q.get(),    kv,
                         out.get(),    stride,
                         shape.num_heads, world.scale,
                         shape.window, workspace.get(),
                         bytes,        shape.soft_cap,
                         shape.sinks ? sinks.get() : nullptr, shape.chunked};
    const Launch launch{gpu(), test_stream(), options.overlap};
    std::vector<int> num_rows;
    for (const Item& item : items) num_rows.push_back(item.seq < 0 ? 0 : item.num_rows);
    const Views views(step, num_rows, contexts);
    if (options.decode) attention_decode(launch, args, options.views ? views.single : step);
    if (options.prefill) attention_prefill(launch, args, options.views ? views.many : step);
    check(cudaDeviceSynchronize(), where.c_str());

    report(out.guards_intact() && workspace.guards_intact(), where + ": wrote outside of its memory");
    const std::vector<__half> all = out.read();
    std::vector<__half> result(static_cast<size_t>(rows) * width);
    bool stray = false;
    for (int t = 0; t < num_tokens; ++t) {
      for (int i = 0; i < stride; ++i) {
        const __half x = all[static_cast<size_t>(t) * stride + i];
        if (t < rows && i < width) {
          result[static_cast<size_t>(t) * width + i] = x;
        } else if (!poisoned(x) && !stray) {
          stray = true;
          report(false, where + text(": wrote token %d column %d (%d rows of %d)", t, i, rows, width));
        }
      }
    }
    return result;
  }
};

// Reports the first element whose bits differ.
void same_bits(const World& world, const __half* got, const __half* want, int rows, const std::string& where) {
  const int width = world.width(), dim = world.shape.head_dim;
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < static_cast<size_t>(rows) * width; ++i) {
    if (bits(got[i]) == bits(want[i])) continue;
    if (wrong++ == 0) first = i;
  }
  const int row = static_cast<int>(first / width), column = static_cast<int>(first % width);
  std::string what;
  if (wrong != 0) {
    what = text(": %zu of %zu elements differ, first row %d head %d dim %d: %g (%04x) is not %g (%04x)", wrong,
                static_cast<size_t>(rows) * width, row, column / dim, column % dim, __half2float(got[first]), bits(got[first]),
                __half2float(want[first]), bits(want[first]));
  }
  report(wrong == 0, where + what);
}

// Compares rows of a sequence with the reference in double. got[i] is the row at positions[i].
void exact(const World& world, int seq, const std::vector<int>& positions, const std::vector<const __half*>& got,
           const std::string& where) {
  const int dim = world.shape.head_dim;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (int head = 0; head < world.shape.num_heads; ++head) {
      const std::vector<double> want = world.reference(world.seqs[seq], positions[i], head);
      double error = 0.0, power = 0.0;
      int bad = -1;
      for (int d = 0; d < dim; ++d) {
        const double x = __half2float(got[i][head * dim + d]), e = x - want[d];
        error += e * e;
        power += want[d] * want[d];
        if (bad < 0 && !(fabs(e) <= 2e-2)) bad = d;
      }
      const double nmse = error / power;
      if (nmse == nmse && power > 1e-6) worst_attention = std::max(worst_attention, nmse);
      const bool ok = within_rounding(error, power, dim) && bad < 0;
      report(ok, where + text(": seq %d (length %d) position %d head %d: error %.3g, dim %d: %g is not %g", seq, world.seqs[seq].length,
                              positions[i], head, nmse, std::max(bad, 0), __half2float(got[i][head * dim + std::max(bad, 0)]),
                              want[std::max(bad, 0)]));
      if (!ok) return;
    }
  }
}

// Computes every row of every sequence by the decode kernel, many at a time: [length, width] per sequence.
std::vector<std::vector<__half>> all_by_decode(Runner& runner, const std::string& where) {
  const World& world = runner.world;
  std::vector<std::vector<__half>> rows(world.seqs.size());
  for (size_t s = 0; s < world.seqs.size(); ++s) {
    for (int begin = 0; begin < world.seqs[s].length; begin += 256) {
      std::vector<Item> items;
      for (int pos = begin; pos < std::min(begin + 256, world.seqs[s].length); ++pos) items.push_back({static_cast<int>(s), pos + 1, 1});
      const std::vector<__half> out = runner.run(items, {}, where + text(" seq %zu rows from %d", s, begin));
      rows[s].insert(rows[s].end(), out.begin(), out.end());
    }
  }
  return rows;
}

void check_decode(Runner& runner, const std::vector<std::vector<__half>>& rows, const std::string& name) {
  const World& world = runner.world;
  const int width = world.width(), num_seqs = static_cast<int>(world.seqs.size());
  std::vector<Item> batch;
  for (int s = 0; s < num_seqs; ++s) {
    const Sequence& seq = world.seqs[s];
    batch.push_back({s, seq.length, 1});
    const __half* want = rows[s].data() + static_cast<size_t>(seq.length - 1) * width;
    exact(world, s, {seq.length - 1}, {want}, name + " decode against the reference");
    for (int bound : {0, 2048, 16384}) {
      for (bool workspace : {true, false}) {
        StepOptions options;
        options.max_context = bound;
        options.workspace = workspace;
        options.prefill = false;
        const std::string where = name + text(" decode alone, length %d bound %d workspace %d", seq.length, bound, workspace);
        const std::vector<__half> out = runner.run({{s, seq.length, 1}}, options, where);
        same_bits(world, out.data(), want, 1, where);
      }
    }
  }
  batch.insert(batch.begin() + num_seqs / 2, {-1, 0, 0});
  batch.push_back({-1, 0, 0});
  for (bool overlap : {false, true}) {
    StepOptions options;
    options.overlap = overlap;
    const std::string where = name + text(" decode batch overlap %d", overlap);
    const std::vector<__half> out = runner.run(batch, options, where);
    size_t row = 0;
    for (const Item& item : batch) {
      if (item.seq < 0) continue;
      same_bits(world, out.data() + row++ * width, rows[item.seq].data() + static_cast<size_t>(item.context - 1) * width, 1,
                where + text(" seq %d context %d", item.seq, item.context));
    }
  }
}

// Runs whole prompts and chunks. Each row must have the bits that the decode kernel gave it.
void check_prefill(Runner& runner, const std::vector<std::vector<__half>>& rows, Random& random, const std::string& name) {
  const World& world = runner.world;
  const int width = world.width(), num_seqs = static_cast<int>(world.seqs.size());
  for (int s = 0; s < num_seqs; ++s) {
    const int length = world.seqs[s].length;
    const std::string where = name + text(" prefill whole, length %d", length);
    const std::vector<__half> out = runner.run({{s, length, length}}, {}, where);
    same_bits(world, out.data(), rows[s].data(), length, where);
    std::vector<int> positions{0, length - 1};
    for (int i = 0; i < 3; ++i) positions.push_back(random.below(length));
    std::vector<const __half*> got;
    for (int pos : positions) got.push_back(out.data() + static_cast<size_t>(pos) * width);
    exact(world, s, positions, got, name + " prefill against the reference");
    for (int most : {513, 96, 7}) {
      if (most == 7 && length > 260) continue;
      for (int begin = 0; begin < length;) {
        const int end = std::min(length, begin + 1 + random.below(most));
        const std::string chunk = name + text(" prefill chunk [%d, %d) of length %d", begin, end, length);
        const std::vector<__half> part = runner.run({{s, end, end - begin}}, {}, chunk);
        same_bits(world, part.data(), rows[s].data() + static_cast<size_t>(begin) * width, end - begin, chunk);
        begin = end;
      }
    }
  }
}

// Runs mixed steps, as one view and as one per kind, also among many single rows. Each row must have the bits that the decode kernel gave
// it.
void check_mixed(Runner& runner, const std::vector<std::vector<__half>>& rows, Random& random, const std::string& name) {
  const World& world = runner.world;
  const int width = world.width(), num_seqs = static_cast<int>(world.seqs.size());
  constexpr int ROUNDS = 6, CROWD = 140;
  for (int round = 0; round < ROUNDS; ++round) {
    const bool crowd = round >= 4;
    std::vector<Item> items;
    for (int i = 0; i < (crowd ? CROWD : num_seqs + 2); ++i) {
      const int s = random.below(num_seqs), length = world.seqs[s].length, end = 1 + random.below(length);
      const int kind = crowd ? i % 70 == 30 ? 2 : 1 : random.below(4);
      if (kind == 0) items.push_back({-1, 0, 0});
      if (kind == 1) items.push_back({s, end, 1});
      if (kind >= 2) items.push_back({s, end, 1 + random.below(end)});
    }
    StepOptions options;
    options.overlap = round % 2 == 1;
    options.max_context = round < 2 || crowd ? 0 : 4096;
    for (bool views : {false, true}) {
      options.views = views;
      const std::string where = name + text(" mixed step %d, views %d", round, views);
      const std::vector<__half> out = runner.run(items, options, where);
      size_t row = 0;
      for (const Item& item : items) {
        if (item.seq < 0) continue;
        same_bits(world, out.data() + row * width, rows[item.seq].data() + static_cast<size_t>(item.context - item.num_rows) * width,
                  item.num_rows, where + text(" seq %d rows %d context %d", item.seq, item.num_rows, item.context));
        row += item.num_rows;
      }
    }
  }
}

void check_attention(const Shape& shape, const std::vector<int>& lengths, uint64_t seed) {
  Random random{seed};
  const World world(shape, lengths, random);
  Runner runner(world);
  const std::string name = text("%s (%d/%d heads of %d, pages of %d, window %u, soft cap %g)", shape.name, shape.num_heads,
                                shape.num_kv_heads,
                                shape.head_dim, shape.block_size, shape.window, shape.soft_cap);
  const auto rows = all_by_decode(runner, name + " decode of every row");
  check_decode(runner, rows, name);
  check_prefill(runner, rows, random, name);
  check_mixed(runner, rows, random, name);
}

// Writes what a product would write, but slowly: a kernel that does not wait for it reads stale data.
__global__ void write_late(float* to, const float* from, size_t count) {
  let_next_start();
  const long long start = clock64();
  while (clock64() - start < 50000) {
  }
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) to[i] = from[i];
}

// Checks decode that finishes Q, K and V itself: the output and the pages must have the same bits as if a separate kernel finished them.
// The step's products arrive late and are NaN before.
void check_fresh(const Shape& shape, const std::vector<int>& lengths, const char* what) {
  TimedStep t(shape, lengths, 1, 1);
  const auto keys = t.k.read(), values = t.v.read();
  const Buffer<float> given(t.qkv.read());
  for (int kind = 0; kind < 3; ++kind) {
    QkvFinish finish = t.finish(0);
    if (kind == 1) finish.q_bias = finish.k_bias = finish.v_bias = given.get(), finish.rope_halves = false, finish.rope_dim /= 2;
    if (kind == 2) finish.q_norm = finish.k_norm = given.get();
    const auto run = [&](bool within) {
      t.k.write(keys), t.v.write(values), t.qkv.poison(), t.q.poison(), t.out.poison();
      const Launch launch{gpu(), test_stream(), within};
      launch(write_late, 32, 256, 0, t.qkv.get(), given.get(), t.qkv.n);
      if (!within) qkv_finish(launch, finish, t.step());
      attention_decode(launch, t.attention(0), t.step(), within ? &finish : nullptr);
      check(cudaDeviceSynchronize(), what);
      return std::vector<std::vector<__half>>{t.out.read(), t.k.read(), t.v.read()};
    };
    const auto first = run(false), within = run(true);
    const char* const names[] = {"output", "K", "V"};
    for (int i = 0; i < 3; ++i) {
      const bool same = memcmp(first[i].data(), within[i].data(), first[i].size() * sizeof(__half)) == 0;
      report(same, text("%s, heads of %d, %s, finished on the way (%d): %s differs", shape.name, shape.head_dim, what, kind, names[i]));
    }
  }
}

void check_fresh_all() {
  Random random{11};
  std::vector<int> many, with_long;
  for (int i = 0; i < 160; ++i) many.push_back(1 + random.below(300));
  for (int i = 0; i < 60; ++i) with_long.push_back(i == 20 ? 9000 : 1 + random.below(100));
  const Shape local{"local", 32, 8, 64, 32, 100}, wide{"wide", 40, 2, 64, 32, 0}, odd{"odd size", 14, 2, 120, 32, 0};
  for (const Shape& shape : {SMOL, GEMMA, GEMMA_4B, LLAMA8, local, wide, odd}) {
    check_fresh(shape, many, "many");
    check_fresh(shape, {1, 65, 700, 1500}, "few");
    check_fresh(shape, {30, 1100}, "two");
    check_fresh(shape, {1537}, "one");
  }
  for (const Shape& shape : {SMOL, LLAMA1}) check_fresh(shape, with_long, "one long");
  check_fresh(LLAMA8, std::vector<int>(256, 100), "alike");
}

}  // namespace
}  // namespace pen::bench

int main(int argc, char** argv) {
  using namespace pen::bench;
  bool quick = false, timing = false, only_many = false, only_few = false, only_prompts = false;
  for (int i = 1; i < argc; ++i) {
    quick |= strcmp(argv[i], "--quick") == 0;
    timing |= strcmp(argv[i], "--time") == 0;
    only_many |= strcmp(argv[i], "--many") == 0;
    only_few |= strcmp(argv[i], "--few") == 0;
    only_prompts |= strcmp(argv[i], "--prompts") == 0;
  }
  try {
    if (only_many) return time_many(timed_launch()), 0;
    if (only_few) return time_few(timed_launch()), 0;
    if (only_prompts) return time_prompts(timed_launch()), 0;
    std::vector<int> some{1, 2, 31, 33, 63, 64, 65, 127, 129, 257, 513, 600}, many{5, 64, 512, 640, 1025, 1500}, longest{511, 9000};
    const std::vector<int> alone{1500};
    if (quick) some = {1, 63, 65, 130}, many = {64, 200}, longest = {600};
    const Shape shapes[] = {
        {"SmolLM2-135M", 9, 3, 64, 32, 0},      {"Qwen2.5-0.5B", 14, 2, 64, 64, 0},     {"Gemma-3-270m local", 4, 1, 256, 32, 512},
        {"Gemma-3-270m global", 4, 1, 256, 64, 0}, {"Llama-3.1-8B", 32, 8, 128, 32, 0}, {"Llama-3.2-1B", 32, 8, 64, 64, 0},
        {"one-to-one", 5, 5, 80, 32, 0},        {"small heads", 14, 2, 40, 96, 0},      {"tiny heads", 3, 1, 8, 32, 17},
        {"wide group", 48, 2, 96, 32, 0},       {"odd size", 6, 2, 120, 64, 64},        {"large odd", 2, 1, 200, 32, 65},
        {"window of one", 4, 2, 64, 32, 1},     {"Gemma-2-2B local", 8, 4, 256, 32, 512, 50.0f},
        {"a low soft cap", 6, 3, 64, 32, 0, 0.7f},
        {"Gemma-3-4B local", 8, 4, 256, 32, 1024},  {"Qwen3-Next", 16, 2, 256, 32, 0},
        {"gpt-oss", 64, 8, 64, 32, 0, 0.0f, true},
        {"gpt-oss local", 16, 2, 64, 32, 128, 0.0f, true},
        {"sinks, odd size", 20, 1, 56, 64, 0, 0.0f, true},
        {"Llama 4 local", 10, 2, 128, 32, 200, 0.0f, false, true},
        {"both", 6, 2, 120, 64, 64, 5.0f, true, true},
    };
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
      check_attention(shape, some, seed++);
      if (shape.head_dim * shape.num_heads <= 4096) check_attention(shape, many, seed++);
      if (!quick && shape.head_dim * shape.num_heads <= 4096) check_attention(shape, alone, seed++);
      if (shape.head_dim * shape.num_heads <= 512) check_attention(shape, longest, seed++);
    }
    check_qkv_all(quick);
    check_fresh_all();
    printf("%d checks, %d failures; worst error: attention %.3g, qkv %.3g\n", checks, failures, worst_attention, worst_qkv);
    if (timing && failures == 0) time_all();
  } catch (const std::exception& e) {
    printf("FAIL %s\n", e.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
