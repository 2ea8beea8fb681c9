// Staging buffers, through which tensors pass to the device one piece at a time.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "context.h"

namespace pen {

constexpr size_t STAGE_BYTES = 8 << 20;
constexpr int NUM_STAGES = 16;
constexpr size_t STAGING_BYTES = NUM_STAGES * STAGE_BYTES;

struct Stage {
  Pinned pinned;
  Buffer device;
  Stream stream;
  Event done;
  bool used = false;
  explicit Stage(pen_ctx& ctx) : pinned(STAGE_BYTES), device(ctx.memory, STAGE_BYTES) {}
};

struct Staging {
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<Stage*> free;  // the least recently used one is at the back
  std::mutex mutex;
  std::condition_variable available;

  explicit Staging(pen_ctx& ctx) {
    for (int i = 0; i < NUM_STAGES; i++) {
      stages.push_back(std::make_unique<Stage>(ctx));
      free.push_back(stages.back().get());
    }
  }
};

// Holds a stage while one piece passes through it.
class Lease {
 public:
  explicit Lease(Staging& staging) : staging_(staging) {
    std::unique_lock lock(staging.mutex);
    staging.available.wait(lock, [&] { return !staging.free.empty(); });
    stage = staging.free.back();
    staging.free.pop_back();
  }
  ~Lease() {
    {
      std::lock_guard lock(staging_.mutex);
      staging_.free.insert(staging_.free.begin(), stage);
    }
    staging_.available.notify_one();
  }
  Stage* stage;

 private:
  Staging& staging_;
};

}  // namespace pen
