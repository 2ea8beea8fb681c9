// Linear layers: how the tiles of a product of many tokens become units of work. Estimates are fitted to an H200.
#include "../quant/format.cuh"
#include "hopper.h"
#include "slice_sums.cuh"

namespace pen {

namespace {

// What a chunk costs a cluster whose two blocks have 128 or 64 tokens each. A unit costs UNIT_US besides its chunks, and SHARE_US more if
// it is shared. [µs]
constexpr double chunk_us(int format, int tokens) {
  return tokens > 64 ? 0.41 : format == FORMAT_H16 ? 0.26 : 0.30;
}
constexpr double UNIT_US = 2.3, SHARE_US = 1.3;
// The way of the slices' sums through the workspace, of which the first share's are one.
constexpr double sums_us(int tiles, int tokens, int shares) {
  constexpr double MEGABYTE_US = 0.38;
  const double floats = double(tiles) * HOPPER_CLUSTER * HOPPER_ROW_TILES * TILE_ROWS * tokens * (SLICES - SLICES / shares + 1);
  return floats * 4e-6 * MEGABYTE_US;
}

}  // namespace

HopperPlan plan_hopper(const Device& device, const Linear& args, int tokens) {
  HopperGrid grid(args, tokens);
  const int tiles = grid.tiles(), clusters = hopper_clusters(device), chunks = args.w[0].chunks();
  const double unit_us = chunks * chunk_us(args.w[0].format, tokens) + UNIT_US, turns_us = tiles / clusters * unit_us;
  const int rest = tiles % clusters;  // in the last turn
  if (rest == 0) return {grid, turns_us};
  HopperPlan best{grid, turns_us + unit_us};
  const int row_tiles = rest * HOPPER_CLUSTER * HOPPER_ROW_TILES;
  const bool fits = row_tiles <= MAX_SHARED_TILES && args.slabs && slices_workspace(row_tiles, tokens / 8) <= args.slab_bytes;
  if (!fits || chunks < SLICES) return best;  // no slice may be empty
  for (int shares = 2; shares <= SLICES; shares *= 2) {
    const double share_us = chunks * chunk_us(args.w[0].format, tokens) / shares + UNIT_US + SHARE_US;
    const double us = turns_us + ceil_div(rest * shares, clusters) * share_us + sums_us(rest, tokens, shares);
    if (us < best.us) grid.share(tiles - rest, shares), best = {grid, us};
  }
  return best;
}

}  // namespace pen
