// Linear layers: how the tiles of a product of many tokens become units of work. Estimates are fitted to an H200.
#include <cfloat>

#include "../quant/format.cuh"
#include "hopper.h"
#include "slice_sums.cuh"

namespace pen {

namespace {

// Of a cluster: a chunk of two blocks of 128 or of 64 tokens, and what a unit costs besides.
constexpr double chunk_us(int format, int tokens) { return tokens > 64 ? (format == FORMAT_H16 ? 0.38 : 0.41) : 0.27; }
constexpr double UNIT_US = 1.5;
// The way of the slices' sums through the workspace.
constexpr double sums_us(int tokens) { return tokens / 16; }

}  // namespace

HopperGrid hopper_grid(const Device& device, const Linear& args, int tokens) {
  HopperGrid best(args, tokens);
  const int tiles = best.tiles(), clusters = hopper_clusters(device), chunks = args.w[0].chunks();
  const int rest = tiles % clusters;  // in the last turn
  if (rest == 0) return best;
  const int row_tiles = rest * HOPPER_CLUSTER * HOPPER_ROW_TILES;
  const bool fits = row_tiles <= MAX_SHARED_TILES && args.slabs && slices_workspace(row_tiles, tokens / 8) <= args.slab_bytes;
  if (!fits || chunks < SLICES) return best;  // no slice may be empty
  double least = DBL_MAX;
  for (int shares = 1; shares <= SLICES; shares *= 2) {
    const double each = chunks * chunk_us(args.w[0].format, tokens) / shares + UNIT_US;
    const double us = ceil_div(rest * shares, clusters) * each + (shares > 1 ? sums_us(tokens) : 0);
    if (us < least) least = us, best.share(shares == 1 ? tiles : tiles - rest, shares);
  }
  return best;
}

}  // namespace pen
