// Host side of the linear layers for few tokens, and the choice between the kernels.
#include "../ops/linear_decode.cuh"
#include "linear.h"

#include <algorithm>

namespace pen {

void linear_prefill(const Launch& launch, const Linear& args);
bool has_warpgroup_products();

namespace {

// Normalised rows that a block may keep.
constexpr int MAX_NORMED_HALVES = 2048;

template <int MT, int NT>
void run(const Launch& launch, const Linear& args) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), MT);
  constexpr size_t bytes = LinearShared<MT, NT>::bytes;
  static const bool once = [] {
    check(cudaFuncSetAttribute(linear_kernel<MT, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "shared memory");
    return true;
  }();
  (void)once;
  launch(linear_kernel<MT, NT>, dim3(groups, ceil_div(args.num_tokens, NT * 8)), dim3(SLICES * WARP), bytes, args);
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, n = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&n, attribute, device), "device attribute");
  return n;
}
int multiprocessors() {
  static const int count = device_attribute(cudaDevAttrMultiProcessorCount);
  return count;
}
// Bytes of shared memory that a block may have, and that a multiprocessor has.
int shared_limit() {
  static const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return bytes;
}
int shared_total() {
  static const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return bytes;
}

constexpr size_t MAX_STAGED = 36 << 10;

// `each`: blocks a multiprocessor. `spread`: no more than that on any: beside blocks that wait for their turn, two would land on one while
// another has none, and the kernel would take twice as long.
template <Input INPUT, RingSize RING>
void run_decode(const Launch& launch, const Linear& args, int tiles, int each, bool spread) {
  const int blocks = std::min(tiles, multiprocessors() * each);
  // No more of the ring than a warp ever fills: the less a kernel takes, the earlier the next one starts.
  const int records = ceil_div(tiles, blocks) * ceil_div(args.w[0].chunks(), SLICES);
  size_t ring = 0;
  for (int i = 0; i < args.num_segments; i++) {
    const int most = RING == RingSize::WHOLE ? records : ring_records(args.w[i].record_bytes, RING);
    ring = std::max(ring, size_t(args.w[i].record_bytes) * std::min(most, records));
  }
  if constexpr (RING == RingSize::WHOLE) {
    if (ring > size_t(RING)) return run_decode<INPUT, RingSize::LONG_ROWS>(launch, args, tiles, each, true);
  }
  const size_t staged = INPUT == Input::GLOBAL ? 0 : size_t(args.num_tokens) * staged_stride(args.w[0].cols) * 2;
  const size_t at = round_up(DecodeLinearShared::x + staged, 128), needed = at + SLICES * ring;
  if (needed > size_t(shared_limit())) {
    if constexpr (RING != RingSize::SHORTEST) {
      return run_decode<INPUT, RingSize::SHORTEST>(launch, args, tiles, each, spread);
    } else if constexpr (INPUT == Input::SHARED) {
      return run_decode<Input::GLOBAL, RingSize::SHORTEST>(launch, args, tiles, each, spread);
    }
  }
  const size_t bytes = spread ? std::max(needed, size_t(shared_total() / (each + 1))) : needed;
  static const bool once = [] {
    check(cudaFuncSetAttribute(linear_decode_kernel<INPUT, RING>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit()), "shared memory");
    check(cudaFuncSetAttribute(linear_decode_kernel<INPUT, RING>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), "carveout");
    return true;
  }();
  (void)once;
  launch(linear_decode_kernel<INPUT, RING>, dim3(blocks), dim3(SLICES * WARP), bytes, args, int(at), int(ring));
}

// Measured: one block a multiprocessor, all that it reads of a matrix requested at once, where there are few tiles or rows are short; two for
// the rest. Fewer leave room for the kernels around, which counts for short ones.
template <Input INPUT>
void decode_from(const Launch& launch, const Linear& args, int tiles) {
  constexpr int SHORT = 9 << 10, LARGE = 64 << 10;  // records
  const int chunks = args.w[0].chunks(), records = tiles * chunks;
  const bool few = tiles <= multiprocessors();
  if (few || (records < SHORT && chunks <= 16)) return run_decode<INPUT, RingSize::WHOLE>(launch, args, tiles, 1, !few);
  if (chunks >= 64 || records >= LARGE) return run_decode<INPUT, RingSize::LONG_ROWS>(launch, args, tiles, 2, false);
  run_decode<INPUT, RingSize::USUAL>(launch, args, tiles, 2, true);
}

void decode(const Launch& launch, const Linear& args, int tiles) {
  if (args.norm.x) return decode_from<Input::NORM>(launch, args, tiles);
  const bool fits = size_t(args.num_tokens) * staged_stride(args.w[0].cols) * 2 <= MAX_STAGED;
  if (fits) return decode_from<Input::SHARED>(launch, args, tiles);
  decode_from<Input::GLOBAL>(launch, args, tiles);
}

}  // namespace

bool takes_norm(int num_tokens, int cols) { return num_tokens <= 8 && num_tokens * int(round_up(cols, CHUNK)) <= MAX_NORMED_HALVES; }

void linear(const Launch& launch, const Linear& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  // More row tiles a block share what is read of x; fewer blocks than the GPU holds would leave it idle.
  if (args.num_tokens <= 8) return decode(launch, args, tiles);
  if (args.num_tokens > 16 && has_warpgroup_products()) return linear_prefill(launch, args);
  if (args.num_tokens <= 16) return run<1, 2>(launch, args);
  if (args.num_tokens <= 32) return tiles >= 512 ? run<2, 4>(launch, args) : run<1, 4>(launch, args);
  if (args.num_tokens <= 64) return tiles >= 512 ? run<2, 8>(launch, args) : run<1, 8>(launch, args);
  linear_prefill(launch, args);
}

}  // namespace pen
