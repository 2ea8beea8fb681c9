// Launches kernels.
#pragma once

#include "device.h"

namespace pen {

// Where kernels run, and how they follow one another. `overlap`: a kernel may start before its predecessor has ended (programmatic
// dependent launch, sm_90). It must call wait_for_previous() before it reads what an earlier kernel wrote, and before it writes what an
// earlier kernel may still read.
struct Launch {
  const Device& device;
  cudaStream_t stream = nullptr;
  bool overlap = false;
  int cluster = 1;  // blocks along x that can access each other's shared memory (sm_90)

  template <typename... Params, typename... Args>
  void operator()(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) const {
    cudaLaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (overlap) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = unsigned(cluster);
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      count++;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "kernel launch");
  }
};

}  // namespace pen
