// Runs and awaits loops.
#include "loop.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace pen {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

volatile int32_t* loop_words(const pen_model& m, const InFlight& f) {
  return f.sampled.as<int32_t>() + size_t(PEN_MAX_LOOP_STEPS) * m.slots.max_rows;
}

// Whether all ids of a loop's next step are there.
bool has_ids(const pen_model& m, const InFlight& f) {
  const volatile int32_t* const ids = f.sampled.as<int32_t>() + size_t(f.loop_collected) * m.slots.max_rows;
  return std::all_of(f.row_of.begin(), f.row_of.end(), [&](int32_t row) { return ids[row] != UNWRITTEN; });
}

// Whether a loop has ended before its next step.
bool has_ended(const pen_model& m, const InFlight& f) {
  const int32_t ended = loop_words(m, f)[LOOP_ENDED];
  return ended != UNWRITTEN && uint32_t(ended) <= f.loop_collected;
}

void rest_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Throws if the device has failed, or if a loop has left the device without its ids.
void check_loop_runs(pen_model& m, const InFlight& f) {
  const cudaError_t state = cudaEventQuery(f.done.handle);
  if (state == cudaErrorNotReady) return;
  check(state, "a loop");
  if (!has_ids(m, f) && !has_ended(m, f)) throw StatusError(PEN_INTERNAL, "a loop has lost its ids");
}

}  // namespace

size_t result_words(int max_rows, size_t max_batch_rows) {
  return std::max(size_t(PEN_MAX_LOOP_STEPS) * max_rows + LOOP_WORDS, max_batch_rows);
}

void set_words(pen_model& m, InFlight& f, uint32_t steps, uint32_t number) {
  volatile int32_t* const words = loop_words(m, f);
  words[LOOP_ENDED] = UNWRITTEN;
  words[LOOP_STEPS] = int32_t(steps);
  words[LOOP_NUMBER] = int32_t(number);
}

void run_loop(pen_model& m, const pen_kv& kv, const GraphShape& shape, InFlight& f) {
  for (uint32_t step = 0; step < f.loop_steps; step++) {
    for (const int32_t row : f.row_of) f.sampled.as<int32_t>()[size_t(step) * m.slots.max_rows + row] = UNWRITTEN;
  }
  set_words(m, f, f.loop_steps, uint32_t(f.step));
  Graph* const loop = m.loops_failed ? nullptr : &loop_of(m, kv, shape);
  const cudaError_t launched = loop && loop->exec ? cudaGraphLaunch(loop->exec, m.stream.handle) : cudaErrorMemoryAllocation;
  if (launched == cudaSuccess) return;
  if (launched != cudaErrorMemoryAllocation) check(launched, "a loop");
  cudaGetLastError();
  // Loops behind this one would begin too early.
  m.loops_failed = true;
  m.advanced = 0;
  loop_words(m, f)[LOOP_ENDED] = 0;
}

void end_loops(pen_model& m) { *m.end_loops.as<volatile uint32_t>() = uint32_t(m.steps); }

// Sleeps through most of the step and looks often towards its end. On a busy host, a thread that sleeps is woken sooner than one that has
// used up its time.
bool await_step(pen_model& m, InFlight& f) {
  const auto is_over = [&] { return has_ids(m, f) || has_ended(m, f); };
  Pace& pace = m.pace;
  if (!is_over()) {
    const auto most = std::chrono::duration_cast<Clock::duration>(pace.step * 0.75 - std::chrono::microseconds(60));
    if (pace.last + most > Clock::now()) std::this_thread::sleep_until(pace.last + most);
    const bool slept_too_long = is_over();
    auto looked = Clock::now();
    while (!is_over()) {
      for (int i = 0; i < 64 && !is_over(); i++) rest_briefly();
      if (Clock::now() - looked < std::chrono::milliseconds(2)) continue;
      check_loop_runs(m, f);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      looked = Clock::now();
    }
    const Seconds took = Clock::now() - pace.last, most_likely = pace.step * 4 + Seconds(0.001);
    pace.step = slept_too_long ? pace.step * 0.95 : pace.step * 0.9 + std::min(took, most_likely) * 0.1;
  }
  pace.last = Clock::now();
  return has_ids(m, f);
}

}  // namespace pen
