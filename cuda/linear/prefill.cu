// Linear layers: launches the kernels for many tokens.
#include <algorithm>

#include "hopper.cuh"
#include "prefill.cuh"

namespace pen {

namespace {

// The kernel that has_warpgroup_products() inspects.
const auto first_kernel = linear_hopper_kernel<std::tuple_element_t<0, AllFormats>, 128>;

}  // namespace

template bool run_hopper<128>(const Launch&, const Linear&);

int hopper_clusters(const Device& device) {
  return device.known(first_kernel, [&] {
    allow_shared(first_kernel, HOPPER_SHARED_LIMIT);
    int clusters = 0;
    const int blocks = device.multiprocessors;
    check(active_clusters(clusters, first_kernel, HOPPER_CLUSTER, blocks, HOPPER_THREADS, HOPPER_SHARED_LIMIT), "clusters of a kernel");
    return std::max(clusters, 1);
  });
}

bool has_warpgroup_products(const Device& device) { return device.has_sm90a(first_kernel); }

void linear_prefill_any(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), PREFILL_ROW_TILES);
  launch(linear_prefill_kernel, dim3(ceil_div(args.num_tokens, PREFILL_TOKENS), groups), dim3(PREFILL_THREADS), 0, args);
}

namespace {

// Launches both parts together if that is estimated to take less than `us`. Returns whether it did.
bool run_as_pair(const Launch& launch, const Linear& one, const Linear& other, double us) {
  const bool swapped = !has_pair(one.w[0].format, other.w[0].format);
  if (swapped && !has_pair(other.w[0].format, one.w[0].format)) return false;
  const Linear& first = swapped ? other : one;
  Linear second = swapped ? one : other;
  const HopperPair plan = plan_pair(launch.device, first, second);
  return plan.us < us && run_pair(launch, first, second, plan);
}

}  // namespace

void linear_prefill(const Launch& launch, const Linear& args) {
  if (!has_warpgroup_products(launch.device)) return linear_prefill_any(launch, args);
  Linear parts[MAX_SEGMENTS];
  int tokens[MAX_SEGMENTS], count = 0;
  double us = 0;
  each_part(args, [&](const Linear& part) {
    const HopperPlan plan = best_plan(launch.device, part);
    parts[count] = part, tokens[count++] = plan.tokens, us += plan.us;
  });
  if (count == 2 && run_as_pair(launch, parts[0], parts[1], us)) return;
  for (int i = 0; i < count; i++) {
    if (!run_hopper(launch, parts[i], tokens[i])) linear_prefill_any(launch, parts[i]);
  }
}

bool linear_stack(const Launch& launch, const Linear& args) {
  // Whether the two blocks of a cluster read the same columns.
  const bool even = args.w[0].rows % (args.stacked * HOPPER_CLUSTER * HOPPER_ROW_TILES * TILE_ROWS) == 0;
  if (!even || args.num_segments != 1 || args.w[0].cols % K_TILE != 0 || !has_warpgroup_products(launch.device)) return false;
  return run_hopper(launch, args, best_plan(launch.device, args).tokens);
}

}  // namespace pen
