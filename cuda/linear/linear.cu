// Linear layers: launches the kernels for few tokens, and what choose() decided for any number.
#include <algorithm>

#include "batch.cuh"
#include "decode.cuh"
#include "decode_stream.cuh"
#include "rows.h"

namespace pen {

namespace {

template <int MT, int NT>
void run_batch(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), MT);
  const auto kernel = linear_kernel<MT, NT>;
  constexpr size_t bytes = LinearShared<MT, NT>::bytes;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(bytes)); });
  launch(kernel, dim3(groups, ceil_div(args.num_tokens, NT * 8)), dim3(SLICES * WARP), bytes, args);
}

template <Input INPUT, RingSize RING>
void run_ring(const Launch& launch, const Linear& args, const FewPlan& plan) {
  const auto kernel = linear_decode_kernel<INPUT, RING>;
  set_up(launch.device, kernel);
  launch(kernel, dim3(plan.blocks), dim3(SLICES * WARP), plan.bytes, args, plan.ring_at, plan.ring_bytes);
}
template <Input INPUT>
void run_ring(const Launch& launch, const Linear& args, const FewPlan& plan) {
  switch (plan.ring) {
    case RingSize::WHOLE: return run_ring<INPUT, RingSize::WHOLE>(launch, args, plan);
    case RingSize::USUAL: return run_ring<INPUT, RingSize::USUAL>(launch, args, plan);
    case RingSize::LONG_ROWS: return run_ring<INPUT, RingSize::LONG_ROWS>(launch, args, plan);
    case RingSize::SHORTEST: return run_ring<INPUT, RingSize::SHORTEST>(launch, args, plan);
  }
}
void run_ring(const Launch& launch, const Linear& args, const FewPlan& plan) {
  switch (plan.input) {
    case Input::NORM: return run_ring<Input::NORM>(launch, args, plan);
    case Input::NORMS: return run_ring<Input::NORMS>(launch, args, plan);
    case Input::SHARED: return run_ring<Input::SHARED>(launch, args, plan);
    case Input::GLOBAL: return run_ring<Input::GLOBAL>(launch, args, plan);
  }
}

void run_stream(const Launch& launch, const Linear& args, const FewPlan& plan) {
  const auto start = [&](auto format) {
    const auto kernel = linear_stream_kernel<decltype(format)>;
    set_up(launch.device, kernel);
    launch(kernel, dim3(plan.blocks), dim3(SLICES * WARP), plan.bytes, args, plan.stride);
  };
  std::apply([&](auto... each) { ((decltype(each)::id == args.w[0].format ? start(each) : void()), ...); }, AllFormats{});
}

void run_batch(const Launch& launch, const Linear& args, const ProductPlan& plan) {
  if (plan.columns <= 2) return run_batch<1, 2>(launch, args);
  if (plan.columns <= 4) return plan.row_tiles > 1 ? run_batch<2, 4>(launch, args) : run_batch<1, 4>(launch, args);
  plan.row_tiles > 1 ? run_batch<2, 8>(launch, args) : run_batch<1, 8>(launch, args);
}

}  // namespace

ProductShape shape_of(const Linear& args) {
  ProductShape shape;
  std::copy(args.w, args.w + args.num_segments, shape.w);
  shape.num_segments = args.num_segments, shape.num_tokens = args.num_tokens;
  shape.normed = args.norm.x != nullptr;
  shape.boxed = reinterpret_cast<uintptr_t>(args.x) % 16 == 0 && args.ldx % 8 == 0;
  shape.slicing = args.slicing;
  shape.shares = args.slabs != nullptr, shape.slab_bytes = args.slab_bytes;
  return shape;
}

void launch_product(const Launch& launch, const Linear& args, const ProductPlan& plan) {
  switch (plan.kernel) {
    case ProductKernel::RING: return run_ring(launch, args, plan.few);
    case ProductKernel::STREAM: return run_stream(launch, args, plan.few);
    case ProductKernel::ROWS: return linear_rows(launch, args, plan.rows);
    case ProductKernel::BATCH: return run_batch(launch, args, plan);
    case ProductKernel::BLOCKS:
    case ProductKernel::PAIR: return linear_blocks(launch, args, plan);
    case ProductKernel::ANY: return linear_prefill_any(launch, args);
  }
}

void linear(const Launch& launch, const Linear& args) {
  launch_product(launch, args, choose(product_device(launch.device), shape_of(args)));
}

}  // namespace pen
