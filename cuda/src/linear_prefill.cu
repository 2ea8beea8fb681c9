// Host side of the linear layers for many tokens.
#include "../ops/linear_hopper.cuh"

namespace pen {

namespace {

dim3 grid(const Linear& args) {
  static_assert(HOPPER_ROW_TILES == PREFILL_ROW_TILES && HOPPER_TOKENS == PREFILL_TOKENS, "one grid for both");
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), PREFILL_ROW_TILES);
  return dim3(ceil_div(args.num_tokens, PREFILL_TOKENS), groups);
}

// Does this device run the binary's sm_90a code?
bool is_hopper() {
  static const bool hopper = [] {
    cudaFuncAttributes attributes{};
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "current device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaFuncGetAttributes(&attributes, linear_hopper_kernel), "kernel attributes");
    if (major != 9 || attributes.binaryVersion != 90) return false;
    check(cudaFuncSetAttribute(linear_hopper_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(HOPPER_SHARED)), "shared memory");
    // Compiled without sm_90a's instructions, the kernel's body is empty and takes few registers.
    return attributes.numRegs > 64;
  }();
  return hopper;
}

}  // namespace

void linear_prefill_any(const Launch& launch, const Linear& args) {
  launch(linear_prefill_kernel, grid(args), dim3(PREFILL_THREADS), 0, args);
}

void linear_prefill(const Launch& launch, const Linear& args) {
  if (!is_hopper()) return linear_prefill_any(launch, args);
  launch(linear_hopper_kernel, grid(args), dim3(HOPPER_THREADS), HOPPER_SHARED, args);
}

}  // namespace pen
