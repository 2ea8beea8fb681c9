// Launches elementwise ops.
#include "elementwise.cuh"

namespace pen {

namespace {

dim3 grid(int cols, int rows) { return dim3(ceil_div(cols, ELEMENTWISE_THREADS), rows); }

}  // namespace

void soft_cap(const Launch& launch, float* x, float cap, int rows, int cols) {
  launch(soft_cap_kernel, grid(cols, rows), dim3(ELEMENTWISE_THREADS), 0, x, cols, cap);
}

void activate(const Launch& launch, const Activate& args, int rows) {
  launch(activate_kernel, grid(args.ffn, rows), dim3(ELEMENTWISE_THREADS), 0, args);
}

}  // namespace pen
