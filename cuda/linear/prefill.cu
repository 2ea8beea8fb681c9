// Linear layers: the launches for many tokens.
#include <algorithm>

#include "hopper.cuh"

namespace pen {

namespace {

constexpr int SHARED_LIMIT = 227 << 10;

dim3 grid(const Linear& args, int tokens, int split) {
  int groups = 0;
  static_assert(HOPPER_ROW_TILES == PREFILL_ROW_TILES, "one grid for both");
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), PREFILL_ROW_TILES);
  return dim3(ceil_div(args.num_tokens, tokens), groups, split);
}

template <int TOKENS, int SPLIT>
void set_up() {
  allow_shared(linear_hopper_kernel<TOKENS, SPLIT>, SHARED_LIMIT - 1024);
  prefer_shared(linear_hopper_kernel<TOKENS, SPLIT>);
}

template <int TOKENS>
void set_up_all() {
  set_up<TOKENS, 1>(), set_up<TOKENS, 2>(), set_up<TOKENS, 4>(), set_up<TOKENS, 8>();
}

template <int TOKENS, int SPLIT>
void run(const Launch& launch, const Linear& args) {
  size_t bytes = 0;
  for (int i = 0; i < args.num_segments; i++) bytes = std::max(bytes, HopperShared<TOKENS>::bytes(args.w[i].record_bytes));
  launch(linear_hopper_kernel<TOKENS, SPLIT>, grid(args, TOKENS, SPLIT), dim3(HOPPER_THREADS), bytes, args);
}

// As many blocks per tile as the device can hold at once; no slice may be empty.
template <int TOKENS>
void split(const Launch& launch, const Linear& args) {
  const dim3 g = grid(args, TOKENS, 1);
  const int blocks = int(g.x * g.y), sms = launch.device.multiprocessors;
  const auto fits = [&](int split) {
    return split * blocks <= sms && args.w[0].chunks() >= SLICES && blocks * HOPPER_ROW_TILES <= MAX_SHARED_TILES && args.slabs &&
           hopper_workspace(blocks, TOKENS, split) <= args.slab_bytes;
  };
  if (fits(8)) return run<TOKENS, 8>(launch, args);
  if (fits(4)) return run<TOKENS, 4>(launch, args);
  if (fits(2)) return run<TOKENS, 2>(launch, args);
  run<TOKENS, 1>(launch, args);
}

}  // namespace

// Whether this device runs the binary's sm_90a code: compiled without its instructions, the kernel's body is empty and takes few registers.
bool has_warpgroup_products(const Device& device) {
  const cudaFuncAttributes compiled = device.compiled(linear_hopper_kernel<128, 1>);
  return device.major == 9 && compiled.binaryVersion == 90 && compiled.numRegs > 64;
}

void linear_prefill_any(const Launch& launch, const Linear& args) {
  launch(linear_prefill_kernel, grid(args, PREFILL_TOKENS, 1), dim3(PREFILL_THREADS), 0, args);
}

void linear_prefill(const Launch& launch, const Linear& args) {
  if (!has_warpgroup_products(launch.device)) return linear_prefill_any(launch, args);
  // All of them at once, so that warming up loads them: the first prompt must not wait for that, nor find no memory for it.
  launch.device.first_use(linear_hopper_kernel<128, 1>, [] { set_up_all<64>(), set_up_all<128>(); });
  if (args.num_tokens <= 64) return split<64>(launch, args);
  split<128>(launch, args);
}

}  // namespace pen
