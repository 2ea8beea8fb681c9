// Captures graphs and queues a step's kernels.
#include "graphs.h"

#include <algorithm>
#include <chrono>

#include "program.h"
#include "sampler.h"

namespace pen {

namespace {

// Device memory that the graphs of capture_rest() may take, of what pen_model_need() reserves for graphs and code.
constexpr size_t GRAPH_MEMORY = size_t(128) << 20;

int rounded(bool prompt, int rows) { return prompt ? round_rows(rows) : round_seqs(rows); }

// The shapes of all graphs with `blocks` blocks, for decode steps or for prompts.
std::vector<GraphShape> shapes(const pen_model& m, bool prompt, int blocks, bool sampling) {
  const int room = prompt ? int(m.desc.max_batch_tokens) : round_seqs(int(m.desc.max_slots));
  std::vector<GraphShape> all;
  for (int n = prompt ? 2 : 1; n <= std::min(room, MAX_GRAPH_TOKENS); n++) {
    const int rows = rounded(prompt, n);
    if (rows <= room && (all.empty() || all.back().tokens != rows)) all.push_back({prompt, rows, blocks, sampling});
  }
  return all;
}

// A step of this shape that is all padding. Its metadata is on the device only after upload(). That of decode steps is always in the
// slots' rows.
struct Padding {
  GraphShape shape;
  MetaLayout layout;
  Step step;
  Padding(pen_model& m, const pen_kv& kv, const GraphShape& shape)
      : shape(shape),
        layout(shape.tokens, shape.num_seqs(), shape.num_seqs(), shape.blocks, int(m.groups.size()), false, false),
        step(shape.prompt ? step_at(m.scratch.meta.as<uint8_t>(), layout, bounds_of(shape, kv.block_size))
                          : step_of(m.slots, shape.tokens, bounds_of(shape, kv.block_size))) {}
  void upload(pen_model& m, const pen_kv& kv) const {
    if (!shape.prompt) return place_rows(m.launch(false), m.slots, RowChanges{}, kv.paging());
    const InFlight& flight = m.ring[0];
    const uint32_t none = 0;
    pen_batch nothing{};
    nothing.cu_seqlens_q = &none;
    fill_metadata(flight.meta.as<uint8_t>(), layout, nothing, flight.sampled.as<int32_t>(), {}, kv.shape());
    check(cudaMemcpyAsync(m.scratch.meta.as<uint8_t>(), flight.meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle),
          "copying metadata");
  }
};

// Runs a padding step so that its kernels are loaded. Later no step may wait for that, or fail for lack of memory.
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
    if (graph.shape.sampling) sample_step(m, step, kv.paging(), true);
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
  // Otherwise the first launch would upload it.
  check(cudaGraphUpload(graph.exec, m.stream.handle), "graph upload");
}

// Captures the graph of a padding step. Returns false if memory is lacking.
bool capture(pen_model& m, const pen_kv& kv, const Padding& padding) {
  Graph& graph = m.graphs[padding.shape];
  graph.shape = padding.shape;
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

bool is_captured(const pen_model& m, const GraphShape& shape) {
  const auto at = m.graphs.find(shape);
  return at != m.graphs.end() && at->second.exec;
}

}  // namespace

size_t free_memory() {
  const std::lock_guard alone(device_wide());
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "device memory");
  return free;
}

bool replaces(const GraphShape& has, const GraphShape& wanted) {
  // Beyond that, launching the kernels one by one costs less than the padding and the longer copy of block tables.
  constexpr int MORE_ROWS = 2, MORE_BLOCKS = 4;
  const bool rows = has.tokens >= wanted.tokens && has.tokens <= MORE_ROWS * wanted.tokens;
  const bool blocks = has.blocks >= wanted.blocks && has.blocks <= MORE_BLOCKS * wanted.blocks;
  return rows && blocks && has.prompt == wanted.prompt && has.sampling == wanted.sampling;
}

void run(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  forward(m, kv, step);
  if (sampling) sample_or_lose(m, step, kv.paging(), true);
}

StepBounds bounds_of(const GraphShape& shape, int block_size) {
  const int context = shape.blocks * block_size;
  return {shape.prompt ? shape.tokens : 1, context, 0, 0, context};
}

Graph* find_graph(pen_model& m, const GraphShape& step, int block_size) {
  if (step.tokens > MAX_GRAPH_TOKENS) return nullptr;
  const int rows = rounded(step.prompt, step.tokens), blocks = round_blocks(step.blocks, block_size);
  // The map orders rows before blocks, so the graph of the step's own shape comes first.
  const GraphShape wanted{step.prompt, rows, blocks, step.sampling};
  for (auto at = m.graphs.lower_bound({step.prompt, rows, blocks, false}); at != m.graphs.end(); ++at) {
    if (replaces(at->first, wanted) && at->second.exec) return &at->second;
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

Graph* find_adapted_graph(pen_model& m, const pen_kv& kv, const GraphShape& step, bool covered) {
  constexpr int WORTH_A_CAPTURE = 3, MOST_GRAPHS = 64;
  if (step.tokens > MAX_GRAPH_TOKENS) return nullptr;
  const GraphShape shape{false, round_seqs(step.tokens), round_blocks(step.blocks, kv.block_size), step.sampling};
  AdaptedGraph& of = m.adapted_graphs[{shape, covered}];
  if (of.graph.exec) return &of.graph;
  of.num_steps++;
  // Without memory for it, it is not tried again.
  if (of.num_steps != WORTH_A_CAPTURE || m.adapted_graphs.size() > MOST_GRAPHS) return nullptr;
  of.graph.shape = shape;
  try {
    m.adapters.begin_capture(covered);
    record(m, kv, step_of(m.slots, shape.tokens, bounds_of(shape, kv.block_size)), of.graph);
  } catch (const CudaError& error) {
    of.graph.drop();
    if (error.code != cudaErrorMemoryAllocation) throw;
    cudaGetLastError();
  }
  return of.graph.exec ? &of.graph : nullptr;
}

void warm_up(pen_model& m, const pen_kv& kv) {
  if (!m.has_head()) return;
  const int blocks = round_blocks(1, kv.block_size);
  for (int tokens = 2; tokens <= int(m.desc.max_batch_tokens); tokens *= 2) {
    run_padding(m, kv, Padding(m, kv, {true, tokens, blocks, true}));
  }
  for (const GraphShape& shape : shapes(m, false, blocks, true)) {
    const Padding padding(m, kv, shape);
    run_padding(m, kv, padding);
    if (!is_captured(m, shape)) capture(m, kv, padding);
  }
}

Captured capture_rest(pen_model& m, const pen_kv& kv, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  const auto in_time = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; };
  const size_t free = free_memory();
  const int least = round_blocks(1, kv.block_size), most = round_blocks(int(m.desc.max_blocks), kv.block_size);
  Captured made{0, 0};
  if (!m.has_head()) return made;
  bool more = true;
  const auto capture_all = [&](const std::vector<GraphShape>& all, bool kernels_are_loaded) {
    for (const GraphShape& shape : all) {
      made.wanted++;
      const bool is_new = !is_captured(m, shape);
      if (is_new) more = more && in_time() && free_memory() + GRAPH_MEMORY > free;
      if (is_new && more) {
        const Padding padding(m, kv, shape);
        if (!kernels_are_loaded) run_padding(m, kv, padding);
        kernels_are_loaded = true;
        more = capture(m, kv, padding);
      }
      made.graphs += is_captured(m, shape);
    }
  };
  for (int blocks = least, i = 0; blocks <= most; blocks *= 2, i++) {
    // Decode steps over longer contexts use other kernels.
    capture_all(shapes(m, false, blocks, true), blocks == least);
    capture_all(shapes(m, false, blocks, false), true);
    // The graph of a lone prompt takes less time than launching its kernels one by one. Alongside decoding sequences, a graph gains
    // nothing: a step is queued while the previous one runs. Every other length is enough, because longer graphs replace the missing ones
    // (MORE_BLOCKS).
    if (i % 2 == 0 || blocks == most) capture_all(shapes(m, true, blocks, true), true);
  }
  check(cudaStreamSynchronize(m.stream.handle), "uploading graphs");
  return made;
}

}  // namespace pen
