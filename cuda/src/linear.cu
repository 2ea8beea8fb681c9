// Host side of the linear layers for few tokens, and the choice between the kernels.
#include "linear.h"

namespace pen {

void linear_prefill(const Launch& launch, const Linear& args);

namespace {

// Normalised rows that a block may keep.
constexpr int MAX_NORMED_HALVES = 2048;

template <int MT, int NT, bool NORM = false>
void run(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), MT);
  const size_t normed = NORM ? size_t(args.num_tokens) * norm_stride(args.w[0].cols) * 2 : 0;
  constexpr size_t most = LinearShared<MT, NT>::fixed + (MAX_NORMED_HALVES + 8 * 8) * 2;
  static const bool once = [] {
    check(cudaFuncSetAttribute(linear_kernel<MT, NT, NORM>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(most)), "shared memory");
    return true;
  }();
  (void)once;
  launch(linear_kernel<MT, NT, NORM>, dim3(groups, ceil_div(args.num_tokens, NT * 8)), dim3(SLICES * WARP), LinearShared<MT, NT>::fixed + normed, args);
}

}  // namespace

bool takes_norm(int num_tokens, int cols) { return num_tokens <= 8 && num_tokens * int(round_up(cols, CHUNK)) <= MAX_NORMED_HALVES; }

void linear(const Launch& launch, const Linear& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  // More row tiles a block share what is read of x; fewer blocks than the GPU holds would leave it idle.
  if (args.norm.x) return run<1, 1, true>(launch, args);
  if (args.num_tokens <= 8) return run<1, 1>(launch, args);
  if (args.num_tokens <= 16) return run<1, 2>(launch, args);
  if (args.num_tokens <= 32) return tiles >= 512 ? run<2, 4>(launch, args) : run<1, 4>(launch, args);
  if (args.num_tokens <= 64) return tiles >= 512 ? run<2, 8>(launch, args) : run<1, 8>(launch, args);
  linear_prefill(launch, args);
}

}  // namespace pen
