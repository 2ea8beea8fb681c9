// Errors of CUDA calls, and constants and helpers that every file needs.
#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include <stdexcept>
#include <string>

namespace pen {

// A failed CUDA call. It becomes PEN_CUDA or PEN_OUT_OF_MEMORY at the C interface.
struct CudaError : std::runtime_error {
  cudaError_t code;
  CudaError(cudaError_t code, const char* what) : std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code)), code(code) {}
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(code, what);
}

constexpr int WARP = 32;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr size_t round_up(size_t a, size_t b) { return (a + b - 1) / b * b; }

}  // namespace pen
