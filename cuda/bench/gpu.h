// The GPU that a bench program runs on.
#pragma once

#include "../device/launch.h"

namespace pen::bench {

inline const Device& gpu() {
  static const Device device(0);
  return device;
}

}  // namespace pen::bench
