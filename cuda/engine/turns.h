// Takes picture encoders and language models of one device in turns. While a model runs steps, an encoder's kernels are queued on the
// model's stream in short slices, one slice before a step. So a step waits for one slice, and no kernel of a step competes with an
// encoder's blocks for multiprocessors. While no model runs steps, the encoder queues its slices on its own stream.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "encode.h"

namespace pen {

// A picture encoder's step that has not ended.
struct PictureWork {
  pen_model& model;
  const Step& step;
  const PictureStep& pictures;
  std::vector<float> costs;  // of each instruction, an estimate [µs]
  size_t next = 0;           // the first instruction that is not queued
  bool has_failed = false;   // an instruction could not be queued on a model's stream

  bool is_queued() const { return next == costs.size(); }
  // Queues instructions on `stream` until their costs reach `budget`, at least one. They follow all earlier ones, whose stream may have
  // been another.
  void queue(cudaStream_t stream, float budget);
};

class Turns {
 public:
  static Turns& of(int device);

  // Queues a slice of waiting work before a model's step.
  void before_step(cudaStream_t stream);
  // Queues all of a step's work, whoever's turn it is. Returns when everything is queued.
  void run(PictureWork& work, cudaStream_t own);

 private:
  using Clock = std::chrono::steady_clock;

  bool steps_follow() const;

  std::mutex encoders_;  // held by the one whose turn it is among encoders
  std::mutex mutex_;     // of what follows
  std::condition_variable changed_;
  PictureWork* waiting_ = nullptr;
  Clock::time_point last_step_{};
  float between_ = 0.0f;  // steps, without slices, lately [µs]
  int since_slice_ = 0;    // steps
};

}  // namespace pen
