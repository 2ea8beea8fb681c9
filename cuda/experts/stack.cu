// Choices that follow from a row's number: the kernel and its launch.
#include "stack.h"

#include "../device/kernel.cuh"
#include "../device/step.h"

namespace pen {

namespace {

constexpr int STACK_THREADS = 128;

// Grid: (rows)
__global__ void __launch_bounds__(STACK_THREADS) choose_heads_kernel(const uint32_t* slot_mapping, int32_t* chosen, int heads) {
  let_next_start();
  wait_for_previous();
  const bool padding = slot_mapping[blockIdx.x] == NO_SLOT;
  for (int head = threadIdx.x; head < heads; head += STACK_THREADS) chosen[size_t(blockIdx.x) * heads + head] = padding ? -1 : head;
}

}  // namespace

void choose_heads(const Launch& launch, const uint32_t* slot_mapping, int32_t* chosen, int num_rows, int heads) {
  launch(choose_heads_kernel, dim3(num_rows), dim3(STACK_THREADS), 0, slot_mapping, chosen, heads);
}

}  // namespace pen
