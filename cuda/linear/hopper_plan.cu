// Linear layers: how the tiles of a product of many tokens become units of work. Estimates are fitted to an H200.
#include "../quant/format.cuh"
#include "hopper.h"
#include "slice_sums.cuh"

namespace pen {

namespace {

// What a chunk costs a cluster whose two blocks have 128 or 64 tokens each. A unit costs UNIT_US besides its chunks. [µs]
constexpr double chunk_us(int format, int tokens) {
  const bool halves = format == FORMAT_H16;  // nothing to dequantise
  return tokens > 64 ? (halves ? 0.375 : 0.39) : halves ? 0.26 : 0.30;
}
constexpr double UNIT_US = 1.5;
// What sharing adds to a unit: its slices' sums go through the workspace, however many they are.
constexpr double sums_us(int tokens) { return 0.07 * tokens; }

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
    const double share_us = chunks * chunk_us(args.w[0].format, tokens) / shares + UNIT_US + sums_us(tokens);
    const double us = turns_us + ceil_div(rest * shares, clusters) * share_us;
    if (us < best.us) grid.share(tiles - rest, shares), best = {grid, us};
  }
  return best;
}

}  // namespace pen
