// Queues a step's kernels, one by one or as a captured graph. Graphs are captured only while a model is loaded, because a capture takes
// milliseconds.
#pragma once

#include "model.h"

namespace pen {

// The most rows of a step that runs as a graph. Larger steps take so long that a graph would gain little.
constexpr int MAX_GRAPH_TOKENS = 256;

// Launches the kernels one by one. `sampling`: including the sampling.
void run(pen_model& model, const pen_kv& kv, const Step& step, bool sampling);
// Whether a graph of a shape can run the steps of another one, without being much larger.
bool replaces(const GraphShape& has, const GraphShape& wanted);
// The device's free memory [bytes].
size_t free_memory();
// Finds the smallest graph that has room for a step of this shape. Returns null if there is none, or only much larger ones.
Graph* find_graph(pen_model& model, const GraphShape& step, int block_size);
// The bounds of a step that runs as a graph of this shape.
StepBounds bounds_of(const GraphShape& shape, int block_size);
// Runs a step that has the graph's shape. If memory to launch the graph is lacking, drops the graph and launches the kernels one by one.
void run_graph(pen_model& model, const pen_kv& kv, const Step& step, Graph& graph);
// Finds the graph of a decode step whose rows have adapters, and captures it at the step's third time. Null if there is none.
Graph* find_adapted_graph(pen_model& model, const pen_kv& kv, const GraphShape& step, bool covered);
// Loads kernels and captures the graphs of decode steps over short contexts.
void warm_up(pen_model& model, const pen_kv& kv);

struct Captured {
  int graphs, wanted;
};
// Captures the other graphs, those of long contexts last, until `seconds` have passed or the memory reserved for them is used up.
Captured capture_rest(pen_model& model, const pen_kv& kv, double seconds);

}  // namespace pen
