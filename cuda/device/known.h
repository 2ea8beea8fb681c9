// One device of each architecture, so that the choice of kernels for it can be told without such a device.
#pragma once

#include "shape.h"

namespace pen {

struct KnownDevice {
  const char *arch, *name;
  DeviceShape shape;
  int clusters;  // of two blocks of linear/hopper.cuh that run at the same time; 0: it does not run the kernels of sm_90a
};
constexpr KnownDevice KNOWN_DEVICES[] = {
    {"sm_90a", "H100", {9, 132, 232448, 233472, 1024}, 66},
    {"sm_89", "L4", {8, 58, 101376, 102400, 1024}, 0},
    {"sm_86", "A10", {8, 72, 101376, 102400, 1024}, 0},
    {"sm_80", "A100", {8, 108, 166912, 167936, 1024}, 0},
    {"sm_75", "T4", {7, 40, 65536, 65536, 0}, 0},
};

}  // namespace pen
