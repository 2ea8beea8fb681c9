// Linear layers: which products of few tokens take warpgroup products, and in what blocks. Estimates are fitted to an H200.
#include <cfloat>

#include "../quant/format.cuh"
#include "hopper.h"
#include "rows.h"
#include "slice_sums.cuh"
#include "staged.cuh"

namespace pen {

namespace {

// What a chunk costs a block, whose latencies more warpgroups hide. [µs]
constexpr double chunk_us(int column_tiles, int warpgroups) {
  return column_tiles > 4 ? 0.19 + 0.085 * warpgroups : 0.13 + 0.07 * warpgroups;
}
// The way of the slices' sums through the workspace.
constexpr double sums_us(int column_tiles) { return 0.35 * column_tiles; }
constexpr double START_US = 2.5;

}  // namespace

// What is estimated to take the least time.
RowsPlan plan_rows(const Device& device, const Linear& args) {
  const int chunks = args.w[0].chunks(), columns = column_tiles(args.num_tokens);
  RowsPlan best{0, 0, DBL_MAX};
  for (int warpgroups = ROWS_WARPGROUPS; warpgroups > 0; warpgroups--) {
    const int groups = row_blocks(args, warpgroups), tiles = 4 * warpgroups * groups;
    for (int shares = 1; shares <= SLICES; shares *= 2) {
      if (shares > 1) {
        const bool fits = tiles <= MAX_SHARED_TILES && args.slabs && slices_workspace(tiles, columns) <= args.slab_bytes;
        // No block may have to wait for another to end, and no slice may be empty.
        if (!fits || groups * shares > device.multiprocessors || chunks < SLICES) continue;
      }
      const double work = double(ceil_div(groups * shares, device.multiprocessors)) * chunks / shares;
      const double us = START_US + work * chunk_us(columns, warpgroups) + (shares > 1 ? sums_us(columns) : 0);
      if (us < best.us) best = {warpgroups, shares, us};
    }
  }
  return best;
}

namespace {

// The fewest tokens for which these kernels are faster than those of decode.cuh, as measured on an H200 and an H100. A layer that changes
// between the two from product to product is slower than with either. Long rows are faster from two tokens on: down of an 8B model takes
// 15.5 in place of 20.6 µs.
int fewest_tokens(const Device& device, const Linear& args) {
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  const int chunks = args.w[0].chunks();
  if (chunks > 128 || !fits_staged(device, args)) return 2;
  return chunks >= 64 && tiles >= 256 ? 4 : 5;
}

}  // namespace

bool takes_rows(const Device& device, const Linear& args) {
  const bool fits = args.num_tokens >= fewest_tokens(device, args) && args.num_tokens <= ROWS_TOKENS;
  if (args.norm.x || !fits || !has_warpgroup_products(device)) return false;
  if (args.num_tokens <= 32) return true;
  // Measured on an H200: weights that are float16 already are faster in hopper.cuh.
  if (args.w[0].format == FORMAT_H16) return false;
  double us = 0;
  each_part(args, [&](const Linear& part) { us += plan_hopper(device, part, 64).us; });
  return plan_rows(device, args).us <= us;
}

}  // namespace pen
