// Takes picture encoders and language models in turns.
#include "turns.h"

#include <algorithm>
#include <map>
#include <memory>

#include "context.h"
#include "model.h"
#include "program.h"

namespace pen {

namespace {

using std::chrono::microseconds;

// A slice takes this share of the time between two steps, so that a step with a slice takes less than one and a half times as long.
constexpr float SLICE_SHARE = 0.35f;
// Bounds of a slice [µs]. Without steps, slices are long, and one is queued while another one runs.
constexpr float SHORTEST = 50.0f, LONGEST = 1000.0f;
// A model runs no steps if its last one was submitted so long ago.
constexpr auto PAUSE = microseconds(10000);
// A slice changes the times between so many steps: two are in flight.
constexpr int UNDISTURBED = 3;

}  // namespace

void PictureWork::queue(cudaStream_t stream, float budget) {
  PictureMemory& memory = *model.pictures;
  if (memory.last != stream) check(cudaStreamWaitEvent(stream, memory.done.handle), "the order of slices");
  const size_t first = next;
  for (float spent = 0.0f; next < costs.size() && (next == first || spent + costs[next] <= budget); next++) spent += costs[next];
  run_program(model, step, pictures, {stream, first, next});
  check(cudaEventRecord(memory.done.handle, stream), "event");
  memory.last = stream;
}

Turns& Turns::of(int device) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<Turns>> all;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Turns>& turns = all[device];
  if (!turns) turns = std::make_unique<Turns>();
  return *turns;
}

bool Turns::steps_follow() const { return last_step_ != Clock::time_point{} && Clock::now() - last_step_ < PAUSE; }

void Turns::before_step(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto passed = std::chrono::duration<float, std::micro>(now - last_step_).count();
  // Steps behind slices and pauses say nothing about the steps' own time.
  const bool is_own = since_slice_ >= UNDISTURBED && passed < float(PAUSE.count());
  if (is_own) between_ = between_ == 0.0f ? passed : 0.9f * between_ + 0.1f * passed;
  last_step_ = now;
  since_slice_ = waiting_ ? 0 : since_slice_ + 1;
  if (!waiting_) return;
  try {
    waiting_->queue(stream, std::clamp(SLICE_SHARE * between_, SHORTEST, LONGEST));
  } catch (...) {
    // The picture fails, and the step goes on. A fault of the device comes back with the step's own calls.
    waiting_->has_failed = true;
  }
  if (waiting_->is_queued() || waiting_->has_failed) waiting_ = nullptr;
  changed_.notify_all();
}

void Turns::run(PictureWork& work, cudaStream_t own) {
  const std::lock_guard turn(encoders_);
  Event ends[2];  // of the last slices
  int slice = 0;
  std::unique_lock lock(mutex_);
  while (!work.is_queued()) {
    if (steps_follow()) {
      waiting_ = &work;
      changed_.wait_for(lock, PAUSE, [&] { return waiting_ != &work; });
      if (waiting_ == &work) waiting_ = nullptr;
      if (work.has_failed) throw StatusError(PEN_INTERNAL, "a slice of a picture's work could not be queued");
      continue;
    }
    work.queue(own, LONGEST);
    check(cudaEventRecord(ends[slice % 2].handle, own), "event");
    // A step that begins meanwhile waits for two slices at most. An event that was never recorded has ended.
    lock.unlock();
    check(cudaEventSynchronize(ends[++slice % 2].handle), "pictures");
    lock.lock();
  }
}

}  // namespace pen
