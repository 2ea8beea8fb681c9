// How a step's kernels are queued.
#include "graphs.h"

#include <algorithm>

#include "program.h"
#include "sampler.h"

namespace pen {

namespace {

void capture(pen_model& m, const pen_kv& kv, const Step& step, bool sampling, Graph& graph) {
  cudaGraph_t captured = nullptr;
  const std::lock_guard alone(device_wide());
  check(cudaStreamBeginCapture(m.stream.handle, cudaStreamCaptureModeRelaxed), "graph capture");
  try {
    forward(m, kv, step);
    if (sampling) sample_step(m, step, true);
  } catch (...) {
    cudaStreamEndCapture(m.stream.handle, &captured);
    if (captured) cudaGraphDestroy(captured);
    throw;
  }
  check(cudaStreamEndCapture(m.stream.handle, &captured), "graph capture");
  const cudaError_t made = cudaGraphInstantiate(&graph.exec, captured, 0);
  cudaGraphDestroy(captured);
  if (made != cudaSuccess) graph.exec = nullptr;
  check(made, "graph instantiation");
}

}  // namespace

void run(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  forward(m, kv, step);
  if (sampling) sample_or_lose(m, step, true);
}

void run_graph(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  Graph& graph = m.graphs[{step.view.num_seqs, step.view.max_blocks, sampling}];
  cudaError_t failed = cudaSuccess;
  if (!graph.exec && !graph.refused) {
    try {
      capture(m, kv, step, sampling, graph);
    } catch (const CudaError& error) {
      failed = error.code;
    }
  }
  if (graph.exec) failed = cudaGraphLaunch(graph.exec, m.stream.handle);
  if (failed == cudaSuccess && graph.exec) return;
  if (failed != cudaErrorMemoryAllocation) check(failed, "graph");
  cudaGetLastError();
  graph.drop();
  run(m, kv, step, sampling);
}

void warm_up(pen_model& m, const pen_kv& kv) {
  const int stride = round_blocks(1, kv.block_size);
  const auto upload = [&](const MetaLayout& layout) {
    const InFlight& flight = m.ring[0];
    const uint32_t none = 0;
    pen_batch nothing{};
    nothing.cu_seqlens_q = &none;
    fill_metadata(flight.meta.as<uint8_t>(), layout, nothing, flight.sampled.as<int32_t>(), {}, kv.shape());
    check(cudaMemcpyAsync(m.scratch.meta.as<uint8_t>(), flight.meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle),
          "copying metadata");
  };
  // Kernels are loaded when they are first used: the first prompt must not wait for that, nor find no memory for it.
  for (int tokens = 2; tokens <= int(m.desc.max_batch_tokens); tokens *= 2) {
    const MetaLayout layout(tokens, 1, 1, stride, int(m.groups.size()));
    upload(layout);
    run(m, kv, step_at(m.scratch.meta.as<uint8_t>(), layout, {tokens, stride * kv.block_size}), true);
    check(cudaStreamSynchronize(m.stream.handle), "warming up");
  }
  for (int n = 1; n <= std::min(int(m.desc.max_slots), MAX_GRAPH_SEQS); n++) {
    const int seqs = round_seqs(n);
    Graph& graph = m.graphs[{seqs, stride, true}];
    if (graph.exec) continue;
    const MetaLayout layout(seqs, seqs, seqs, stride, int(m.groups.size()));
    upload(layout);
    const Step step = step_at(m.scratch.meta.as<uint8_t>(), layout, {1, stride * kv.block_size});
    // Once by hand, so that every kernel is loaded before it is captured.
    run(m, kv, step, true);
    check(cudaStreamSynchronize(m.stream.handle), "warming up");
    capture(m, kv, step, true, graph);
  }
}

}  // namespace pen
