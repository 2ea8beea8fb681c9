// Launches convolutions and copies of states.
#include "convolution.cuh"
#include "states.cuh"

namespace pen {

void convolve(const Launch& launch, const Convolution& p, const StepView& step) {
  if (step.num_tokens == 0) return;
  const int rows = step.max_query > 1 ? CONVOLUTION_ROWS : 1;
  const dim3 grid(ceil_div(p.channels, CONVOLUTION_THREADS), ceil_div(step.num_tokens, rows)), block(CONVOLUTION_THREADS);
  if (p.taps == 2) return launch(convolve_kernel<2>, grid, block, 0, p, step, rows);
  if (p.taps == 3) return launch(convolve_kernel<3>, grid, block, 0, p, step, rows);
  if (p.taps == 4) return launch(convolve_kernel<4>, grid, block, 0, p, step, rows);
  launch(convolve_kernel<0>, grid, block, 0, p, step, rows);
}

void copy_states(const Launch& launch, float* data, size_t width, const uint32_t* pairs, int n) {
  if (n == 0 || width == 0) return;
  const bool wide = width % 4 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const size_t blocks = (width - 1) / (COPY_THREADS * (wide ? 4 : 1) * COPY_AHEAD) + 1;
  const dim3 grid(unsigned(blocks < COPY_BLOCKS ? blocks : COPY_BLOCKS), n), block(COPY_THREADS);
  if (wide) return launch(copy_states_kernel<float4>, grid, block, 0, reinterpret_cast<float4*>(data), width / 4, pairs);
  launch(copy_states_kernel<float>, grid, block, 0, data, width, pairs);
}

}  // namespace pen
