// Captures and measures loops.
#include <algorithm>
#include <chrono>

#include "loop.cuh"
#include "loop.h"
#include "program.h"
#include "sampler.h"

namespace pen {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// The first driver whose graphs have WHILE nodes.
constexpr int LOOP_DRIVER = 12040;
// Device memory that the loops of capture_loops() may take, of what pen_model_need() reserves for graphs and code, and time [s].
constexpr size_t LOOP_MEMORY = size_t(128) << 20;
constexpr double LOOP_SECONDS = 1.0;
// There may be so many loops, however few were captured while the model was loaded. The least recently used one makes room for another.
constexpr size_t MOST_LOOPS = 16;
// How much longer a step may take in a loop, as a share of its time from the host, to count as fast.
constexpr double TOLERANCE = 0.005;

cudaGraphNode_t add_while(cudaGraph_t graph, cudaGraphNode_t before, cudaGraphConditionalHandle runs, cudaGraph_t& body) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = runs;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  check(cudaGraphAddNode(&node, graph, &before, nullptr, 1, &params), "a loop's graph");
#else
  check(cudaGraphAddNode(&node, graph, &before, 1, &params), "a loop's graph");
#endif
  body = params.conditional.phGraph_out[0];
  return node;
}

// Captures what `queue` queues into a graph.
template <class Queue>
void capture_to(cudaStream_t stream, cudaGraph_t graph, Queue queue) {
  cudaGraph_t captured = nullptr;
  check(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed), "capturing a loop");
  try {
    queue();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    throw;
  }
  check(cudaStreamEndCapture(stream, &captured), "capturing a loop");
}

// Fills `graph`: a kernel, then WHILE { the steps of a turn }.
void build(pen_model& m, const pen_kv& kv, const GraphShape& shape, int turn, cudaGraph_t graph) {
  const Step step = step_of(m.slots, shape.tokens, bounds_of(shape, kv.block_size));
  Step sampled = step;
  sampled.of_slots = false;  // a kernel of the loop moves the slots on
  cudaGraphConditionalHandle runs;
  check(cudaGraphConditionalHandleCreate(&runs, graph, 0, cudaGraphCondAssignDefault), "a loop's condition");
  capture_to(m.stream.handle, graph, [&] { m.launch(false)(enter_loop_kernel, dim3(1), dim3(1), 0, m.slots, runs); });
  cudaGraphNode_t enters = nullptr;
  size_t count = 1;
  check(cudaGraphGetNodes(graph, &enters, &count), "a loop's graph");
  cudaGraph_t body = nullptr;
  add_while(graph, enters, runs, body);
  const dim3 blocks(ceil_div(shape.tokens, ADVANCE_ROWS)), threads(ADVANCE_ROWS, m.slots.num_groups);
  capture_to(m.stream.handle, body, [&] {
    for (int i = 1; i <= turn; i++) {
      forward(m, kv, step);
      sample_step(m, sampled, kv.paging(), true);
      m.launch(true)(advance_loop_kernel, blocks, threads, 0, m.slots, shape.tokens, kv.paging(), runs, i == turn);
    }
  });
}

// Captures a loop. Leaves `loop` empty if memory is lacking, or if the device refuses the graph.
void capture(pen_model& m, const pen_kv& kv, int turn, Graph& loop) {
  const std::lock_guard alone(device_wide());
  cudaGraph_t graph = nullptr;
  check(cudaGraphCreate(&graph, 0), "a loop's graph");
  try {
    build(m, kv, loop.shape, turn, graph);
    check(cudaGraphInstantiate(&loop.exec, graph, 0), "a loop's graph");
    check(cudaGraphUpload(loop.exec, m.stream.handle), "a loop's graph");
  } catch (const CudaError&) {
    // A fault of the device shows again at the next call.
    loop.drop();
    cudaGetLastError();
  }
  cudaGraphDestroy(graph);
}

// Adds the loop of a shape as the most recently used one. It is empty if it cannot be captured.
Graph& add_loop(pen_model& m, const pen_kv& kv, const GraphShape& shape) {
  m.loops.push_back(std::make_unique<Graph>());
  m.loops.back()->shape = shape;
  capture(m, kv, m.loop_turn, *m.loops.back());
  return *m.loops.back();
}

// The smallest loop that has room for a step of this shape and is not much larger, or the end.
std::vector<std::unique_ptr<Graph>>::iterator larger_loop(pen_model& m, const GraphShape& shape) {
  auto best = m.loops.end();
  for (auto at = m.loops.begin(); at != m.loops.end(); ++at) {
    const bool is_smaller = best == m.loops.end() || (*at)->shape < (*best)->shape;
    if ((*at)->exec && replaces((*at)->shape, shape) && is_smaller) best = at;
  }
  return best;
}

// Measures loops on padding, whose results nobody reads.
class Measurement {
 public:
  Measurement(pen_model& m, const pen_kv& kv) : m_(m), kv_(kv), shape_{false, 1, round_blocks(1, kv.block_size), true} {
    check(cudaEventCreate(&begin_), "event");
    check(cudaEventCreate(&end_), "event");
  }
  ~Measurement() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  // Sets `turn` to the fewest steps per turn that make a loop fast, or to the fastest number of steps.
  void choose(int& turn, double& step_seconds, double& loop_seconds) {
    const auto graph = m_.graphs.find(shape_);
    if (graph == m_.graphs.end() || !graph->second.exec) return;
    const auto step = [&](int count) { return time(count, [&] { launch_steps(graph->second, count); }); };
    step(4);
    const int count = std::clamp(int(SECONDS / step(8)), 16, PEN_MAX_LOOP_STEPS) / MAX_LOOP_TURN * MAX_LOOP_TURN;
    double best = 0;
    for (int i = 1; i <= MAX_LOOP_TURN; i *= 2) {
      Graph loop;
      loop.shape = shape_;
      capture(m_, kv_, i, loop);
      if (!loop.exec) return;
      double of_steps = 0, of_loop = 0;
      for (int round = 0; round < ROUNDS; round++) {
        const double steps = step(count), looped = time(count, [&] { launch_loop(loop, count); });
        if (round == 0 || steps < of_steps) of_steps = steps;
        if (round == 0 || looped < of_loop) of_loop = looped;
      }
      const double ratio = of_loop / of_steps;
      if (best == 0 || ratio < best) best = ratio, turn = i, step_seconds = of_steps, loop_seconds = of_loop;
      if (best <= 1 + TOLERANCE / 2) return;
    }
  }

 private:
  static constexpr double SECONDS = 0.03;  // of a round
  static constexpr int ROUNDS = 3;

  template <class Queue>
  double time(int count, Queue queue) {
    place_rows(m_.launch(false), m_.slots, RowChanges{}, kv_.paging());
    check(cudaStreamSynchronize(m_.stream.handle), "measuring loops");
    check(cudaEventRecord(begin_, m_.stream.handle), "event");
    queue();
    check(cudaEventRecord(end_, m_.stream.handle), "event");
    check(cudaEventSynchronize(end_), "measuring loops");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    return milliseconds * 1e-3 / count;
  }
  void launch_steps(Graph& graph, int count) {
    for (int i = 0; i < count; i++) check(cudaGraphLaunch(graph.exec, m_.stream.handle), "graph");
  }
  void launch_loop(Graph& loop, int count) {
    set_words(m_, m_.ring[0], uint32_t(count), 1);
    check(cudaGraphLaunch(loop.exec, m_.stream.handle), "a loop");
  }

  pen_model& m_;
  const pen_kv& kv_;
  GraphShape shape_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void choose_loops(pen_model& m, const pen_kv& kv, pen_kv_init& init) {
  init.loop_turn = 0;
  init.step_seconds = init.loop_seconds = 0;
  int driver = 0, turn = 0;
  const bool has_loops = cudaDriverGetVersion(&driver) == cudaSuccess && driver >= LOOP_DRIVER && m.has_head() && m.states.empty();
  if (init.resident == PEN_RESIDENT_OFF || !has_loops) return;
  try {
    const std::lock_guard alone(device_wide());
    Measurement(m, kv).choose(turn, init.step_seconds, init.loop_seconds);
  } catch (const CudaError&) {
    // What is not supported leaves no trace. A fault of the device shows again at the next call.
    cudaGetLastError();
    turn = 0;
  }
  const bool is_fast = init.loop_seconds <= (1 + TOLERANCE) * init.step_seconds;
  if (turn > 0 && (is_fast || init.resident == PEN_RESIDENT_ON)) m.loop_turn = turn;
  init.loop_turn = uint32_t(m.loop_turn);
}

Captured capture_loops(pen_model& m, const pen_kv& kv) {
  Captured made{0, 0};
  if (m.loop_turn == 0) return made;
  const auto begin = Clock::now();
  const size_t free = free_memory();
  std::vector<GraphShape> all;
  for (const auto& [shape, graph] : m.graphs) {
    if (!shape.prompt && shape.sampling && graph.exec) all.push_back(shape);
  }
  // Few sequences with long contexts gain as much as many with short ones.
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.tokens * a.blocks < b.tokens * b.blocks; });
  made.wanted = int(all.size());
  for (InFlight& f : m.ring) set_words(m, f, 0, 0);
  for (const GraphShape& shape : all) {
    if (free_memory() + LOOP_MEMORY <= free || Clock::now() - begin >= Seconds(LOOP_SECONDS)) break;
    Graph& loop = add_loop(m, kv, shape);
    // A loop of no steps: the first launch of a graph takes longer.
    place_rows(m.launch(false), m.slots, RowChanges{}, kv.paging());
    if (!loop.exec || cudaGraphLaunch(loop.exec, m.stream.handle) != cudaSuccess) {
      m.loops.pop_back();
      cudaGetLastError();
      break;
    }
    made.graphs++;
  }
  check(cudaStreamSynchronize(m.stream.handle), "the first launches of loops");
  m.most_loops = std::max(MOST_LOOPS, m.loops.size());
  return made;
}

Graph& loop_of(pen_model& m, const pen_kv& kv, const GraphShape& shape) {
  auto at = std::find_if(m.loops.begin(), m.loops.end(), [&](const auto& loop) { return loop->shape == shape; });
  if (at == m.loops.end()) {
    // A capture may wait for a loop that runs, and hold up its tokens. A larger loop does until the next one begins from the host.
    const bool is_behind = std::any_of(std::begin(m.ring), std::end(m.ring), [](const auto& f) { return f.pending && f.loop_steps > 0; });
    at = is_behind ? larger_loop(m, shape) : at;
  }
  if (at == m.loops.end()) {
    if (m.loops.size() >= m.most_loops) m.loops.erase(m.loops.begin());
    return add_loop(m, kv, shape);
  }
  std::rotate(at, at + 1, m.loops.end());
  return *m.loops.back();
}

}  // namespace pen
