// Launches layers with experts for few rows.
#include "decode.h"

#include "decode.cuh"

namespace pen {

namespace {

static_assert(sizeof(Lists) == LISTS_BYTES, "decisions count the lists");

ExpertShape shape_of(const ExpertDecode& args) {
  const Routing& r = args.routing;
  return {args.gate_up, args.down, r.num_rows, r.num_experts, r.used, args.shared_down != nullptr, r.chunk_group != 0};
}

// Calls f(Format{}) for a format on the host.
template <class F>
void with_host_format(int format, F f) {
  std::apply([&](auto... each) { ((decltype(each)::id == format ? f(each) : void()), ...); }, AllFormats{});
}

template <class Kernel>
void start(const Launch& launch, Kernel kernel, int threads, const ExpertDecode& args, int blocks, const ExpertPlan& plan) {
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(launch.device.shared_block - FEW_STATIC)), prefer_shared(kernel); });
  launch(kernel, dim3(blocks), dim3(threads), plan.bytes, args, plan);
}

}  // namespace

size_t lists_bytes() { return sizeof(Lists); }

bool can_decode(const Device& device, const ExpertDecode& args) { return can_few(device, shape_of(args)); }

bool takes_decode(const Device& device, const ExpertDecode& args) {
  return choose_experts(product_device(device), shape_of(args)) == ExpertKernel::FEW;
}

void expert_decode(const Launch& launch, const ExpertDecode& args) {
  const FewExpertsPlan plans = plan_few(launch.device, shape_of(args));
  const Routing& r = args.routing;
  launch(expert_choose_kernel, dim3(1), dim3(DECODE_THREADS), size_t(4) * r.num_rows * route_words(r.num_experts, r.groups), args);
  with_host_format(args.gate_up.format, [&](auto format) {
    start(launch, expert_up_kernel<decltype(format)>, DECODE_THREADS, args, plans.up_blocks, plans.up);
  });
  with_host_format(args.down.format, [&](auto format) {
    start(launch, expert_down_kernel<decltype(format)>, DOWN_TEAMS * DECODE_THREADS, args, plans.down_blocks, plans.down);
  });
}

}  // namespace pen
