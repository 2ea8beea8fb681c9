// A GPU: its properties, and which kernels have been set up on it.
#pragma once

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "error.h"
#include "shape.h"

namespace pen {

class Device : public DeviceShape {
 public:
  const int id;

  explicit Device(int id) : id(id) {
    const auto ask = [&](cudaDeviceAttr attribute, const char* what) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, attribute, id), what);
      return value;
    };
    major = ask(cudaDevAttrComputeCapabilityMajor, "compute capability");
    multiprocessors = ask(cudaDevAttrMultiProcessorCount, "multiprocessor count");
    shared_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, "shared memory of a block");
    shared_multiprocessor = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, "shared memory of a multiprocessor");
    shared_reserved = ask(cudaDevAttrReservedSharedMemoryPerBlock, "reserved shared memory");
  }
  Device(const Device&) = delete;

  // Runs `set_up` when this device first uses the kernel. Not done at start, because setting an attribute loads the kernel's code.
  template <class... Params, class SetUp>
  void first_use(void (*kernel)(Params...), SetUp set_up) const {
    const std::lock_guard lock(mutex_);
    const void* key = reinterpret_cast<const void*>(kernel);
    if (used_.count(key)) return;
    set_up();
    used_.insert(key);
  }

  // Returns what `find` computes for the kernel. `find` runs once per kernel.
  template <class... Params, class Find>
  int known(void (*kernel)(Params...), Find find) const {
    const std::lock_guard lock(mutex_);
    const auto [entry, fresh] = known_.try_emplace(reinterpret_cast<const void*>(kernel));
    if (fresh) entry->second = find();
    return entry->second;
  }

  // The attributes of the kernel's code as compiled for this device.
  template <class... Params>
  cudaFuncAttributes compiled(void (*kernel)(Params...)) const {
    const std::lock_guard lock(mutex_);
    const auto [entry, fresh] = compiled_.try_emplace(reinterpret_cast<const void*>(kernel));
    if (fresh) check(cudaFuncGetAttributes(&entry->second, kernel), "kernel attributes");
    return entry->second;
  }

  // Whether this device runs a kernel's sm_90a code. Compiled without that architecture's instructions, the body is empty and takes few
  // registers.
  template <class... Params>
  bool has_sm90a(void (*kernel)(Params...)) const {
    if (major != 9) return false;
    const cudaFuncAttributes attributes = compiled(kernel);
    return attributes.binaryVersion == 90 && attributes.numRegs > 64;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::unordered_set<const void*> used_;
  mutable std::unordered_map<const void*, int> known_;
  mutable std::unordered_map<const void*, cudaFuncAttributes> compiled_;
};

// Allows a kernel `bytes` of dynamic shared memory.
template <class... Params>
void allow_shared(void (*kernel)(Params...), int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory of a kernel");
}

// Asks for the largest share of shared memory, and the smallest L1, while the kernel runs.
template <class... Params>
void prefer_shared(void (*kernel)(Params...)) {
  const auto attribute = cudaFuncAttributePreferredSharedMemoryCarveout;
  check(cudaFuncSetAttribute(kernel, attribute, cudaSharedmemCarveoutMaxShared), "carveout of a kernel");
}

// Allows a kernel all the shared memory that the device offers per block.
template <class... Params>
void set_up(const Device& device, void (*kernel)(Params...)) {
  device.first_use(kernel, [&] { allow_shared(kernel, device.shared_block), prefer_shared(kernel); });
}

// Computes how many clusters of `cluster` blocks along x run at the same time, in a grid of `blocks`.
template <class... Params>
cudaError_t active_clusters(int& clusters, void (*kernel)(Params...), int cluster, int blocks, int threads, size_t shared) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
}

}  // namespace pen
