// Checks qkv_finish: results against double, no writes elsewhere, and the same bits for a token alone and in a batch.
#pragma once

#include "attention_harness.cuh"

namespace pen::bench {

struct QkvShape {
  const char* name;
  int num_heads, num_kv_heads, head_dim, block_size, rope_dim;
  bool halves, bias, norm;
};

// A step's input, and the places where its rows go.
struct QkvWorld {
  QkvShape shape;
  int num_tokens, num_blocks = 7, max_positions = 700;
  float eps = 1e-6f;
  std::vector<float> qkv, bias[3], norm[2], rope;
  std::vector<uint32_t> positions, slots;

  QkvWorld(const QkvShape& shape, int num_tokens, Random& random) : shape(shape), num_tokens(num_tokens) {
    const int dim = shape.head_dim, heads = shape.num_heads + 2 * shape.num_kv_heads;
    num_blocks = std::max(num_blocks, ceil_div(num_tokens, shape.block_size) + 1);
    qkv.resize(static_cast<size_t>(num_tokens) * heads * dim);
    for (float& x : qkv) x = 3.0f * random.normal();
    for (int i = 0; i < 3; ++i) {
      bias[i].resize((i == 0 ? shape.num_heads : shape.num_kv_heads) * dim);
      for (float& x : bias[i]) x = 5.0f * random.normal();
    }
    for (std::vector<float>& w : norm) {
      w.resize(dim);
      for (float& x : w) x = 1.0f + 0.5f * random.normal();
    }
    rope.resize(static_cast<size_t>(max_positions) * shape.rope_dim);
    for (int pos = 0; pos < max_positions; ++pos) {
      for (int i = 0; i < shape.rope_dim / 2; ++i) {
        const double angle = pos * pow(10000.0, -2.0 * i / shape.rope_dim);
        rope[static_cast<size_t>(pos) * shape.rope_dim + i] = static_cast<float>(cos(angle));
        rope[static_cast<size_t>(pos) * shape.rope_dim + shape.rope_dim / 2 + i] = static_cast<float>(sin(angle));
      }
    }
    std::vector<uint32_t> free(num_blocks * shape.block_size);
    for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<uint32_t>(i);
    for (int t = 0; t < num_tokens; ++t) {
      std::swap(free[t], free[t + random.below(static_cast<int>(free.size()) - t)]);
      const bool padding = t % 5 == 3;
      slots.push_back(padding ? NO_SLOT : free[t]);
      positions.push_back(padding ? 0x7fffffffu : static_cast<uint32_t>(random.below(max_positions)));
    }
  }

  // The expected output of head `head` of q, k, v side by side.
  std::vector<double> reference(int token, int head) const {
    const int dim = shape.head_dim, q_heads = shape.num_heads, kv_heads = shape.num_kv_heads, half = shape.rope_dim / 2;
    const int part = head < q_heads ? 0 : head < q_heads + kv_heads ? 1 : 2, local = part == 0 ? head : (head - q_heads) % kv_heads;
    std::vector<double> x(dim);
    double squares = 0.0;
    for (int d = 0; d < dim; ++d) {
      x[d] = qkv[(static_cast<size_t>(token) * (q_heads + 2 * kv_heads) + head) * dim + d];
      if (shape.bias) x[d] += bias[part][local * dim + d];
      squares += x[d] * x[d];
    }
    if (part == 2) return x;
    if (shape.norm) {
      for (int d = 0; d < dim; ++d) x[d] *= norm[part][d] / sqrt(squares / dim + eps);
    }
    const float* table = rope.data() + static_cast<size_t>(positions[token]) * shape.rope_dim;
    for (int i = 0; i < half; ++i) {
      double& a = x[shape.halves ? i : 2 * i];
      double& b = x[shape.halves ? i + half : 2 * i + 1];
      const double c = table[i], s = table[half + i], a0 = a;
      a = a0 * c - b * s;
      b = a0 * s + b * c;
    }
    return x;
  }
};

struct QkvOut {
  std::vector<__half> q, k, v;
};

// Runs tokens [begin, end) of the world as a separate step. `aligned`: the input starts at a multiple of 16 bytes, as the kernel for eight
// elements per thread requires.
inline QkvOut run_qkv(const QkvWorld& w, int begin, int end, bool overlap, const std::string& where, bool aligned = true) {
  const QkvShape& s = w.shape;
  const size_t row = static_cast<size_t>(s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  std::vector<float> input(w.qkv.begin() + begin * row, w.qkv.begin() + end * row);
  if (!aligned) input.insert(input.begin(), 0.0f);
  Buffer<float> qkv(input);
  Buffer<float> q_bias(w.bias[0]), k_bias(w.bias[1]), v_bias(w.bias[2]), q_norm(w.norm[0]), k_norm(w.norm[1]), rope(w.rope);
  Buffer<uint32_t> positions(std::vector<uint32_t>(w.positions.begin() + begin, w.positions.begin() + end));
  Buffer<uint32_t> slots(std::vector<uint32_t>(w.slots.begin() + begin, w.slots.begin() + end));
  const size_t page_elements = static_cast<size_t>(w.num_blocks) * s.num_kv_heads * s.block_size * s.head_dim;
  Buffer<__half> q(static_cast<size_t>(end - begin) * s.num_heads * s.head_dim), k(page_elements), v(page_elements);
  const KvView kv{k.get(), v.get(), w.num_blocks, s.block_size, s.num_kv_heads, s.head_dim};
  const QkvFinish args{qkv.get() + (aligned ? 0 : 1),
                       s.bias ? q_bias.get() : nullptr,
                       s.bias ? k_bias.get() : nullptr,
                       s.bias ? v_bias.get() : nullptr,
                       s.norm ? q_norm.get() : nullptr,
                       s.norm ? k_norm.get() : nullptr,
                       w.eps,
                       rope.get(),
                       s.rope_dim,
                       s.halves,
                       s.num_heads,
                       q.get(),
                       kv};
  const StepView step{positions.get(), slots.get(), nullptr, nullptr, nullptr, end - begin, 0, 0, 1, 1};
  qkv_finish({gpu(), test_stream(), overlap}, args, step);
  check(cudaDeviceSynchronize(), where.c_str());
  report(q.guards_intact() && k.guards_intact() && v.guards_intact(), where + ": wrote outside of its memory");
  return {q.read(), k.read(), v.read()};
}

inline size_t slot_offset(const QkvShape& s, uint32_t slot, int kv_head) {
  return ((static_cast<size_t>(slot / s.block_size) * s.num_kv_heads + kv_head) * s.block_size + slot % s.block_size) * s.head_dim;
}

// Finds head `head` of row `row` (token `token` of the world) in an output.
inline const __half* qkv_head(const QkvWorld& w, const QkvOut& out, int row, int token, int head) {
  const QkvShape& s = w.shape;
  if (head < s.num_heads) return out.q.data() + (static_cast<size_t>(row) * s.num_heads + head) * s.head_dim;
  const int local = head - s.num_heads;
  return (local < s.num_kv_heads ? out.k : out.v).data() + slot_offset(s, w.slots[token], local % s.num_kv_heads);
}

inline void check_qkv(const QkvShape& s, int num_tokens, uint64_t seed) {
  Random random{seed};
  const QkvWorld w(s, num_tokens, random);
  const std::string name = text("qkv_finish %s, %d tokens", s.name, num_tokens);
  const QkvOut out = run_qkv(w, 0, num_tokens, false, name);
  const int heads = s.num_heads + 2 * s.num_kv_heads;
  size_t written = 0;
  for (int t = 0; t < num_tokens; ++t) {
    if (w.slots[t] == NO_SLOT) continue;
    written += s.num_kv_heads * s.head_dim;
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> want = w.reference(t, h);
      const __half* got = qkv_head(w, out, t, t, h);
      double error = 0.0, power = 0.0;
      int bad = -1;
      for (int d = 0; d < s.head_dim; ++d) {
        const double e = __half2float(got[d]) - want[d];
        error += e * e, power += want[d] * want[d];
        // Half a unit in the last place of float16, plus what float32 may lose by cancellation.
        if (bad < 0 && !(fabs(e) <= fabs(want[d]) / 2040.0 + 4e-5)) bad = d;
      }
      const double nmse = error / power;
      if (nmse == nmse) worst_qkv = std::max(worst_qkv, nmse);
      // Rounding to float16 errs by up to 2^-11 of an element, whose square is 2.4e-7. A head whose elements are all just above a power of
      // two comes close to that.
      const bool ok = bad < 0 && nmse <= 2.4e-7;
      report(ok, name + text(": token %d head %d of %d/%d: error %.3g, dim %d: %g is not %g", t, h, s.num_heads, s.num_kv_heads, nmse,
                             std::max(bad, 0), __half2float(got[std::max(bad, 0)]), want[std::max(bad, 0)]));
      if (!ok) return;
    }
  }
  for (const auto* pages : {&out.k, &out.v}) {
    const size_t count = std::count_if(pages->begin(), pages->end(), [](__half x) { return !poisoned(x); });
    report(count == written, name + text(": %zu page elements written, not %zu", count, written));
  }
  const QkvOut by_head = run_qkv(w, 0, num_tokens, false, name + " by head", false);
  bool equal = true;
  for (int t = 0; t < num_tokens; ++t) {
    if (w.slots[t] == NO_SLOT) continue;
    for (int h = 0; h < heads; ++h) equal &= memcmp(qkv_head(w, by_head, t, t, h), qkv_head(w, out, t, t, h), s.head_dim * 2) == 0;
  }
  report(equal, name + ": the kernels differ");
  for (int i = 0; i < 6; ++i) {
    const int begin = random.below(num_tokens), end = i < 3 ? begin + 1 : begin + 1 + random.below(num_tokens - begin);
    const QkvOut part = run_qkv(w, begin, end, i % 2 == 1, name + " part");
    bool same = true;
    for (int t = begin; t < end; ++t) {
      if (w.slots[t] == NO_SLOT) continue;
      for (int h = 0; h < heads; ++h) {
        same &= memcmp(qkv_head(w, part, t - begin, t, h), qkv_head(w, out, t, t, h), s.head_dim * sizeof(__half)) == 0;
      }
    }
    report(same, name + text(": tokens [%d, %d) alone differ from the batch", begin, end));
  }
}

inline void check_qkv_all(bool quick) {
  const QkvShape shapes[] = {
      {"SmolLM2", 9, 3, 64, 32, 64, false, false, false}, {"Qwen2.5", 14, 2, 64, 64, 64, true, true, false},
      {"Gemma 3", 4, 1, 256, 32, 256, true, false, true}, {"Llama 8B", 32, 8, 128, 32, 128, false, false, false},
      {"biased halves", 6, 2, 96, 32, 64, true, true, false},  {"biased, adjacent", 5, 1, 72, 32, 24, false, true, false},
      {"part rotated, halves", 5, 5, 80, 32, 32, true, true, true}, {"part rotated, adjacent", 6, 3, 80, 96, 34, false, true, true},
      {"not rotated", 3, 1, 40, 32, 0, true, false, true}, {"tiny", 2, 1, 8, 32, 6, true, true, true},
      {"odd size", 7, 7, 248, 64, 120, true, false, true},
  };
  uint64_t seed = 100;
  for (const QkvShape& shape : shapes) {
    for (int num_tokens : quick ? std::vector<int>{1, 9} : std::vector<int>{1, 2, 9, 64, 331}) check_qkv(shape, num_tokens, seed++);
  }
}

}  // namespace pen::bench
