// Times each op of a layer in place: layers of real shapes in one programmatic graph, as engine/program.cu queues a decode step. Times the
// whole layer, the layer without each op, and each op alone. Ops overlap, so the three differ. The head (its norm, its product) follows the
// layers. Nothing is checked here: the other programs of this folder do that.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/layers.cu cuda/{attention,norm,linear,quant}/*.cu -o layers
//   layers [rows per step, 1 by default; several as 1,8,64] [shape …]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../attention/attention.h"
#include "../linear/linear.h"
#include "../quant/format.cuh"
#include "graph_time.h"

using namespace pen;
using pen::bench::gpu;

namespace {

enum Op { QKV = 1, ATTENTION = 2, O = 4, GATE_UP = 8, DOWN = 16, ALL = 31, HEAD = 32 };
const char* const NAMES[] = {"qkv", "attention", "o", "gate_up", "down"};
constexpr int CONTEXT = 200, PAGE = 32, PAGES = 8, RUNS = 19;

struct Kind {
  int format, record_bytes;
};
template <class Format>
constexpr Kind kind() {
  return {Format::id, Format::record_bytes};
}

struct Shape {
  const char* name;
  int layers, hidden, heads, kv_heads, head_dim, ffn;
  Kind attention, value, ffn_up, ffn_down;  // value: of V, whose type differs in many files
  int vocab;
  Kind head;
};
constexpr Kind H16 = kind<FormatH16>(), Q4 = kind<FormatQ4Min>(), Q5 = kind<FormatQ5>(), Q6 = kind<FormatQ6>(), Q8 = kind<FormatQ8>();
const Shape SHAPES[] = {
    {"smollm2-135m", 30, 576, 9, 3, 64, 1536, Q4, Q4, Q4, Q4, 49152, Q8},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, Q5, Q5, Q5, Q6, 151936, Q8},
    {"gemma-3-270m", 18, 640, 4, 1, 256, 2048, Q5, Q5, Q5, Q8, 262144, Q8},
    {"llama-3.2-1b-f16", 16, 2048, 32, 8, 64, 8192, H16, H16, H16, H16, 128256, H16},
    {"llama-3.2-1b-q4", 16, 2048, 32, 8, 64, 8192, Q4, Q4, Q4, Q6, 128256, Q6},
    {"llama-3.1-8b-q4", 32, 4096, 32, 8, 128, 14336, Q4, Q6, Q4, Q6, 128256, Q6},
};

// Memory that is freed together. Records are random bytes with small scales.
struct Arena {
  std::vector<void*> all;
  template <class T>
  T* take(size_t count) {
    void* p = nullptr;
    check(cudaMalloc(&p, count * sizeof(T) + 256), "cudaMalloc");
    check(cudaMemset(p, 0x11, count * sizeof(T) + 256), "cudaMemset");
    all.push_back(p);
    return static_cast<T*>(p);
  }
  Matrix matrix(int rows, int cols, Kind kind) {
    Matrix m{nullptr, rows, cols, kind.format, kind.record_bytes};
    m.data = take<uint8_t>(m.bytes());
    return m;
  }
  uint32_t* upload(const std::vector<uint32_t>& from) {
    uint32_t* p = take<uint32_t>(from.size());
    check(cudaMemcpy(p, from.data(), from.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
  }
  ~Arena() {
    for (void* p : all) cudaFree(p);
  }
};

struct Layers {
  struct Layer {
    Matrix q, k, v, o, gate_up, down;
    KvView kv;
  };
  Arena arena;
  Shape s;
  int rows;
  std::vector<Layer> layers;
  Matrix output;
  float *logits, *x, *qkv, *weight, *rope, *workspace;
  __half *h, *q, *attn, *ffn;
  uint32_t* arrivals;
  StepView view;
  cudaStream_t stream = nullptr;
  static constexpr size_t WORKSPACE = size_t(64) << 20;

  Layers(const Shape& shape, int rows) : s(shape), rows(rows) {
    check(cudaStreamCreate(&stream), "stream");
    const int heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim, pages = PAGES * rows;
    for (int i = 0; i < s.layers; i++) {
      const auto cache = [&] { return arena.take<__half>(size_t(pages) * PAGE * kv); };
      Layer l{arena.matrix(heads, s.hidden, s.attention), arena.matrix(kv, s.hidden, s.attention), arena.matrix(kv, s.hidden, s.value),
              arena.matrix(s.hidden, heads, s.attention), arena.matrix(2 * s.ffn, s.hidden, s.ffn_up),
              arena.matrix(s.hidden, s.ffn, s.ffn_down), {}};
      l.kv = {cache(), cache(), pages, PAGE, s.kv_heads, s.head_dim};
      layers.push_back(l);
    }
    output = arena.matrix(s.vocab, s.hidden, s.head);
    logits = arena.take<float>(size_t(rows) * s.vocab);
    x = arena.take<float>(size_t(rows) * s.hidden);
    qkv = arena.take<float>(size_t(rows) * (heads + 2 * kv));
    weight = arena.take<float>(s.hidden);
    rope = arena.take<float>(size_t(CONTEXT) * s.head_dim);
    workspace = arena.take<float>(WORKSPACE / 4);
    h = arena.take<__half>(rows * round_up(s.hidden, K_TILE));
    q = arena.take<__half>(size_t(rows) * heads);
    attn = arena.take<__half>(rows * round_up(heads, K_TILE));
    ffn = arena.take<__half>(rows * round_up(s.ffn, K_TILE));
    arrivals = arena.upload(std::vector<uint32_t>(MAX_SHARED_TILES, 0));
    std::vector<uint32_t> positions(rows, CONTEXT - 1), contexts(rows, CONTEXT), slots, starts{0}, table;
    for (int i = 0; i < rows; i++) {
      slots.push_back((i * PAGES + (CONTEXT - 1) / PAGE) * PAGE + (CONTEXT - 1) % PAGE);
      starts.push_back(i + 1);
      for (int page = 0; page < PAGES; page++) table.push_back(i * PAGES + page);
    }
    view = {arena.upload(positions), arena.upload(slots), arena.upload(starts), arena.upload(contexts), arena.upload(table),
            rows, rows, PAGES, 1, PAGE * PAGES};
  }
  ~Layers() { cudaStreamDestroy(stream); }

  Linear product(const Matrix& w, const __half* in, int ldx, Epilogue epilogue, float* out, int ldo) const {
    Linear a{};
    a.w[0] = w;
    a.num_segments = 1;
    a.x = in, a.ldx = ldx, a.num_tokens = rows;
    a.out = out, a.ldo = ldo, a.epilogue = epilogue;
    a.slicing.halves = epilogue == Epilogue::ADD && w.k_tiles() >= HALVES_K_TILES;  // as src/engine/cuda/lower/slices.rs
    a.slabs = workspace, a.slab_bytes = WORKSPACE, a.arrivals = arrivals;
    return a;
  }
  Norm norm() const { return {x, nullptr, nullptr, nullptr, weight, s.hidden, 1e-5f}; }
  Launch launch() const { return {gpu(), stream, true}; }
  void queue_norm(int ldh) const { rms_norm(launch(), norm(), nullptr, rows, h, ldh); }
  void normalised(Linear a) const {
    if (takes_norm(rows, s.hidden)) {
      a.norm = norm();
    } else {
      queue_norm(a.ldx);
    }
    linear(launch(), a);
  }

  void queue(int ops) const {
    const int heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    const int ld_hidden = int(round_up(s.hidden, K_TILE)), ld_attn = int(round_up(heads, K_TILE)), ld_ffn = int(round_up(s.ffn, K_TILE));
    for (const Layer& l : layers) {
      if (ops & QKV) {
        Linear a = product(l.q, h, ld_hidden, Epilogue::STORE, qkv, heads + 2 * kv);
        a.w[1] = l.k, a.w[2] = l.v;
        a.out_offset[1] = heads, a.out_offset[2] = heads + kv;
        a.num_segments = 3;
        normalised(a);
      }
      if (ops & ATTENTION) {
        const QkvFinish fresh{qkv, nullptr, nullptr, nullptr, nullptr, nullptr, 1e-5f, rope, s.head_dim, true, s.heads, q, l.kv};
        attention_decode(launch(), Attention{q, l.kv, attn, ld_attn, s.heads, 0.125f, 0, workspace, WORKSPACE}, view, &fresh);
      }
      if (ops & O) linear(launch(), product(l.o, attn, ld_attn, Epilogue::ADD, x, s.hidden));
      if (ops & GATE_UP) {
        Linear a = product(l.gate_up, h, ld_hidden, Epilogue::SILU_MUL, nullptr, ld_ffn);
        a.out16 = ffn;
        normalised(a);
      }
      if (ops & DOWN) linear(launch(), product(l.down, ffn, ld_ffn, Epilogue::ADD, x, s.hidden));
    }
    if (!(ops & HEAD)) return;
    queue_norm(ld_hidden);
    linear(launch(), product(output, h, ld_hidden, Epilogue::STORE, logits, s.vocab));
  }

  // Microseconds of all ops, the median of RUNS.
  double time(int ops) const {
    return pen::bench::graph_us(stream, RUNS, [&] { queue(ops); });
  }
};

}  // namespace

int main(int argc, char** argv) {
  const char* const list = argc > 1 ? argv[1] : "1";
  for (const Shape& shape : SHAPES) {
    if (argc > 2 && std::none_of(argv + 2, argv + argc, [&](const char* name) { return !std::strcmp(name, shape.name); })) continue;
    for (const char* at = list; *at; at += *at == ',') {
      char* end = nullptr;
      const int rows = int(std::strtol(at, &end, 10));
      if (end == at || rows < 1) return std::fprintf(stderr, "layers: %s is no list of rows\n", list), 1;
      at = end;
      const Layers layers(shape, rows);
      const double all = layers.time(ALL), each = 1.0 / shape.layers, head = layers.time(ALL | HEAD) - all;
      printf("%-17s %d rows: %.2f us per layer, %.0f us in all, head %.1f us (%.2f TB/s) |", shape.name, rows, all * each, all + head, head,
             layers.output.bytes() / head * 1e-6);
      for (int i = 0; i < 5; i++) {
        printf(" %s: without %.2f, alone %.2f |", NAMES[i], (all - layers.time(ALL & ~(1 << i))) * each, layers.time(1 << i) * each);
      }
      printf("\n");
      fflush(stdout);
    }
  }
}
