// How a step's kernels are queued: one by one, or as a captured graph. Graphs are captured while a model is loaded and never later, since
// that takes milliseconds.
#pragma once

#include "model.h"

namespace pen {

// The most rows of a step that runs as a graph. Larger ones take so long that a graph would gain little.
constexpr int MAX_GRAPH_TOKENS = 256;

// The kernels one by one; `sampling`: with the sampling.
void run(pen_model& model, const pen_kv& kv, const Step& step, bool sampling);
// The smallest graph that has room for a step of this shape. Null: there is none, or only much larger ones.
Graph* find_graph(pen_model& model, const GraphShape& step, int block_size);
// The bounds of a step that runs as a graph of this shape.
StepBounds bounds_of(const GraphShape& shape, int block_size);
// A step whose shape is the graph's. If there is no memory to launch the graph, the step runs without it, and so do later ones.
void run_graph(pen_model& model, const pen_kv& kv, const Step& step, Graph& graph);
// Loads kernels and captures the graphs of decode steps over short contexts.
void warm_up(pen_model& model, const pen_kv& kv);

struct Captured {
  int graphs, wanted;
};
// Captures the other graphs, those of long contexts last, until `seconds` have passed or they take more memory than is set aside for them.
Captured capture_rest(pen_model& model, const pen_kv& kv, double seconds);

}  // namespace pen
