// The kernel that copies state slots.
#pragma once

#include "../device/kernel.cuh"

namespace pen {

constexpr int COPY_THREADS = 256;
constexpr int COPY_AHEAD = 4;  // loads of a thread in flight
constexpr size_t COPY_BLOCKS = 1024;  // most blocks per slot

// Grid: (blocks per slot, pairs). `width`: elements of type T.
template <typename T>
__global__ void __launch_bounds__(COPY_THREADS) copy_states_kernel(T* data, size_t width, const uint32_t* pairs) {
  let_next_start();
  wait_for_previous();
  const T* const from = data + size_t(pairs[2 * blockIdx.y]) * width;
  T* const to = data + size_t(pairs[2 * blockIdx.y + 1]) * width;
  const size_t stride = size_t(gridDim.x) * COPY_THREADS;
  for (size_t at = size_t(blockIdx.x) * COPY_THREADS + threadIdx.x; at < width; at += COPY_AHEAD * stride) {
    T x[COPY_AHEAD];
#pragma unroll
    for (int i = 0; i < COPY_AHEAD; i++) {
      if (at + i * stride < width) x[i] = __ldcg(from + at + i * stride);
    }
#pragma unroll
    for (int i = 0; i < COPY_AHEAD; i++) {
      if (at + i * stride < width) __stcg(to + at + i * stride, x[i]);
    }
  }
}

}  // namespace pen
