// What decisions about kernels know of a device: plain values, so that they can be made for a device that is not there.
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
