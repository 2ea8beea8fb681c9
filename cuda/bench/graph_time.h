// Times kernels that follow one another in a graph, as in a decode step of the engine.
#pragma once

#include <algorithm>
#include <vector>

#include "gpu.h"

namespace pen::bench {

constexpr int WARM_UPS = 4;  // runs of a graph that are not counted

// Microseconds that all launches of `queue` on `stream` take as a graph: the median of `runs`.
template <class Queue>
double graph_us(cudaStream_t stream, int runs, Queue queue) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  queue();  // sets the kernels' attributes
  check(cudaStreamSynchronize(stream), "first run");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin capture");
  queue();
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int run = 0; run < WARM_UPS + runs; run++) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(executable, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "timed run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (run >= WARM_UPS) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3;
}

}  // namespace pen::bench
