// Host side of the linear layers for few tokens, and the choice between the kernels.
#include "linear.h"

namespace pen {

void linear_prefill(const Launch& launch, const Linear& args);

namespace {

template <int MT, int NT>
void run(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), MT);
  launch(linear_kernel<MT, NT>, dim3(groups, ceil_div(args.num_tokens, NT * 8)), dim3(SLICES * WARP), 0, args);
}

}  // namespace

void linear(const Launch& launch, const Linear& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  // More row tiles a block share what is read of x; fewer blocks than the GPU holds would leave it idle.
  if (args.num_tokens <= 8) return run<1, 1>(launch, args);
  if (args.num_tokens <= 16) return run<1, 2>(launch, args);
  if (args.num_tokens <= 32) return tiles >= 512 ? run<2, 4>(launch, args) : run<1, 4>(launch, args);
  if (args.num_tokens <= 64) return tiles >= 1024 ? run<4, 8>(launch, args) : tiles >= 256 ? run<2, 8>(launch, args) : run<1, 8>(launch, args);
  linear_prefill(launch, args);
}

}  // namespace pen
