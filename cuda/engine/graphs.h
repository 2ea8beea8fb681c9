// How a step's kernels are queued: one by one, or as a captured graph.
#pragma once

#include "model.h"

namespace pen {

// The largest number of sequences of a step that runs as a graph.
constexpr int MAX_GRAPH_SEQS = 256;

// The kernels one by one; `sampling`: with the sampling.
void run(pen_model& model, const pen_kv& kv, const Step& step, bool sampling);
// A decode step whose shape is rounded. Graphs are all that a step allocates, except for kernels that warming up did not load. If there
// is no memory for a graph, the step runs without one, and so do all steps of its shape.
void run_graph(pen_model& model, const pen_kv& kv, const Step& step, bool sampling);
// Loads kernels and captures the graphs of short contexts.
void warm_up(pen_model& model, const pen_kv& kv);

}  // namespace pen
