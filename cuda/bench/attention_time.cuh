// Times attention on real shapes: chains of calls in a captured graph, each on another layer's pages, median of several runs.
#pragma once

#include "attention_harness.cuh"
#include "graph_time.h"

namespace pen::bench {

constexpr int TIMED_RUNS = 9;
const Shape SMOL{"SmolLM2-135M", 9, 3, 64, 32, 0}, QWEN{"Qwen2.5-0.5B", 14, 2, 64, 32, 0}, GEMMA{"Gemma-3-270m", 4, 1, 256, 32, 512},
    GEMMA_4B{"Gemma-3-4B", 8, 4, 256, 32, 1024}, QWEN_NEXT{"Qwen3-Next", 16, 2, 256, 32, 0},
    LLAMA1{"Llama-3.2-1B", 32, 8, 64, 32, 0}, LLAMA8{"Llama-3.1-8B", 32, 8, 128, 32, 0};

inline Launch timed_launch() { return {gpu(), test_stream(), gpu().major >= 9}; }

// Microseconds per call of `call(i)`, i = 0 .. calls - 1, if the calls follow one another in a graph.
template <class Call>
double time_chain(int calls, Call call) {
  const auto queue = [&] {
    for (int i = 0; i < calls; ++i) call(i);
  };
  return graph_us(test_stream(), TIMED_RUNS, queue) / calls;
}

// Sequences with the same number of rows (the last may have more), and the pages of `layers` layers.
struct TimedStep {
  Shape shape;
  std::vector<int> lengths;
  int num_seqs, context, rows, last_rows, tokens, layers, max_blocks, num_blocks, stride;  // context: the longest of them
  size_t layer_elements, bytes;
  Buffer<__half> k, v, q, out;
  Buffer<uint32_t> cu, contexts, tables, positions, slots;
  Buffer<float> workspace, qkv, rope;

  static int blocks_of(const Shape& s, const std::vector<int>& lengths) {
    int blocks = 0;
    for (int length : lengths) blocks += ceil_div(length, s.block_size);
    return blocks;
  }
  static int layers_for(size_t elements) { return std::max(2, std::min(32, static_cast<int>(256e6 / (4.0 * elements)) + 1)); }
  TimedStep(const Shape& s, int num_seqs, int context, int rows) : TimedStep(s, num_seqs, context, rows, rows) {}
  TimedStep(const Shape& s, int num_seqs, int context, int rows, int last_rows)
      : TimedStep(s, std::vector<int>(num_seqs, context), rows, last_rows) {}
  TimedStep(const Shape& s, const std::vector<int>& lengths, int rows, int last_rows)
      : shape(s),
        lengths(lengths),
        num_seqs(static_cast<int>(lengths.size())),
        context(*std::max_element(lengths.begin(), lengths.end())),
        rows(rows),
        last_rows(last_rows),
        tokens((num_seqs - 1) * rows + last_rows),
        layers(layers_for(static_cast<size_t>(blocks_of(s, lengths)) * s.num_kv_heads * s.block_size * s.head_dim)),
        max_blocks(ceil_div(context, s.block_size)),
        num_blocks(blocks_of(s, lengths)),
        stride(static_cast<int>(round_up(s.num_heads * s.head_dim, 64))),
        layer_elements(static_cast<size_t>(num_blocks) * s.num_kv_heads * s.block_size * s.head_dim),
        bytes(attention_workspace(gpu(), num_seqs, s.num_heads, s.num_kv_heads, s.head_dim, context)),
        k(layer_elements * layers),
        v(layer_elements * layers),
        q(static_cast<size_t>(tokens) * s.num_heads * s.head_dim),
        out(static_cast<size_t>(tokens) * stride),
        cu(num_seqs + 1),
        contexts(num_seqs),
        tables(static_cast<size_t>(num_seqs) * max_blocks),
        positions(tokens),
        slots(tokens),
        workspace(bytes / sizeof(float)),
        qkv(static_cast<size_t>(tokens) * (s.num_heads + 2 * s.num_kv_heads) * s.head_dim),
        rope(static_cast<size_t>(context) * s.head_dim) {
    Random random{7};
    std::vector<__half> some(layer_elements);
    constexpr size_t PERIOD = (1 << 20) + 8;
    for (size_t i = 0; i < some.size(); ++i) some[i] = i < PERIOD ? __float2half(random.uniform()) : some[i - PERIOD];
    for (int layer = 0; layer < layers; ++layer) {
      check(cudaMemcpy(k.get() + layer * layer_elements, some.data(), layer_elements * 2, cudaMemcpyHostToDevice), "fill");
      check(cudaMemcpy(v.get() + layer * layer_elements, some.data(), layer_elements * 2, cudaMemcpyHostToDevice), "fill");
    }
    std::vector<__half> queries(q.n);
    for (__half& x : queries) x = __float2half(random.uniform());
    q.write(queries);
    std::vector<float> fresh(qkv.n), angles(rope.n);
    for (float& x : fresh) x = random.uniform();
    for (float& x : angles) x = random.uniform();
    qkv.write(fresh);
    rope.write(angles);
    std::vector<uint32_t> starts, blocks(tables.n), places, where;
    for (int i = 0; i <= num_seqs; ++i) starts.push_back(i < num_seqs ? i * rows : tokens);
    const std::vector<uint32_t> order = shuffled(num_blocks, random);
    size_t used = 0;
    for (int s_ = 0; s_ < num_seqs; ++s_) {
      for (int i = 0; i < ceil_div(lengths[s_], s.block_size); ++i) blocks[static_cast<size_t>(s_) * max_blocks + i] = order[used++];
      for (int pos = lengths[s_] - rows_of(s_); pos < lengths[s_]; ++pos) {
        where.push_back(pos);
        places.push_back(blocks[static_cast<size_t>(s_) * max_blocks + pos / s.block_size] * s.block_size + pos % s.block_size);
      }
    }
    cu.write(starts), contexts.write(all_lengths()), tables.write(blocks), positions.write(where), slots.write(places);
  }
  std::vector<uint32_t> all_lengths() const { return std::vector<uint32_t>(lengths.begin(), lengths.end()); }
  int rows_of(int seq) const { return seq == num_seqs - 1 ? last_rows : rows; }
  KvView kv(int i) const {
    const size_t at = i % layers * layer_elements;
    return {k.get() + at, v.get() + at, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim};
  }
  StepView step() const {
    return {positions.get(), slots.get(), cu.get(), contexts.get(), tables.get(), tokens, num_seqs, max_blocks, last_rows, context};
  }
  Views views() const {
    std::vector<int> all;
    for (int i = 0; i < num_seqs; ++i) all.push_back(rows_of(i));
    return Views(step(), all, all_lengths());
  }
  Attention attention(int i) const {
    return {q.get(), kv(i), out.get(), stride, shape.num_heads, 1.0f / sqrtf(static_cast<float>(shape.head_dim)), shape.window,
            workspace.get(), bytes};
  }
  QkvFinish finish(int i) const {
    return {qkv.get(), nullptr, nullptr, nullptr, nullptr, nullptr, 1e-6f, rope.get(), shape.head_dim, true, shape.num_heads, q.get(),
            kv(i)};
  }
};

// Times a prompt's rows together with sequences of one row: as one view, as one view per kind, and as two independent calls.
inline void time_mixed(const Launch& launch, const Shape& s, int batch, int rows) {
  const TimedStep t(s, batch, 512, 1, rows);
  const Views views = t.views();
  const auto time = [&](const StepView* single, const StepView* many) {
    return time_chain(8, [&](int i) {
      if (single) attention_decode(launch, t.attention(i), *single);
      if (many) attention_prefill(launch, t.attention(i), *many);
    });
  };
  const StepView whole = t.step();
  printf("%-14s %6d %8d %12.2f %12.2f %10.2f\n", s.name, batch, rows, time(&whole, &whole), time(&views.single, &views.many),
         time(&views.single, nullptr) + time(nullptr, &views.many));
}

// Times decode of many sequences: attention alone, after a kernel that finishes Q, K and V, and with attention finishing them itself.
inline void time_many(const Launch& launch, const Shape& s, const char* name, const std::vector<int>& lengths) {
  const TimedStep t(s, lengths, 1, 1);
  const int calls = std::max(8, std::min(32, t.layers));
  const double alone = time_chain(calls, [&](int i) { attention_decode(launch, t.attention(i), t.step()); });
  const double both = time_chain(calls, [&](int i) {
    qkv_finish(launch, t.finish(i), t.step());
    attention_decode(launch, t.attention(i), t.step());
  });
  const double within = time_chain(calls, [&](int i) {
    const QkvFinish fresh = t.finish(i);
    attention_decode(launch, t.attention(i), t.step(), &fresh);
  });
  double keys = 0.0;
  for (int length : lengths) keys += s.window != 0 ? std::min<int>(length, s.window) : length;
  printf("%-14s %6d %-12s %12.2f %12.2f %12.2f %10.0f\n", s.name, t.num_seqs, name, alone, both, within,
         4.0 * keys * s.num_kv_heads * s.head_dim / alone * 1e-3);
}
inline void time_many(const Launch& launch) {
  printf("\n%-14s %6s %-12s %12s %12s %12s %10s\n", "many", "batch", "contexts", "attention us", "+ finish us", "on its way", "GB/s");
  Random random{3};
  std::vector<int> mixed, one_long(200, 250);
  for (int i = 0; i < 256; ++i) mixed.push_back(100 + random.below(1100));
  one_long[100] = 30000;
  for (const Shape& s : {SMOL, LLAMA1, LLAMA8}) {
    for (const auto& [batch, context] : std::vector<std::pair<int, int>>{
             {20, 128}, {32, 128}, {32, 256}, {32, 512}, {32, 2000}, {48, 640}, {64, 128}, {64, 256}, {64, 512}, {64, 1024}, {128, 128},
             {128, 256}, {128, 640}, {256, 128}, {256, 256}, {256, 640}}) {
      time_many(launch, s, std::to_string(context).c_str(), std::vector<int>(batch, context));
    }
    time_many(launch, s, "100 to 1,200", mixed);
    time_many(launch, s, "and a long", one_long);
  }
}

// Times decode of few sequences, where attention finishes Q, K and V itself.
inline void time_few(const Launch& launch) {
  printf("\n%-14s %6s %8s %12s\n", "few", "batch", "context", "us");
  for (const Shape& s : {SMOL, QWEN, GEMMA, GEMMA_4B, LLAMA1, LLAMA8}) {
    for (const int batch : {1, 2, 4}) {
      for (const int context : {500, 700, 1000, 1100, 1500, 2000, 3000, 4000, 6000, 8000}) {
        const TimedStep t(s, batch, context, 1);
        const double us = time_chain(32, [&](int i) {
          const QkvFinish fresh = t.finish(i);
          attention_decode(launch, t.attention(i), t.step(), &fresh);
        });
        printf("%-14s %6d %8d %12.2f\n", s.name, batch, context, us);
      }
    }
  }
}

// Times prompts of one sequence, alone and after a kernel that finishes Q, K and V.
inline void time_prompts(const Launch& launch) {
  printf("\n%-14s %6s %8s %12s %12s %10s\n", "prefill", "rows", "context", "attention us", "+ finish us", "TFLOP/s");
  for (const Shape& s : {SMOL, GEMMA, GEMMA_4B, QWEN_NEXT, LLAMA1, LLAMA8}) {
    std::vector<std::pair<int, int>> prompts{{32, 32}, {512, 512}, {512, 2048}, {2048, 2048}, {4096, 4096}};
    if (s.head_dim >= 128) prompts.insert(prompts.end(), {{8192, 8192}, {2048, 32000}, {32000, 32000}});
    for (const auto& [rows, context] : prompts) {
      const TimedStep t(s, 1, context, rows);
      const double alone = time_chain(8, [&](int i) { attention_prefill(launch, t.attention(i), t.step()); });
      const double both = time_chain(8, [&](int i) {
        qkv_finish(launch, t.finish(i), t.step());
        attention_prefill(launch, t.attention(i), t.step());
      });
      double pairs = 0.0;
      for (int pos = context - rows; pos < context; ++pos) pairs += s.window != 0 ? std::min<int>(pos + 1, s.window) : pos + 1;
      const double flops = 4.0 * pairs * s.num_heads * s.head_dim;
      printf("%-14s %6d %8d %12.2f %12.2f %10.1f\n", s.name, rows, context, alone, both, flops / alone * 1e-6);
    }
  }
}

inline void time_all() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "properties");
  const Launch launch = timed_launch();
  const bool overlap = launch.overlap;
  printf("\n%s, programmatic launches: %d\n%-14s %6s %8s %12s %12s %10s\n", device.name, overlap, "decode", "batch", "context",
         "attention us", "+ finish us", "GB/s");
  for (const Shape& s : {SMOL, QWEN, GEMMA, LLAMA1, LLAMA8}) {
    for (const auto& [batch, context] : std::vector<std::pair<int, int>>{
             {1, 1},        {1, 128}, {1, 512},  {1, 640},  {1, 1024},  {1, 1500},  {1, 8192},  {1, 32000}, {4, 32000},
             {16, 8000},    {8, 512}, {64, 4096}, {256, 512}}) {
      const TimedStep t(s, batch, context, 1);
      const double alone = time_chain(32, [&](int i) { attention_decode(launch, t.attention(i), t.step()); });
      const double both = time_chain(32, [&](int i) {
        qkv_finish(launch, t.finish(i), t.step());
        attention_decode(launch, t.attention(i), t.step());
      });
      const int seen = s.window != 0 ? std::min<int>(context, s.window) : context;
      printf("%-14s %6d %8d %12.2f %12.2f %10.0f\n", s.name, batch, context, alone, both,
             4.0 * batch * seen * s.num_kv_heads * s.head_dim / alone * 1e-3);
    }
  }
  time_few(launch);
  time_many(launch);
  time_prompts(launch);
  printf("\n%-14s %6s %8s %12s %12s %10s\n", "mixed", "batch", "rows", "one view us", "views us", "apart us");
  for (const Shape& s : {SMOL, LLAMA8}) {
    for (const auto& [batch, rows] : std::vector<std::pair<int, int>>{{16, 512}, {256, 64}, {256, 512}}) time_mixed(launch, s, batch, rows);
  }
}

}  // namespace pen::bench
