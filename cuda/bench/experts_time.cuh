// Times layers with experts at the shapes of known models: router, choice, experts and sums, in a captured graph of layers that choose
// different experts. Prints how long a copy of the same bytes would take.
#pragma once

#include <set>

#include "experts_decode.cuh"

namespace pen::bench {

struct Timed {
  const char* name;
  uint32_t up_type, down_type;
  int experts, used, hidden, ffn;
  bool shared, biased;
  Gating gating;
};

// Bytes per second that a copy within the device reads and writes.
inline double copy_bandwidth(cudaStream_t stream) {
  constexpr size_t BYTES = size_t(2) << 30;
  uint8_t *a, *b;
  check(cudaMalloc(&a, BYTES), "cudaMalloc"), check(cudaMalloc(&b, BYTES), "cudaMalloc");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  float best = 1e9f;
  for (int i = 0; i < 8; i++) {
    cudaEventRecord(begin, stream);
    check(cudaMemcpyAsync(a, b, BYTES, cudaMemcpyDeviceToDevice, stream), "copy");
    cudaEventRecord(end, stream);
    check(cudaStreamSynchronize(stream), "copy");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::min(best, ms);
  }
  cudaFree(a), cudaFree(b), cudaEventDestroy(begin), cudaEventDestroy(end);
  return 2.0 * BYTES / (best * 1e-3);
}

// Microseconds of `launches`: the best of several runs of its graph.
template <class F>
double graph_time(cudaStream_t stream, F launches) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  launches();
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  float best = 1e9f;
  for (int i = 0; i < 20; i++) {
    cudaEventRecord(begin, stream);
    check(cudaGraphLaunch(exec, stream), "graph launch");
    cudaEventRecord(end, stream);
    check(cudaStreamSynchronize(stream), "graph");
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    best = std::min(best, ms);
  }
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
  return best * 1e3;
}

inline void time_shape(const Timed& t, int rows, double bandwidth, cudaStream_t stream) {
  constexpr int LAYERS = 24;  // together they read more than the L2 cache holds
  const Shape s{rows, t.experts, t.used, t.hidden, t.ffn};
  std::vector<uint32_t> slots(rows);
  for (int i = 0; i < rows; i++) slots[i] = uint32_t(i);
  Layer layer(s, t.up_type, t.down_type, slots, true);
  Stack routers(*quant_row(1), t.experts, t.hidden, LAYERS);
  ExpertDecode a = layer.decode_args();
  a.routing.gating = t.gating;
  if (t.biased) {
    a.gate_bias = layer.gate_bias.data, a.up_bias = layer.up_bias.data, a.combine.down_bias = layer.down_bias.data;
    a.activation = Activation::SWIGLU_CLAMPED;
  }
  if (t.gating == Gating::SIGMOID) a.routing.choice_bias = layer.choice_bias.data;
  if (t.shared) a.shared_gate_up = layer.shared_gate_up.one.data, a.shared_down = layer.shared_down.one.data;
  const auto score = [&](const Launch& launch, int i) {
    Linear args{};
    args.w[0] = routers.one;
    args.w[0].data += i * routers.one.bytes();
    args.num_segments = 1;
    args.x = layer.x.data, args.ldx = layer.ld_hidden, args.num_tokens = rows, args.out = layer.scores.data, args.ldo = t.experts;
    args.epilogue = Epilogue::STORE;
    linear(launch, args);
  };
  // The bytes that the layers must read.
  double bytes = 0;
  const Launch plain{gpu(), stream};
  Routing r = a.routing;
  r.chosen = layer.chosen.data, r.weights = layer.weights.data;
  for (int i = 0; i < LAYERS; i++) {
    score(plain, i);
    route(plain, r);
    check(cudaStreamSynchronize(stream), "routing");
    const std::vector<int32_t> chosen = layer.chosen.get();
    const size_t different = std::set<int32_t>(chosen.begin(), chosen.end()).size() + (t.shared ? 1 : 0);
    bytes += double(different) * (a.gate_up.bytes() + a.down.bytes()) + routers.one.bytes();
  }
  const auto per_layer = [&](bool overlap, auto experts) {
    return graph_time(stream, [&] {
      const Launch launch{gpu(), stream, overlap};
      for (int i = 0; i < LAYERS; i++) score(launch, i), experts(launch);
    }) / LAYERS;
  };
  const double router = per_layer(true, [](const Launch&) {});
  const double general = per_layer(true, [&](const Launch& launch) { layer.run_general(launch, a); });
  const double limit = bytes / LAYERS / bandwidth * 1e6;
  const double products = 2.0 * rows * (t.used + (t.shared ? 1 : 0)) * 3 * t.hidden * t.ffn;
  std::printf("%-16s rows %d: %7.2f MB, copy %6.2f us, router alone %6.2f, general kernels %7.2f us (%3.0f %%, %3.0f TFLOP/s)", t.name,
              rows, bytes / LAYERS / 1e6, limit, router, general, 100 * limit / general, products / general * 1e-6);
  if (can_decode(gpu(), a)) {
    const double two = per_layer(true, [&](const Launch& launch) { expert_decode(launch, a); });
    const double apart = per_layer(false, [&](const Launch& launch) { expert_decode(launch, a); });
    std::printf(", few rows %7.2f us (%3.0f %%), without overlap %7.2f", two, 100 * limit / two, apart);
  }
  std::printf("\n");
}

// `name` and `only_rows`, if given, restrict the timings to one shape and one number of rows.
inline void time_shapes(const char* name = nullptr, int only_rows = 0) {
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const double bandwidth = copy_bandwidth(stream);
  std::printf("copy: %.2f TB/s\n", bandwidth / 1e12);
  const Timed shapes[] = {
      {"gpt-oss-20b", 39, 39, 32, 4, 2880, 2880, false, true, Gating::SOFTMAX_OF_CHOSEN},
      {"Qwen3-30B-A3B", 12, 12, 128, 8, 2048, 768, false, false, Gating::SOFTMAX},
      {"Qwen3-Next-80B", 12, 12, 512, 10, 2048, 512, true, false, Gating::SOFTMAX},
      {"GLM-4.5-Air", 12, 6, 128, 8, 4096, 1408, true, false, Gating::SIGMOID},  // Q5_0: 1408 is not a multiple of 256
      {"Granite-4-small", 12, 12, 72, 10, 4096, 768, false, false, Gating::SOFTMAX_OF_CHOSEN},
      {"Qwen3-IQ4_XS", 23, 23, 128, 8, 2048, 768, false, false, Gating::SOFTMAX},
      {"Qwen3-IQ2_XS", 17, 17, 128, 8, 2048, 768, false, false, Gating::SOFTMAX},
  };
  for (const Timed& t : shapes) {
    if (name && std::strcmp(name, t.name) != 0) continue;
    for (int rows : {1, 2, 4, 5, 6, 8, 16, 64, 256, 1024, 2048}) {
      if (!only_rows || only_rows == rows) time_shape(t, rows, bandwidth, stream);
    }
  }
  cudaStreamDestroy(stream);
}

}  // namespace pen::bench
