// Errors of CUDA calls.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "numbers.h"

namespace pen {

// A failed CUDA call. It becomes PEN_CUDA or PEN_OUT_OF_MEMORY at the C interface.
struct CudaError : std::runtime_error {
  cudaError_t code;
  CudaError(cudaError_t code, const char* what) : std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code)), code(code) {}
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(code, what);
}

}  // namespace pen
