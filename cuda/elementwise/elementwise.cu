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
  const bool fours = (args.ffn | args.ld | args.ldh) % 4 == 0 && in_fours(args.gate_up, sizeof(float)) &&
                     in_fours(args.h, sizeof(__half)) &&
                     in_fours(args.gate_bias, sizeof(float)) && in_fours(args.up_bias, sizeof(float));
  if (fours) return launch(activate_kernel<4>, grid(args.ffn / 4, rows), dim3(ELEMENTWISE_THREADS), 0, args);
  launch(activate_kernel<1>, grid(args.ffn, rows), dim3(ELEMENTWISE_THREADS), 0, args);
}

}  // namespace pen
