// Linear layers: launches the kernels for many tokens.
#include <algorithm>

#include "hopper.cuh"
#include "prefill.cuh"

namespace pen {

namespace {

// The kernel that product_device() inspects.
const auto first_kernel = linear_hopper_kernel<std::tuple_element_t<0, AllFormats>, 128>;

}  // namespace

template bool run_hopper<128>(const Launch&, const Linear&, const HopperPlan&);

ProductDevice product_device(const Device& device) {
  ProductDevice product{device};
  product.warpgroups = device.has_sm90a(first_kernel);
  // A processing cluster of the device may have an odd number of multiprocessors, so not all of them run clusters.
  const auto count = [&] {
    allow_shared(first_kernel, HOPPER_SHARED_LIMIT);
    int clusters = 0;
    const int blocks = device.multiprocessors;
    check(active_clusters(clusters, first_kernel, HOPPER_CLUSTER, blocks, HOPPER_THREADS, HOPPER_SHARED_LIMIT), "clusters of a kernel");
    return std::max(clusters, 1);
  };
  if (product.warpgroups) product.clusters = device.known(first_kernel, count);
  return product;
}

void linear_prefill_any(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), PREFILL_ROW_TILES);
  launch(linear_prefill_kernel, dim3(ceil_div(args.num_tokens, PREFILL_TOKENS), groups), dim3(PREFILL_THREADS), 0, args);
}

Linear part_of(const Linear& args, int first, int count) {
  Linear part = args;
  for (int i = 0; i < count; i++) part.w[i] = args.w[first + i], part.out_offset[i] = args.out_offset[first + i];
  part.num_segments = count;
  return part;
}

void linear_blocks(const Launch& launch, const Linear& args, const ProductPlan& plan) {
  Linear parts[MAX_SEGMENTS];
  int count = 0;
  each_part(shape_of(args), [&](const ProductShape& part, int first) { parts[count++] = part_of(args, first, part.num_segments); });
  if (plan.kernel == ProductKernel::PAIR && run_pair(launch, parts[plan.swapped], parts[!plan.swapped], plan.pair)) return;
  for (int i = 0; i < count; i++) {
    if (!run_hopper(launch, parts[i], plan.parts[i])) linear_prefill_any(launch, parts[i]);
  }
}

bool linear_stack(const Launch& launch, const Linear& args) {
  const ProductDevice device = product_device(launch.device);
  if (args.num_segments != 1 || !takes_stack(device, args.w[0], args.stacked)) return false;
  return run_hopper(launch, args, best_plan(device, shape_of(args)));
}

}  // namespace pen
