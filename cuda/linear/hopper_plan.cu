// Linear layers: splits the tiles of a product of many tokens into units of work. Estimates are fitted to an H200. Plain C++.
#include <algorithm>
#include <cfloat>

#include "choose.h"

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
HopperPlan plan_clusters(const ProductShape& shape, int tokens, int clusters, int shareable) {
  HopperGrid grid(shape, tokens);
  const int tiles = grid.tiles(), k_tiles = shape.w[0].k_tiles();
  const double k_tiles_us = k_tiles * k_tile_us(shape.w[0].format, tokens), unit_us = k_tiles_us + UNIT_US;
  const double turns_us = tiles / clusters * unit_us;
  const int rest = tiles % clusters;  // tiles in the last wave
  if (rest == 0) return {tokens, grid, turns_us};
  HopperPlan best{tokens, grid, turns_us + unit_us};
  const int row_tiles = rest * HOPPER_CLUSTER * HOPPER_ROW_TILES;
  const bool fits = row_tiles <= shareable && shape.can_share() && slices_workspace(row_tiles, tokens / 8) <= shape.slab_bytes;
  if (!fits) return best;
  for (int shares = 2; shares <= SLICES; shares *= 2) {
    const double share_us = k_tiles_us / shares + UNIT_US + SHARE_US;
    const double us = turns_us + ceil_div(rest * shares, clusters) * share_us + sums_us(rest, tokens, shares);
    if (us < best.us) grid.share(tiles - rest, shares), best = {tokens, grid, us};
  }
  return best;
}

}  // namespace

// The most common formats of files among those whose records leave room for four stages. With shorter slices, the sums could not be written
// in parts.
bool takes_pieces(const ProductShape& shape, int tokens) {
  const int k_tiles = shape.k_tiles(), format = shape.w[0].format;
  const bool long_slices = k_tiles % (SLICES * HOPPER_PIECE) == 0 && k_tiles >= PARTS_PIECES * SLICES * HOPPER_PIECE;
  const bool common = format == FORMAT_Q4_MIN || format == FORMAT_Q5_MIN || format == FORMAT_Q6;
  return tokens == 128 && shape.slicing.count() == SLICES && long_slices && common && shape.num_tokens > HOPPER_FEW_TOKENS;
}

HopperPlan plan_hopper(const ProductDevice& device, const ProductShape& shape, int tokens) {
  HopperPlan plan = plan_clusters(shape, tokens, device.clusters, MAX_SHARED_TILES);
  plan.pieces = takes_pieces(shape, tokens);
  return plan;
}

bool has_pair(int first, int second) { return (first == FORMAT_Q4_MIN || first == FORMAT_Q5_MIN) && second == FORMAT_Q6; }

HopperPair plan_pair(const ProductDevice& device, const ProductShape& first, const ProductShape& second) {
  constexpr int AROUND = 3;  // clusters to try on both sides of the proportion of the work
  const int clusters = device.clusters;
  HopperPair best{};
  best.us = DBL_MAX;
  for (const int tokens : HOPPER_TOKENS) {
    const auto work = [&](const ProductShape& shape) { return HopperGrid(shape, tokens).tiles() * k_tile_us(shape.w[0].format, tokens); };
    const int middle = int(clusters * work(first) / (work(first) + work(second)));
    for (int n = std::max(middle - AROUND, 1); n <= std::min(middle + AROUND, clusters - 1); n++) {
      const HopperPlan a = plan_clusters(first, tokens, n, MAX_SHARED_TILES);
      const int shared = a.grid.shares > 1 ? (a.grid.tiles() - a.grid.whole) * HOPPER_CLUSTER * HOPPER_ROW_TILES : 0;
      const size_t bytes = slices_workspace(shared, tokens / 8);
      ProductShape rest = second;
      rest.slab_bytes -= bytes;
      const HopperPlan b = plan_clusters(rest, tokens, clusters - n, MAX_SHARED_TILES - shared);
      const double us = std::max(a.us, b.us);
      if (us < best.us) best = {a, b, n, us, bytes, shared};
    }
  }
  return best;
}

HopperPlan best_plan(const ProductDevice& device, const ProductShape& shape) {
  const auto faster = [](const HopperPlan& a, const HopperPlan& b) { return a.us < b.us; };
  return std::min(plan_hopper(device, shape, HOPPER_TOKENS[0]), plan_hopper(device, shape, HOPPER_TOKENS[1]), faster);
}

}  // namespace pen
