// Linear layers: chooses between all kernels. Plain C++.
#include "choose.h"

#include <algorithm>

namespace pen {

namespace {

constexpr KernelRow<ProductKernel> TABLE[PRODUCT_KERNELS] = {
    {ProductKernel::RING, "decode.cuh", "1 to 8 tokens, unless decode_stream.cuh or rows.cuh take them",
     "every warp streams one slice of many row tiles through a ring, and requests weights before its predecessor ends"},
    {ProductKernel::STREAM, "decode_stream.cuh", "5 to 8 tokens, many row tiles and long rows, one format",
     "weights pass through registers, which takes fewer instructions per record"},
    {ProductKernel::ROWS, "rows.cuh", "sm_90a: from 2 to 5 tokens (fewer for long rows) to 32, and to 64 where it is estimated faster",
     "one warpgroup product takes all tokens, and weights are dequantised once"},
    {ProductKernel::BATCH, "batch.cuh", "9 to 64 tokens, on sm_90a 9 to 16",
     "each warp streams one slice once for all tokens"},
    {ProductKernel::BLOCKS, "hopper.cuh", "sm_90a: 17 tokens and more, unless rows.cuh takes them",
     "warpgroup products with x by multicast, spread evenly over clusters"},
    {ProductKernel::PAIR, "prefill_pairs.cu", "as hopper.cuh, where two formats in one launch are estimated faster than in two",
     "the last wave of one part leaves no multiprocessor idle"},
    {ProductKernel::ANY, "prefill.cuh", "65 tokens and more, where no other kernel runs",
     "needs nothing but float16 tensor cores"},
};

// Whether rows are short and tiles few, so that each multiprocessor can request everything it reads at once.
bool is_short(const ProductShape& shape) {
  constexpr int SHORT = 9 << 10;  // records
  return shape.tiles() * shape.k_tiles() < SHORT && shape.k_tiles() <= 16;
}

// A launch of decode.cuh. `each`: blocks per multiprocessor. `spread`: limits every multiprocessor to that number. Otherwise, while blocks
// of other kernels wait, the hardware may put two blocks on one multiprocessor and none on another, which doubles the kernel's time.
FewPlan plan_ring(const DeviceShape& device, const ProductShape& shape, Input input, RingSize size, int each, bool spread) {
  const int tiles = shape.tiles(), blocks = std::min(tiles, device.multiprocessors * each);
  // The ring is no larger than a warp can fill: the less shared memory a kernel takes, the earlier the next one starts.
  const int records = ceil_div(tiles, blocks) * ceil_div(shape.k_tiles(), shape.slicing.count());
  size_t ring = 0;
  for (int i = 0; i < shape.num_segments; i++) {
    const int most = size == RingSize::WHOLE ? records : ring_records(shape.w[i].record_bytes, size);
    ring = std::max(ring, size_t(shape.w[i].record_bytes) * std::min(most, records));
  }
  if (size == RingSize::WHOLE && ring > size_t(size)) return plan_ring(device, shape, input, RingSize::LONG_ROWS, each, true);
  const size_t staged = input == Input::GLOBAL ? 0 : size_t(shape.num_tokens) * staged_stride(shape.w[0].cols) * 2;
  const size_t at = round_up(DecodeLinearShared::x + staged, 128), needed = at + SLICES * ring;
  if (size == RingSize::LONG_ROWS) {
    // Prefers occupancy to ring depth.
    const size_t share = size_t(device.shared_multiprocessor / each) - device.shared_reserved;
    if (needed > share) return plan_ring(device, shape, input, RingSize::USUAL, each, spread);
  }
  if (needed > size_t(device.shared_block)) {
    if (size != RingSize::SHORTEST) return plan_ring(device, shape, input, RingSize::SHORTEST, each, spread);
    if (input == Input::SHARED) return plan_ring(device, shape, Input::GLOBAL, RingSize::SHORTEST, each, spread);
  }
  const size_t bytes = spread ? std::max(needed, size_t(device.shared_multiprocessor / (each + 1))) : needed;
  return {input, size, blocks, int(at), int(ring), 0, bytes};
}

// Measured: for few tiles or short rows, one block per multiprocessor, which requests all it reads of a matrix at once. Two blocks for the
// rest. Fewer blocks leave room for the neighbouring kernels, which matters if these are short.
FewPlan plan_decode(const DeviceShape& device, const ProductShape& shape) {
  constexpr int LARGE = 64 << 10;  // records
  const int tiles = shape.tiles(), k_tiles = shape.k_tiles();
  const Input input = shape.normed ? (shape.num_tokens == 1 ? Input::NORM : Input::NORMS) :
                      fits_staged(device, shape.num_tokens, shape.w[0].cols) ? Input::SHARED : Input::GLOBAL;
  const bool few = tiles <= device.multiprocessors;
  if (few || is_short(shape)) return plan_ring(device, shape, input, RingSize::WHOLE, 1, !few);
  if (k_tiles >= 64 || tiles * k_tiles >= LARGE) return plan_ring(device, shape, input, RingSize::LONG_ROWS, 2, false);
  return plan_ring(device, shape, input, RingSize::USUAL, 2, true);
}

// Measured on an H200: for five tokens or more, streaming large matrices through registers is faster (an 8B model's layer of eight tokens
// takes 84 instead of 105 µs). For fewer tokens it is slower. The matrices must have one format, and their rows of x must leave room for
// STREAM_EACH blocks.
bool takes_stream(const DeviceShape& device, const ProductShape& shape, FewPlan& plan) {
  constexpr int FEWEST_TOKENS = 5;
  const int tiles = shape.tiles();
  if (shape.normed || shape.num_tokens < FEWEST_TOKENS || tiles <= device.multiprocessors || is_short(shape)) return false;
  plan.stride = staged_stride(shape.w[0].cols);
  plan.bytes = partial_bytes(STREAM_COLUMNS) + size_t(shape.num_tokens) * plan.stride * 2;
  plan.blocks = std::min(tiles, device.multiprocessors * STREAM_EACH);
  for (int i = 1; i < shape.num_segments; i++) {
    if (shape.w[i].format != shape.w[0].format) return false;
  }
  return plan.bytes <= size_t(device.shared_multiprocessor / STREAM_EACH) - device.shared_reserved;
}

ProductPlan plan_of(ProductKernel kernel) {
  ProductPlan plan{};
  plan.kernel = kernel;
  return plan;
}

}  // namespace

const KernelRow<ProductKernel>& product_row(ProductKernel kernel) { return row_of(TABLE, kernel); }

// The limits on tokens and columns are those of the kernels' norm_rows().
bool takes_norm(int num_tokens, int cols) {
  if (num_tokens <= 2) return cols <= 2048;
  return num_tokens <= NORM_ROWS && cols <= 1024;
}

bool takes_norm(const DeviceShape& device, const ProductShape& shape) {
  if (!takes_norm(shape.num_tokens, shape.w[0].cols)) return false;
  ProductShape normed = shape;
  normed.normed = true;
  return plan_decode(device, normed).bytes <= size_t(device.shared_block);
}

bool takes_stack(const ProductDevice& device, const Matrix& w, int count) {
  // The two blocks of a cluster must read the same columns.
  const bool even = w.rows % (count * HOPPER_CLUSTER * HOPPER_ROW_TILES * TILE_ROWS) == 0;
  return even && w.cols % K_TILE == 0 && device.warpgroups;
}

bool fits_staged(const DeviceShape& device, int num_tokens, int cols) {
  constexpr size_t MOST = 36 << 10;  // every device has room for this
  return size_t(num_tokens) * staged_stride(cols) * 2 <= std::max(MOST, size_t(device.shared_multiprocessor) * 2 / 7);
}

ProductPlan choose_prefill(const ProductDevice& device, const ProductShape& shape) {
  if (!device.warpgroups || !shape.boxed) return plan_of(ProductKernel::ANY);
  ProductPlan plan = plan_of(ProductKernel::BLOCKS);
  ProductShape parts[MAX_SEGMENTS];
  double us = 0.0;
  each_part(shape, [&](const ProductShape& part, int) {
    parts[plan.num_parts] = part;
    us += (plan.parts[plan.num_parts++] = best_plan(device, part)).us;
  });
  if (plan.num_parts != 2) return plan;
  plan.swapped = !has_pair(parts[0].w[0].format, parts[1].w[0].format);
  const ProductShape &first = parts[plan.swapped], &second = parts[!plan.swapped];
  if (!has_pair(first.w[0].format, second.w[0].format)) return plan;
  plan.pair = plan_pair(device, first, second);
  if (plan.pair.us < us) plan.kernel = ProductKernel::PAIR;
  return plan;
}

ProductPlan choose(const ProductDevice& device, const ProductShape& shape) {
  const int tokens = shape.num_tokens;
  if (takes_rows(device, shape)) {
    ProductPlan plan = plan_of(ProductKernel::ROWS);
    plan.rows = plan_rows(device, shape);
    return plan;
  }
  if (tokens <= DECODE_TOKENS) {
    ProductPlan plan = plan_of(ProductKernel::STREAM);
    if (takes_stream(device, shape, plan.few)) return plan;
    plan.kernel = ProductKernel::RING, plan.few = plan_decode(device, shape);
    return plan;
  }
  if (tokens > ROWS_TOKENS || (tokens > 16 && device.warpgroups)) return choose_prefill(device, shape);
  // Two row tiles per block share their reads of x, if there are still enough blocks to fill the device.
  ProductPlan plan = plan_of(ProductKernel::BATCH);
  plan.columns = column_tiles(tokens);
  plan.row_tiles = plan.columns > 2 && shape.tiles() >= 512 ? 2 : 1;
  return plan;
}

}  // namespace pen
