// Linear layers: splits the tiles of a product of many tokens into units of work. Estimates are fitted to an H200.
#include <algorithm>
#include <cfloat>

#include "../quant/format.cuh"
#include "hopper.h"
#include "slice_sums.cuh"

namespace pen {

namespace {

// Time of a K tile for a cluster whose two blocks have 128 or 64 tokens each. A unit takes UNIT_US in addition to its K tiles, and SHARE_US
// more if it is shared. [µs]
constexpr double k_tile_us(int format, int tokens) {
  return tokens > 64 ? (format == FORMAT_H16 ? 0.40 : 0.36) : (format == FORMAT_H16 ? 0.26 : 0.27);
}
constexpr double UNIT_US = 2.3, SHARE_US = 1.3;
// Time to pass the slices' sums through the workspace. The first share's slices count as one. [µs]
constexpr double sums_us(int tiles, int tokens, int shares) {
  constexpr double MEGABYTE_US = 0.38;
  const double floats = double(tiles) * HOPPER_CLUSTER * HOPPER_ROW_TILES * TILE_ROWS * tokens * (SLICES - SLICES / shares + 1);
  return floats * 4e-6 * MEGABYTE_US;
}

// `shareable`: the number of row tiles that may be shared.
HopperPlan plan_clusters(const Linear& args, int tokens, int clusters, int shareable) {
  HopperGrid grid(args, tokens);
  const int tiles = grid.tiles(), k_tiles = args.w[0].k_tiles();
  const double k_tiles_us = k_tiles * k_tile_us(args.w[0].format, tokens), unit_us = k_tiles_us + UNIT_US;
  const double turns_us = tiles / clusters * unit_us;
  const int rest = tiles % clusters;  // tiles in the last wave
  if (rest == 0) return {tokens, grid, turns_us};
  HopperPlan best{tokens, grid, turns_us + unit_us};
  const int row_tiles = rest * HOPPER_CLUSTER * HOPPER_ROW_TILES;
  const bool fits = row_tiles <= shareable && args.slabs && slices_workspace(row_tiles, tokens / 8) <= args.slab_bytes;
  if (!fits || k_tiles < SLICES) return best;  // no slice may be empty
  for (int shares = 2; shares <= SLICES; shares *= 2) {
    const double share_us = k_tiles_us / shares + UNIT_US + SHARE_US;
    const double us = turns_us + ceil_div(rest * shares, clusters) * share_us + sums_us(rest, tokens, shares);
    if (us < best.us) grid.share(tiles - rest, shares), best = {tokens, grid, us};
  }
  return best;
}

}  // namespace

HopperPlan plan_hopper(const Device& device, const Linear& args, int tokens) {
  return plan_clusters(args, tokens, hopper_clusters(device), MAX_SHARED_TILES);
}

HopperPair plan_pair(const Device& device, const Linear& first, Linear& second) {
  constexpr int AROUND = 3;  // clusters to try on both sides of the proportion of the work
  const int clusters = hopper_clusters(device);
  HopperPair best{plan_hopper(device, first, HOPPER_TOKENS[0]), plan_hopper(device, second, HOPPER_TOKENS[0]), 0, DBL_MAX};
  Linear behind{};
  for (const int tokens : HOPPER_TOKENS) {
    const auto work = [&](const Linear& args) { return HopperGrid(args, tokens).tiles() * k_tile_us(args.w[0].format, tokens); };
    const int middle = int(clusters * work(first) / (work(first) + work(second)));
    for (int n = std::max(middle - AROUND, 1); n <= std::min(middle + AROUND, clusters - 1); n++) {
      const HopperPlan a = plan_clusters(first, tokens, n, MAX_SHARED_TILES);
      const int shared = a.grid.shares > 1 ? (a.grid.tiles() - a.grid.whole) * HOPPER_CLUSTER * HOPPER_ROW_TILES : 0;
      const size_t bytes = slices_workspace(shared, tokens / 8);
      Linear rest = second;
      if (shared > 0) rest.slabs += bytes / sizeof(float), rest.slab_bytes -= bytes, rest.arrivals += shared;
      const HopperPlan b = plan_clusters(rest, tokens, clusters - n, MAX_SHARED_TILES - shared);
      const double us = std::max(a.us, b.us);
      if (us < best.us) best = {a, b, n, us}, behind = rest;
    }
  }
  if (best.us < DBL_MAX) second = behind;
  return best;
}

HopperPlan best_plan(const Device& device, const Linear& args) {
  const auto faster = [](const HopperPlan& a, const HopperPlan& b) { return a.us < b.us; };
  return std::min(plan_hopper(device, args, HOPPER_TOKENS[0]), plan_hopper(device, args, HOPPER_TOKENS[1]), faster);
}

}  // namespace pen
