// A device that a caller of the C interface has opened.
#pragma once

#include <memory>
#include <string>

#include "../device/launch.h"
#include "memory.h"
#include "penstock.h"

struct pen_ctx {
  pen::Device device;
  std::string name;
  pen::Memory memory;
  std::atomic<bool> lost{false};  // a call failed with PEN_CUDA, so every later call fails, too

  pen_ctx(int id, std::string name) : device(id), name(std::move(name)) {}
};

namespace pen {

// Lock for work that affects the whole device: waiting for it, allocating, copying outside of a stream, and capturing a graph. The others
// would break a capture, even from another model's thread.
inline std::recursive_mutex& device_wide() {
  static std::recursive_mutex mutex;
  return mutex;
}

// An error with a status of its own.
struct StatusError : std::runtime_error {
  pen_status status;
  StatusError(pen_status status, const std::string& what) : std::runtime_error(what), status(status) {}
};

}  // namespace pen
