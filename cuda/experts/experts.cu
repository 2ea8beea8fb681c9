// Experts: the launches.
#include "experts.cuh"

namespace pen {

namespace {

template <int MT, int NT>
void run(const Launch& launch, const ExpertLinear& args, int num_groups) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += ceil_div(args.w[i].tiles(), MT);
  const auto kernel = expert_kernel<MT, NT>;
  constexpr size_t bytes = LinearShared<MT, NT>::bytes;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(bytes)); });
  launch(kernel, dim3(tiles, num_groups), dim3(SLICES * WARP), bytes, args);
}

}  // namespace

void route(const Launch& launch, const Routing& args) {
  launch(route_kernel, dim3(ceil_div(args.num_rows, ROUTE_WARPS)), dim3(ROUTE_WARPS * WARP), 0, args);
}

void group_choices(const Launch& launch, const Grouping& args) {
  launch(group_kernel, dim3(1), dim3(GROUP_THREADS), size_t(args.num_experts) * 2 * sizeof(int), args);
}

void expert_linear(const Launch& launch, const ExpertLinear& args, int group, int num_groups) {
  if (group == 8) return run<1, 1>(launch, args, num_groups);
  if (group == 32) return run<1, 4>(launch, args, num_groups);
  run<2, 8>(launch, args, num_groups);
}

void combine(const Launch& launch, const Combine& args, int num_rows) {
  launch(combine_kernel, dim3(ceil_div(args.hidden, ROUTE_WARPS * WARP), num_rows), dim3(ROUTE_WARPS * WARP), 0, args);
}

}  // namespace pen
