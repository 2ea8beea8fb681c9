// The kernels of loop.h.
#pragma once

#include "rows.cuh"

namespace pen {

// The words of Slots::loop.
enum { LOOP_LEFT, LOOP_DONE, LOOP_CURRENT };  // steps to run, steps that have run, the loop's number

__device__ __forceinline__ uint32_t read_from_host(const uint32_t* word) { return *static_cast<const volatile uint32_t*>(word); }

// Whether the host wants the loop of this number to end. Numbers wrap around.
__device__ __forceinline__ bool shall_end(const Slots& s, uint32_t number) { return int32_t(read_from_host(s.end_loops) - number) >= 0; }

// Tells the host that a loop has ended after `done` steps, and moves on to the next place for results.
__device__ __forceinline__ void leave_loop(const Slots& s, uint32_t turn, uint32_t done) {
  int32_t* const words = s.flights[turn] + PEN_MAX_LOOP_STEPS * s.max_rows;
  const uint32_t next = (turn + 1) % NUM_FLIGHTS;
  *s.turn = next;
  *s.results = s.flights[next];
  __threadfence_system();
  static_cast<volatile int32_t*>(words)[LOOP_ENDED] = int32_t(done);
}

// Begins a loop, unless the host wants none any more. Grid and block: one thread.
__global__ void enter_loop_kernel(Slots s, cudaGraphConditionalHandle runs) {
  const uint32_t turn = *s.turn;
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(s.flights[turn] + PEN_MAX_LOOP_STEPS * s.max_rows);
  const uint32_t steps = read_from_host(words + LOOP_STEPS), number = read_from_host(words + LOOP_NUMBER);
  s.loop[LOOP_LEFT] = steps;
  s.loop[LOOP_DONE] = 0;
  s.loop[LOOP_CURRENT] = number;
  const bool ends = steps == 0 || shall_end(s, number);
  if (ends) leave_loop(s, turn, 0);
  cudaGraphSetConditional(runs, ends ? 0 : 1);
}

// The results of a loop's steps lie one behind the other. `decides`: the step is the last one of a turn.
struct LoopStep {
  cudaGraphConditionalHandle runs;
  bool decides;
  uint32_t turn, left, done;
  int32_t* results;
  bool ends;

  // The read from the host's memory takes a microsecond or two, which the wait covers.
  __device__ __forceinline__ void read(const Slots& s) {
    turn = *s.turn;
    left = s.loop[LOOP_LEFT] - 1;
    done = s.loop[LOOP_DONE] + 1;
    results = *s.results + s.max_rows;
    ends = decides && (left == 0 || shall_end(s, s.loop[LOOP_CURRENT]));
  }
  __device__ __forceinline__ void write(const Slots& s) const {
    s.loop[LOOP_LEFT] = left;
    s.loop[LOOP_DONE] = done;
    *s.results = results;
    if (decides) cudaGraphSetConditional(runs, ends ? 0 : 1);
    if (ends) leave_loop(s, turn, done);
  }
};

// Grid and block as advance_rows() says.
__global__ void advance_loop_kernel(Slots s, int num_rows, Paging paging, cudaGraphConditionalHandle runs, bool decides) {
  LoopStep step{};
  step.runs = runs;
  step.decides = decides;
  advance_rows(s, num_rows, paging, step);
}

}  // namespace pen
