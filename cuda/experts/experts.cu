// Launches experts for any number of rows.
#include <algorithm>

#include "experts.cuh"
#include "rows.h"

namespace pen {

namespace {

template <int MT, int NT>
void run(const Launch& launch, const ExpertLinear& args, int num_groups) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += ceil_div(args.w[i].tiles(), MT);
  const auto kernel = expert_kernel<MT, NT>;
  constexpr size_t bytes = LinearShared<MT, NT>::bytes;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(bytes)); });
  launch(kernel, dim3(tiles, num_groups * args.group / (NT * 8)), dim3(SLICES * WARP), bytes, args);
}

dim3 elements(size_t columns, int rows) { return dim3(rows, ceil_div(int(columns), COMBINE_THREADS)); }

}  // namespace

void route(const Launch& launch, const Routing& args) {
  constexpr size_t SHARED = 48 << 10;
  const size_t each = route_words(args.num_experts, args.groups) * sizeof(uint32_t);
  const int warps = int(std::clamp(SHARED / each, size_t(1), size_t(ROUTE_WARPS)));
  launch(route_kernel, dim3(ceil_div(args.num_rows, warps)), dim3(warps * WARP), warps * each, args);
}

void group_choices(const Launch& launch, const Grouping& args) {
  launch(group_kernel, dim3(1), dim3(GROUP_THREADS), size_t(args.num_experts) * 2 * sizeof(int), args);
}

void expert_linear(const Launch& launch, const ExpertLinear& args, int num_groups) {
  const ExpertKernel kernel = choose_groups(product_device(launch.device), args.w[0], args.group, num_groups);
  if (kernel == ExpertKernel::ROWS) return expert_linear_rows(launch, args, num_groups);
  if (args.group == 8) return run<1, 1>(launch, args, num_groups);
  if (args.group == 16) return run<1, 2>(launch, args, num_groups);
  if (args.group == 32) return run<1, 4>(launch, args, num_groups);
  run<2, 8>(launch, args, num_groups);
}

void expert_activate(const Launch& launch, const ExpertActivate& args, int num_choices) {
  launch(expert_activate_kernel, elements(round_up(args.ffn, K_TILE), num_choices), dim3(COMBINE_THREADS), 0, args);
}

void weigh_input(const Launch& launch, const WeighInput& args, int num_rows) {
  launch(weigh_input_kernel, elements(round_up(args.hidden, K_TILE), num_rows * args.used), dim3(COMBINE_THREADS), 0, args);
}

void combine(const Launch& launch, const Combine& args, int num_rows) {
  launch(combine_kernel, elements(args.hidden, num_rows), dim3(COMBINE_THREADS), 0, args);
}

}  // namespace pen
