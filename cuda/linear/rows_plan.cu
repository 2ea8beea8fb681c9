// Linear layers: which products of few tokens take warpgroup products, and in what blocks. Estimates are fitted to an H200.
#include <cfloat>

#include "../quant/format.cuh"
#include "rows.h"
#include "slice_sums.cuh"
#include "staged.cuh"

namespace pen {

namespace {

// What a chunk of four row tiles costs a warpgroup that works beside three others. [µs]
constexpr double chunk_us(int column_tiles) { return column_tiles > 4 ? 0.13 : 0.094; }
constexpr double ALONE = 0.6;  // what a warpgroup less adds to that: latencies that nothing hides
// The way of the slices' sums through the workspace.
constexpr double sums_us(int tiles) { return 0.5 * tiles; }

}  // namespace

// What is estimated to take the least time.
RowsPlan plan_rows(const Device& device, const Linear& args) {
  const int chunks = args.w[0].chunks(), columns = column_tiles(args.num_tokens);
  RowsPlan best{};
  double least = DBL_MAX;
  for (int warpgroups = ROWS_WARPGROUPS; warpgroups > 0; warpgroups--) {
    const int groups = row_blocks(args, warpgroups), tiles = 4 * warpgroups * groups;
    for (int shares = 1; shares <= SLICES; shares *= 2) {
      if (shares > 1) {
        const bool fits = tiles <= MAX_SHARED_TILES && args.slabs && slices_workspace(tiles, columns) <= args.slab_bytes;
        // No block may have to wait for another to end, and no slice may be empty.
        if (!fits || groups * shares > device.multiprocessors || chunks < SLICES) continue;
      }
      const double work = double(ceil_div(groups * shares, device.multiprocessors)) * warpgroups * chunks / shares;
      const double us = work * chunk_us(columns) * (1 + ALONE * (ROWS_WARPGROUPS - warpgroups)) + (shares > 1 ? sums_us(columns) : 0);
      if (us < least) least = us, best = {warpgroups, shares};
    }
  }
  return best;
}

namespace {

// The fewest tokens for which these kernels are faster, as measured on an H200. If x does not fit into shared memory, that is two (down of
// an 8B model takes 15.5 in place of 20.6 µs).
int fewest_tokens(const Linear& args) {
  constexpr int LARGE = 16 << 10;  // records
  if (!fits_staged(args)) return 2;
  int tiles = 0;
  for (int i = 0; i < args.num_segments; i++) tiles += args.w[i].tiles();
  return tiles * args.w[0].chunks() >= LARGE ? 4 : 5;
}

}  // namespace

bool takes_rows(const Device& device, const Linear& args) {
  const bool fits = args.num_tokens >= fewest_tokens(args) && args.num_tokens <= ROWS_TOKENS;
  if (args.norm.x || !fits || !has_warpgroup_products(device)) return false;
  if (args.num_tokens <= 32) return true;
  // Measured on an H200: short shares, and weights that are float16 already, are faster in hopper.cuh.
  constexpr int LONG = 24;  // chunks
  return args.w[0].format != FORMAT_H16 && args.w[0].chunks() / plan_rows(device, args).shares >= LONG;
}

}  // namespace pen
