// How a step's kernels are queued.
#include "graphs.h"

#include <algorithm>
#include <chrono>

#include "program.h"
#include "sampler.h"

namespace pen {

namespace {

// Device memory that the graphs of capture_rest() may take: half of what pen_model_need() sets aside for graphs and code.
constexpr size_t GRAPH_MEMORY = size_t(128) << 20;

// A graph in place of a missing one has at most so many times its sequences and blocks. The kernels one by one would cost less than more
// padding, and than a longer copy of block tables.
constexpr int MORE_SEQS = 2, MORE_BLOCKS = 4;

// The numbers of sequences for which there are graphs, ascending.
std::vector<int> graph_seqs(const pen_model& m) {
  std::vector<int> all;
  for (int n = 1; n <= std::min(int(m.desc.max_slots), MAX_GRAPH_SEQS); n++) {
    if (all.empty() || all.back() != round_seqs(n)) all.push_back(round_seqs(n));
  }
  return all;
}

// A step of `tokens` rows none of which belongs to a sequence: its metadata is on the device only after upload().
struct Padding {
  MetaLayout layout;
  Step step;
  Padding(pen_model& m, const pen_kv& kv, int tokens, int seqs, int blocks, int max_query = 1)
      : layout(tokens, seqs, seqs, blocks, int(m.groups.size())),
        step(step_at(m.scratch.meta.as<uint8_t>(), layout, {max_query, blocks * kv.block_size})) {}
  void upload(pen_model& m, const pen_kv& kv) const {
    const InFlight& flight = m.ring[0];
    const uint32_t none = 0;
    pen_batch nothing{};
    nothing.cu_seqlens_q = &none;
    fill_metadata(flight.meta.as<uint8_t>(), layout, nothing, flight.sampled.as<int32_t>(), {}, kv.shape());
    check(cudaMemcpyAsync(m.scratch.meta.as<uint8_t>(), flight.meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle),
          "copying metadata");
  }
};

// Kernels are loaded when they are first used. No step may wait for that, nor find no memory for it.
void run_padding(pen_model& m, const pen_kv& kv, const Padding& padding) {
  padding.upload(m, kv);
  run(m, kv, padding.step, true);
  check(cudaStreamSynchronize(m.stream.handle), "warming up");
}

void record(pen_model& m, const pen_kv& kv, const Step& step, Graph& graph) {
  cudaGraph_t captured = nullptr;
  const std::lock_guard alone(device_wide());
  check(cudaStreamBeginCapture(m.stream.handle, cudaStreamCaptureModeRelaxed), "graph capture");
  try {
    forward(m, kv, step);
    if (graph.shape.sampling) sample_step(m, step, true);
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
  // Else the first launch would do it.
  check(cudaGraphUpload(graph.exec, m.stream.handle), "graph upload");
}

// Captures the graph of a padding step. Returns false if there is no memory for it.
bool capture(pen_model& m, const pen_kv& kv, const Padding& padding, bool sampling) {
  const int seqs = padding.layout.num_seqs, blocks = padding.layout.max_blocks;
  Graph& graph = m.graphs[{seqs, blocks, sampling}];
  graph.shape = {seqs, blocks, sampling};
  try {
    record(m, kv, padding.step, graph);
  } catch (const CudaError& error) {
    graph.drop();
    if (error.code != cudaErrorMemoryAllocation) throw;
    cudaGetLastError();
    return false;
  }
  return true;
}

bool is_captured(const pen_model& m, int seqs, int blocks, bool sampling) {
  const auto at = m.graphs.find({seqs, blocks, sampling});
  return at != m.graphs.end() && at->second.exec;
}

size_t free_memory() {
  const std::lock_guard alone(device_wide());
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "device memory");
  return free;
}

}  // namespace

void run(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  forward(m, kv, step);
  if (sampling) sample_or_lose(m, step, true);
}

Graph* find_graph(pen_model& m, const DecodeShape& step) {
  if (step.num_seqs > MAX_GRAPH_SEQS) return nullptr;
  // Sequences count before blocks in the order of the map, so the graph of the step's own shape comes first.
  for (auto at = m.graphs.lower_bound({step.num_seqs, step.num_blocks, false}); at != m.graphs.end(); ++at) {
    const auto [seqs, blocks, sampling] = at->first;
    if (seqs > MORE_SEQS * step.num_seqs) return nullptr;
    const bool fits = blocks >= step.num_blocks && blocks <= MORE_BLOCKS * step.num_blocks && sampling == step.sampling;
    if (fits && at->second.exec) return &at->second;
  }
  return nullptr;
}

void run_graph(pen_model& m, const pen_kv& kv, const Step& step, Graph& graph) {
  const cudaError_t launched = cudaGraphLaunch(graph.exec, m.stream.handle);
  if (launched == cudaSuccess) return;
  if (launched != cudaErrorMemoryAllocation) check(launched, "graph");
  cudaGetLastError();
  graph.drop();
  run(m, kv, step, graph.shape.sampling);
}

void warm_up(pen_model& m, const pen_kv& kv) {
  const int blocks = round_blocks(1, kv.block_size);
  for (int tokens = 2; tokens <= int(m.desc.max_batch_tokens); tokens *= 2) run_padding(m, kv, Padding(m, kv, tokens, 1, blocks, tokens));
  for (const int seqs : graph_seqs(m)) {
    const Padding padding(m, kv, seqs, seqs, blocks);
    run_padding(m, kv, padding);
    if (!is_captured(m, seqs, blocks, true)) capture(m, kv, padding, true);
  }
}

Captured capture_rest(pen_model& m, const pen_kv& kv, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  const auto in_time = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; };
  const size_t free = free_memory();
  const int least = round_blocks(1, kv.block_size), most = round_blocks(int(m.desc.max_blocks), kv.block_size);
  Captured made{0, 0};
  bool more = true;
  for (int blocks = least; blocks <= most; blocks *= 2) {
    bool loaded = blocks == least;
    for (const bool sampling : {true, false}) {
      for (const int seqs : graph_seqs(m)) {
        made.wanted++;
        const bool is_new = !is_captured(m, seqs, blocks, sampling);
        if (is_new) more = more && in_time() && free_memory() + GRAPH_MEMORY > free;
        if (is_new && more) {
          const Padding padding(m, kv, seqs, seqs, blocks);
          // Longer contexts have other kernels.
          if (!loaded) run_padding(m, kv, padding);
          loaded = true;
          more = capture(m, kv, padding, sampling);
        }
        made.graphs += is_captured(m, seqs, blocks, sampling);
      }
    }
  }
  check(cudaStreamSynchronize(m.stream.handle), "uploading graphs");
  return made;
}

}  // namespace pen
