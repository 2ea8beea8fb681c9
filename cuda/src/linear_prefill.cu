// Host side of the linear layers for many tokens.
#include <algorithm>

#include "../ops/linear_hopper.cuh"

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
void allow_shared() {
  check(cudaFuncSetAttribute(linear_hopper_kernel<TOKENS, SPLIT>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_LIMIT - 1024), "shared memory");
  check(cudaFuncSetAttribute(linear_hopper_kernel<TOKENS, SPLIT>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), "carveout");
}

template <int TOKENS>
void allow_all() {
  allow_shared<TOKENS, 1>(), allow_shared<TOKENS, 2>(), allow_shared<TOKENS, 4>(), allow_shared<TOKENS, 8>();
}

struct Device {
  bool hopper = false;
  int multiprocessors = 0;
};

// Does this device run the binary's sm_90a code?
const Device& device() {
  static const Device device = [] {
    Device d;
    cudaFuncAttributes attributes{};
    int id = 0, major = 0;
    check(cudaGetDevice(&id), "current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "compute capability");
    check(cudaDeviceGetAttribute(&d.multiprocessors, cudaDevAttrMultiProcessorCount, id), "multiprocessor count");
    check(cudaFuncGetAttributes(&attributes, linear_hopper_kernel<128, 1>), "kernel attributes");
    // Compiled without sm_90a's instructions, the kernel's body is empty and takes few registers.
    d.hopper = major == 9 && attributes.binaryVersion == 90 && attributes.numRegs > 64;
    if (d.hopper) allow_all<64>(), allow_all<128>();
    return d;
  }();
  return device;
}

template <int TOKENS, int SPLIT>
void run(const Launch& launch, const Linear& args) {
  size_t bytes = 0;
  for (int i = 0; i < args.num_segments; i++) bytes = std::max(bytes, HopperShared<TOKENS>::bytes(args.w[i].record_bytes));
  launch(linear_hopper_kernel<TOKENS, SPLIT>, grid(args, TOKENS, SPLIT), dim3(HOPPER_THREADS), bytes, args);
}

// As many blocks for each tile as leave all of them resident at once; no slice may be empty.
template <int TOKENS>
void split(const Launch& launch, const Linear& args) {
  const dim3 g = grid(args, TOKENS, 1);
  const int blocks = int(g.x * g.y), sms = device().multiprocessors;
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

bool has_warpgroup_products() { return device().hopper; }

void linear_prefill_any(const Launch& launch, const Linear& args) {
  launch(linear_prefill_kernel, grid(args, PREFILL_TOKENS, 1), dim3(PREFILL_THREADS), 0, args);
}

void linear_prefill(const Launch& launch, const Linear& args) {
  if (!device().hopper) return linear_prefill_any(launch, args);
  if (args.num_tokens <= 64) return split<64>(launch, args);
  split<128>(launch, args);
}

}  // namespace pen
