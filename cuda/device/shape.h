// The properties of a device that the choice of kernels depends on: plain values, so that the choice for any device can be tested.
#pragma once

namespace pen {

struct DeviceShape {
  int major = 0;                  // compute capability
  int multiprocessors = 0;
  int shared_block = 0;           // bytes of shared memory that one block may have
  int shared_multiprocessor = 0;  // bytes of shared memory of one multiprocessor
  int shared_reserved = 0;        // part of it that the runtime keeps for itself per block
};

}  // namespace pen
