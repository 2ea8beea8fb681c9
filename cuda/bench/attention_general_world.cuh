// Shapes, sequences, the reference and the timings of general attention.
#pragma once

#include "../attention/general.h"
#include "attention_harness.cuh"
#include "attention_time.cuh"

namespace pen::bench {

struct GeneralShape {
  const char* name;
  int num_heads, num_kv_heads, head_dim, value_dim, k_dim, v_dim, block_size;
  uint32_t window = 0;
  Window kind = Window::SLIDING;
  bool bidirectional = false;
  float soft_cap = 0.0f, alibi = 0.0f;
  bool sinks = false;
  bool latent = false;  // values are the keys' first elements
};

// Sequences in shuffled pages. Page slots beyond a sequence's length are NaN. Elements beyond a head are zero.
struct GeneralWorld {
  GeneralShape shape;
  float scale;
  int num_blocks = 3;  // blocks that no sequence uses
  std::vector<Sequence> seqs;
  std::vector<__half> k, v;
  std::vector<float> sinks;

  GeneralWorld(const GeneralShape& shape, const std::vector<int>& lengths, Random& random)
      : shape(shape), scale(1.0f / sqrtf(static_cast<float>(shape.head_dim))) {
    for (int length : lengths) num_blocks += ceil_div(length, shape.block_size);
    const std::vector<uint32_t> order = shuffled(num_blocks, random);
    const size_t slots = static_cast<size_t>(num_blocks) * shape.num_kv_heads * shape.block_size;
    k.assign(slots * shape.k_dim, poison_half());
    v.assign(slots * shape.v_dim, poison_half());
    size_t used = 0;
    for (int length : lengths) {
      Sequence seq(length, shape.block_size, q_width(), order, used, random);
      for (int position = 0; position < length; ++position) {
        for (int h = 0; h < shape.num_kv_heads; ++h) {
          const size_t at = slot(seq, position, h);
          for (int d = 0; d < shape.k_dim; ++d) k[at * shape.k_dim + d] = __float2half(d < shape.head_dim ? random.normal() : 0.0f);
          for (int d = 0; d < shape.v_dim; ++d) {
            v[at * shape.v_dim + d] = __float2half(d < shape.value_dim ? random.normal() + 0.25f : 0.0f);
          }
        }
      }
      seqs.push_back(std::move(seq));
    }
    if (shape.latent) v = k;
    for (int h = 0; h < shape.num_heads; ++h) sinks.push_back(h == 1 ? 12.0f : 2.0f * random.normal());
  }
  int q_width() const { return shape.num_heads * shape.head_dim; }
  int out_width() const { return shape.num_heads * shape.value_dim; }
  size_t slot(const Sequence& seq, int position, int kv_head) const {
    const size_t block = seq.blocks[position / shape.block_size];
    return (block * shape.num_kv_heads + kv_head) * shape.block_size + position % shape.block_size;
  }
  // Whether the kernels of attention.h support the same case.
  bool has_fast() const {
    if (shape.head_dim != shape.value_dim || shape.head_dim != shape.k_dim || shape.head_dim > 256 || shape.head_dim % 8 != 0) return false;
    if (shape.bidirectional || shape.alibi != 0 || shape.kind == Window::SYMMETRIC) return false;
    return (!shape.sinks && shape.kind == Window::SLIDING) || attention_extras(shape.head_dim);
  }

  bool sees(int position, int key, int length) const {
    const int window = static_cast<int>(shape.window);
    if (key > position && !shape.bidirectional) return false;
    if (key >= length) return false;
    if (window == 0) return true;
    if (shape.kind == Window::CHUNKED) return key >= position / window * window;
    if (shape.kind == Window::SYMMETRIC) return abs(position - key) <= window / 2;
    return key > position - window;
  }
  double slope(int head) const {
    if (shape.alibi == 0) return 0.0;
    int whole = 1;
    while (2 * whole <= shape.num_heads) whole *= 2;
    if (head < whole) return pow(2.0, -shape.alibi / whole * (head + 1));
    return pow(2.0, -shape.alibi / 2.0 / whole * (2 * (head - whole) + 1));
  }
  // The expected output of a head of the row at `position`.
  std::vector<double> reference(const Sequence& seq, int position, int head) const {
    const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const __half* q = seq.q.data() + static_cast<size_t>(position) * q_width() + head * shape.head_dim;
    std::vector<double> scores(seq.length, -INFINITY), out(shape.value_dim, 0.0);
    double top = shape.sinks ? sinks[head] : -INFINITY, sum = 0.0;
    for (int key = 0; key < seq.length; ++key) {
      if (!sees(position, key, seq.length)) continue;
      const __half* row = k.data() + slot(seq, key, kv_head) * shape.k_dim;
      double s = 0.0;
      for (int d = 0; d < shape.head_dim; ++d) s += static_cast<double>(__half2float(q[d])) * __half2float(row[d]);
      s *= scale;
      if (shape.soft_cap > 0) s = shape.soft_cap * tanh(s / shape.soft_cap);
      s -= slope(head) * abs(position - key);
      scores[key] = s;
      top = std::max(top, s);
    }
    if (shape.sinks) sum = exp(sinks[head] - top);
    for (int key = 0; key < seq.length; ++key) {
      const double p = exp(scores[key] - top);
      if (p == 0.0) continue;
      const __half* row = v.data() + slot(seq, key, kv_head) * shape.v_dim;
      sum += p;
      for (int d = 0; d < shape.value_dim; ++d) out[d] += p * __half2float(row[d]);
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

// Rows [context - rows, context) of a sequence (seq < 0: padding).
struct GeneralItem {
  int seq, context, rows;
};
struct GeneralOptions {
  bool overlap = false, workspace = true, fast = false;  // fast: use the kernels of attention.h
  bool views = false;   // one view of the sequences with one row and one of the others, as in the engine's mixed steps
  int max_context = 0;  // 0: the true maximum
};

struct GeneralRunner {
  const GeneralWorld& world;
  Buffer<__half> k, v;
  Buffer<float> sinks;
  explicit GeneralRunner(const GeneralWorld& world) : world(world), k(world.k), v(world.v), sinks(world.sinks) {}

  // Runs a step and returns its output rows in the items' order.
  std::vector<__half> run(const std::vector<GeneralItem>& items, const GeneralOptions& options, const std::string& where) {
    const GeneralShape& s = world.shape;
    const int q_width = world.q_width(), width = world.out_width();
    // Latent attention with no gap between rows has separate kernels.
    const int ld_q = options.fast || (s.latent && options.workspace) ? q_width : q_width + 8;
    const int ld_out = width + 16 + width % 2;
    std::vector<uint32_t> cu{0}, contexts, tables;
    std::vector<__half> q;
    int max_query = 1, max_context = 1, max_blocks = 2;
    for (const GeneralItem& item : items) max_blocks = std::max(max_blocks, ceil_div(item.context, s.block_size) + 2);
    for (const GeneralItem& item : items) {
      contexts.push_back(item.seq < 0 ? 0 : item.context);
      cu.push_back(cu.back() + item.rows);
      std::vector<uint32_t> table(max_blocks, 0x7fffffffu);  // entries that must not be looked up
      for (int row = 0; row < item.rows; ++row) {
        if (item.seq >= 0) {
          const auto begin = world.seqs[item.seq].q.begin() + static_cast<size_t>(item.context - item.rows + row) * q_width;
          q.insert(q.end(), begin, begin + q_width);
        }
        q.resize(cu[cu.size() - 2] * static_cast<size_t>(ld_q) + static_cast<size_t>(row + 1) * ld_q, poison_half());
      }
      if (item.seq >= 0) {
        for (int i = 0; i < ceil_div(item.context, s.block_size); ++i) table[i] = world.seqs[item.seq].blocks[i];
      }
      max_query = std::max(max_query, item.rows), max_context = std::max(max_context, item.context);
      tables.insert(tables.end(), table.begin(), table.end());
    }
    max_context = std::max(max_context, options.max_context);
    const int rows = cu.back(), num_seqs = static_cast<int>(items.size());
    size_t bytes = !options.workspace ? 0
                   : options.fast     ? attention_workspace(gpu(), num_seqs, s.num_heads, s.num_kv_heads, s.head_dim, max_context)
                                      : attention_general_workspace(gpu(), rows, s.num_heads, s.num_kv_heads, s.value_dim, max_context);
    Buffer<__half> d_q(q), out(static_cast<size_t>(rows) * ld_out);
    Buffer<uint32_t> d_cu(cu), d_contexts(contexts), d_tables(tables);
    Buffer<float> workspace(bytes / sizeof(float));
    const StepView step{nullptr, nullptr, d_cu.get(), d_contexts.get(), d_tables.get(), rows, num_seqs, max_blocks, max_query, max_context};
    const Launch launch{gpu(), test_stream(), options.overlap};
    std::vector<int> num_rows;
    for (const GeneralItem& item : items) num_rows.push_back(item.seq < 0 ? 0 : item.rows);
    const Views views(step, num_rows, contexts);
    if (options.fast) {
      Attention args{d_q.get(), {k.get(), v.get(), world.num_blocks, s.block_size, s.num_kv_heads, s.head_dim}, out.get(), ld_out,
                     s.num_heads, world.scale, s.window, workspace.get(), bytes, s.soft_cap};
      args.sinks = s.sinks ? sinks.get() : nullptr, args.chunked = s.kind == Window::CHUNKED;
      attention_decode(launch, args, step);
      attention_prefill(launch, args, step);
    } else {
      const __half* const values = s.latent ? k.get() : v.get();
      GeneralAttention args{d_q.get(), ld_q,    {k.get(), values, world.num_blocks, s.block_size, s.num_kv_heads, s.k_dim, s.v_dim},
                            out.get(), ld_out,  s.num_heads, s.head_dim, s.value_dim, world.scale, s.window, s.kind, s.bidirectional,
                            RunSight::CAUSAL, s.soft_cap, s.alibi, s.sinks ? sinks.get() : nullptr, workspace.get(), bytes};
      attention_general(launch, args, options.views ? views.single : step);
      if (options.views) attention_general(launch, args, views.many);
    }
    check(cudaDeviceSynchronize(), where.c_str());
    report(out.guards_intact() && workspace.guards_intact(), where + ": wrote outside of its memory");
    const std::vector<__half> all = out.read();
    std::vector<__half> result(static_cast<size_t>(rows) * width);
    bool stray = false;
    for (int item = 0; item < num_seqs; ++item) {
      for (uint32_t t = cu[item]; t < cu[item + 1]; ++t) {
        for (int i = 0; i < ld_out; ++i) {
          const __half x = all[static_cast<size_t>(t) * ld_out + i];
          if (i < width) result[static_cast<size_t>(t) * width + i] = x;
          stray |= (items[item].seq < 0 || i >= width) && !poisoned(x);
        }
      }
    }
    report(!stray, where + ": wrote past a row, or a padding row");
    return result;
  }
};

// Microseconds for a step of equal sequences. Each call uses another layer's pages.
inline void time_case(const Launch& launch, const GeneralShape& s, int num_seqs, int context, int rows) {
  const int max_blocks = ceil_div(context, s.block_size), tokens = num_seqs * rows;
  const size_t slots = static_cast<size_t>(num_seqs) * max_blocks * s.block_size * s.num_kv_heads;
  const size_t k_layer = slots * s.k_dim, v_layer = s.latent ? 0 : slots * s.v_dim;
  const int layers = std::max(2, std::min(32, static_cast<int>(256e6 / (2.0 * (k_layer + v_layer))) + 1));
  const size_t bytes = attention_general_workspace(gpu(), tokens, s.num_heads, s.num_kv_heads, s.value_dim, context);
  Buffer<__half> k(k_layer * layers), v(v_layer * layers), q(static_cast<size_t>(tokens) * s.num_heads * s.head_dim);
  Buffer<__half> out(static_cast<size_t>(tokens) * s.num_heads * s.value_dim);
  Buffer<float> workspace(bytes / sizeof(float));
  check(cudaMemset(k.get(), 0x2c, k.n * 2), "fill");  // 0.065
  check(cudaMemset(v.get(), 0x2c, v.n * 2), "fill");
  check(cudaMemset(q.get(), 0x2c, q.n * 2), "fill");
  std::vector<uint32_t> starts, tables(static_cast<size_t>(num_seqs) * max_blocks);
  for (int i = 0; i <= num_seqs; ++i) starts.push_back(i * rows);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<uint32_t>(i);
  Buffer<uint32_t> cu(starts), contexts(std::vector<uint32_t>(num_seqs, context)), d_tables(tables);
  const StepView step{nullptr, nullptr, cu.get(), contexts.get(), d_tables.get(), tokens, num_seqs, max_blocks, rows, context};
  const double us = time_chain(rows == 1 ? 16 : 4, [&](int i) {
    const __half* keys = k.get() + i % layers * k_layer;
    const __half* values = s.latent ? keys : v.get() + i % layers * v_layer;
    const GeneralKv kv{keys, values, num_seqs * max_blocks, s.block_size, s.num_kv_heads, s.k_dim, s.v_dim};
    GeneralAttention args{q.get(), s.num_heads * s.head_dim, kv, out.get(),
                          s.num_heads * s.value_dim, s.num_heads, s.head_dim, s.value_dim, 0.1f, s.window, s.kind, s.bidirectional,
                          RunSight::CAUSAL, s.soft_cap, s.alibi, nullptr, workspace.get(), bytes};
    attention_general(launch, args, step);
  });
  const double pairs = rows == 1 ? context : s.bidirectional ? 1.0 * rows * context : rows * (context - rows / 2.0);
  printf("%-22s %6d %8d %6d %12.2f %10.0f %10.1f\n", s.name, num_seqs, context, rows, us, 2.0 * (k_layer + v_layer) / us * 1e-3,
         2.0 * num_seqs * pairs * s.num_heads * (s.head_dim + s.value_dim) / us * 1e-6);
}

inline void time_general() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  const Launch launch{gpu(), test_stream(), device.major >= 9};
  const GeneralShape v3{"DeepSeek-V3", 128, 1, 576, 512, 576, 576, 32, 0, Window::SLIDING, false, 0, 0, false, true},
      lite{"DeepSeek-V2-Lite", 16, 1, 576, 512, 576, 576, 32, 0, Window::SLIDING, false, 0, 0, false, true},
      bloom{"BLOOM-7B", 32, 32, 128, 128, 128, 128, 32, 0, Window::SLIDING, false, 0, 8.0f},
      wide{"heads of 512", 8, 2, 512, 512, 512, 512, 32},
      bert{"ModernBERT", 12, 12, 64, 64, 64, 64, 32, 0, Window::SYMMETRIC, true};
  printf("\n%s\n%-22s %6s %8s %6s %12s %10s %10s\n", device.name, "shape", "batch", "context", "rows", "us", "GB/s", "TFLOP/s");
  for (const GeneralShape& s : {v3, lite, bloom, wide}) {
    for (const auto& [batch, context] : std::vector<std::pair<int, int>>{
             {1, 512}, {1, 8192}, {1, 32768}, {8, 512}, {8, 2048}, {32, 4096}, {128, 1024}}) {
      time_case(launch, s, batch, context, 1);
    }
    time_case(launch, s, 1, 2048, 2048);
    time_case(launch, s, 1, 8192, 2048);
  }
  time_case(launch, bert, 8, 512, 512);
  time_case(launch, bert, 1, 8192, 8192);
}

}  // namespace pen::bench
