// Linear layers: launches the kernels for few tokens, and chooses between all kernels.
#include <algorithm>

#include "batch.cuh"
#include "decode.cuh"
#include "decode_stream.cuh"
#include "rows.h"
#include "staged.cuh"

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

// `each`: blocks per multiprocessor. `spread`: limits every multiprocessor to that number. Otherwise, while blocks of other kernels wait,
// the hardware may put two blocks on one multiprocessor and none on another, which doubles the kernel's time.
template <Input INPUT, RingSize RING>
void run_decode(const Launch& launch, const Linear& args, int tiles, int each, bool spread) {
  const Device& device = launch.device;
  const int blocks = std::min(tiles, device.multiprocessors * each);
  // The ring is no larger than a warp can fill: the less shared memory a kernel takes, the earlier the next one starts.
  const int records = ceil_div(tiles, blocks) * ceil_div(args.w[0].k_tiles(), SLICES);
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
  if constexpr (RING == RingSize::LONG_ROWS) {
    // Prefers occupancy to ring depth.
    const size_t share = size_t(device.shared_multiprocessor / each) - device.shared_reserved;
    if (needed > share) return run_decode<INPUT, RingSize::USUAL>(launch, args, tiles, each, spread);
  }
  if (needed > size_t(device.shared_block)) {
    if constexpr (RING != RingSize::SHORTEST) {
      return run_decode<INPUT, RingSize::SHORTEST>(launch, args, tiles, each, spread);
    } else if constexpr (INPUT == Input::SHARED) {
      return run_decode<Input::GLOBAL, RingSize::SHORTEST>(launch, args, tiles, each, spread);
    }
  }
  const size_t bytes = spread ? std::max(needed, size_t(device.shared_multiprocessor / (each + 1))) : needed;
  const auto kernel = linear_decode_kernel<INPUT, RING>;
  set_up(device, kernel);
  launch(kernel, dim3(blocks), dim3(SLICES * WARP), bytes, args, int(at), int(ring));
}

// Whether rows are short and tiles few, so that each multiprocessor can request everything it reads at once.
bool is_short(const Linear& args, int tiles) {
  constexpr int SHORT = 9 << 10;  // records
  const int k_tiles = args.w[0].k_tiles();
  return tiles * k_tiles < SHORT && k_tiles <= 16;
}

// Measured: for few tiles or short rows, one block per multiprocessor, which requests all it reads of a matrix at once. Two blocks for the
// rest. Fewer blocks leave room for the neighbouring kernels, which matters if these are short.
template <Input INPUT>
void decode_from(const Launch& launch, const Linear& args, int tiles) {
  constexpr int LARGE = 64 << 10;  // records
  const int k_tiles = args.w[0].k_tiles();
  const bool few = tiles <= launch.device.multiprocessors;
  if (few || is_short(args, tiles)) return run_decode<INPUT, RingSize::WHOLE>(launch, args, tiles, 1, !few);
  if (k_tiles >= 64 || tiles * k_tiles >= LARGE) return run_decode<INPUT, RingSize::LONG_ROWS>(launch, args, tiles, 2, false);
  run_decode<INPUT, RingSize::USUAL>(launch, args, tiles, 2, true);
}

// Measured on an H200: for five tokens or more, streaming large matrices through registers is faster (an 8B model's layer of eight tokens
// takes 84 instead of 105 µs). For fewer tokens it is slower. The matrices must have one format, and their rows of x must leave room for
// STREAM_EACH blocks.
bool decode_stream(const Launch& launch, const Linear& args, int tiles) {
  constexpr int FEWEST_TOKENS = 5;
  const Device& device = launch.device;
  if (args.norm.x || args.num_tokens < FEWEST_TOKENS || tiles <= device.multiprocessors || is_short(args, tiles)) return false;
  const int stride = staged_stride(args.w[0].cols);
  const size_t bytes = partial_bytes(STREAM_COLUMNS) + size_t(args.num_tokens) * stride * 2;
  for (int i = 1; i < args.num_segments; i++) {
    if (args.w[i].format != args.w[0].format) return false;
  }
  if (bytes > size_t(device.shared_multiprocessor / STREAM_EACH) - device.shared_reserved) return false;
  const auto start = [&](auto format) {
    const auto kernel = linear_stream_kernel<decltype(format)>;
    set_up(device, kernel);
    launch(kernel, dim3(std::min(tiles, device.multiprocessors * STREAM_EACH)), dim3(SLICES * WARP), bytes, args, stride);
  };
  std::apply([&](auto... each) { ((decltype(each)::id == args.w[0].format ? start(each) : void()), ...); }, AllFormats{});
  return true;
}

void decode(const Launch& launch, const Linear& args, int tiles) {
  if (decode_stream(launch, args, tiles)) return;
  if (args.norm.x && args.num_tokens == 1) return decode_from<Input::NORM>(launch, args, tiles);
  if (args.norm.x) return decode_from<Input::NORMS>(launch, args, tiles);
  if (fits_staged(launch.device, args)) return decode_from<Input::SHARED>(launch, args, tiles);
  decode_from<Input::GLOBAL>(launch, args, tiles);
}

}  // namespace

// The limits on tokens and columns are those of the kernels' norm_rows().
bool takes_norm(int num_tokens, int cols) {
  if (num_tokens <= 2) return cols <= 2048;
  return num_tokens <= NORM_ROWS && cols <= 1024;
}

void linear(const Launch& launch, const Linear& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  if (takes_rows(launch.device, args)) return linear_rows(launch, args, plan_rows(launch.device, args));
  if (args.num_tokens <= DECODE_TOKENS) return decode(launch, args, tiles);
  if (args.num_tokens > 16 && has_warpgroup_products(launch.device)) return linear_prefill(launch, args);
  // Two row tiles per block share their reads of x, if there are still enough blocks to fill the device.
  if (args.num_tokens <= 16) return run_batch<1, 2>(launch, args);
  if (args.num_tokens <= 32) return tiles >= 512 ? run_batch<2, 4>(launch, args) : run_batch<1, 4>(launch, args);
  if (args.num_tokens <= 64) return tiles >= 512 ? run_batch<2, 8>(launch, args) : run_batch<1, 8>(launch, args);
  linear_prefill(launch, args);
}

}  // namespace pen
