// Linear layers: decides which products of few tokens use warpgroup products, and in what blocks. Estimates are fitted to the products of
// ten models on an H100. Plain C++.
#include <cfloat>

#include "choose.h"

namespace pen {

namespace {

// Time of a product, by the number of column tiles. [µs]
struct Costs {
  double start, megabyte;   // fixed, and per megabyte of weights
  double k_tile, warpgroup;  // per K tile of a block, and for each of its warpgroups in addition
  double slice;             // at the end of a slice, per warpgroup
  double share;             // if several blocks share row tiles
  double sums, all_sums;    // a warpgroup's sums through the workspace: fixed, and per group of row tiles
};
constexpr Costs costs_of(int column_tiles) {
  if (column_tiles <= 1) return {1.8, 0.03, 0.13, 0.06, 0.0, 0.55, 0.105, 0.005};
  if (column_tiles <= 2) return {2.4, 0.22, 0.12, 0.025, 0.005, 0.43, 0.1, 0.009};
  if (column_tiles <= 4) return {2.4, 0.11, 0.12, 0.04, 0.05, 0.8, 0.17, 0.005};
  return {1.9, 0.045, 0.275, 0.05, 0.11, 1.0, 0.225, 0.04};
}

}  // namespace

int least_shares(const ProductShape& shape) { return shape.slicing.halves && !holds_halves(column_tiles(shape.num_tokens)) ? 2 : 1; }

int row_blocks(const ProductShape& shape, int warpgroups) {
  int groups = 0;
  for (int i = 0; i < shape.num_segments; i++) groups += ceil_div(shape.w[i].tiles(), 4 * warpgroups);
  return groups;
}

// Finds the plan with the least estimated time.
RowsPlan plan_rows(const ProductDevice& device, const ProductShape& shape) {
  const int k_tiles = shape.k_tiles(), columns = column_tiles(shape.num_tokens);
  const Costs cost = costs_of(columns);
  double begin_us = cost.start;
  for (int i = 0; i < shape.num_segments; i++) begin_us += double(shape.w[i].bytes()) * 1e-6 * cost.megabyte;
  RowsPlan best{0, 0, DBL_MAX};
  for (int warpgroups = ROWS_WARPGROUPS; warpgroups > 0; warpgroups--) {
    const int groups = row_blocks(shape, warpgroups), tiles = 4 * warpgroups * groups;
    for (int shares = least_shares(shape); shares <= SLICES; shares *= 2) {
      const double slices = double(shape.slicing.count()) / shares;  // per block
      double us = begin_us;
      if (shares > 1) {
        const bool fits = tiles <= MAX_SHARED_TILES && shape.can_share() && slices_workspace(tiles, columns) <= shape.slab_bytes;
        // No block may have to wait until another one ends.
        if (!fits || groups * shares > device.multiprocessors) continue;
        // The first block passes on one sum for all its slices.
        us += cost.share + warpgroups * (SLICES + 1 - slices) / SLICES * (cost.sums + cost.all_sums * groups);
      }
      const double work = k_tiles * (cost.k_tile + cost.warpgroup * warpgroups) / shares + slices * cost.slice * warpgroups;
      us += ceil_div(groups * shares, device.multiprocessors) * work;
      if (us < best.us) best = {warpgroups, shares, us};
    }
  }
  return best;
}

namespace {

// The fewest tokens for which these kernels are faster than those of decode.cuh, measured on an H200 and an H100. A layer that switches
// between the two from product to product is slower than with either. Long rows are faster from two tokens on: the down projection of an 8B
// model takes 15.5 instead of 20.6 µs.
int fewest_tokens(const DeviceShape& device, const ProductShape& shape) {
  const int k_tiles = shape.k_tiles();
  if (k_tiles > 128 || !fits_staged(device, shape.num_tokens, shape.w[0].cols)) return 2;
  return k_tiles >= 64 && shape.tiles() >= 256 ? 4 : 5;
}

}  // namespace

bool takes_rows(const ProductDevice& device, const ProductShape& shape) {
  const bool fits = shape.num_tokens >= fewest_tokens(device, shape) && shape.num_tokens <= ROWS_TOKENS;
  if (shape.normed || !fits || !device.warpgroups) return false;
  if (shape.slicing.halves && plan_rows(device, shape).shares == 0) return false;  // blocks cannot share its tiles
  if (shape.num_tokens <= 32) return true;
  // Measured on an H200: hopper.cuh is faster for weights that are float16 already.
  if (shape.w[0].format == FORMAT_H16) return false;
  double us = 0;
  each_part(shape, [&](const ProductShape& part, int) { us += plan_hopper(device, part, 64).us; });
  // These estimates leave out START_US. A layer whose products use both kinds of kernels is slower, by 10 % for 8B with 64 rows. In layers
  // of large models, recognised by LARGE K tiles, most products are faster with these kernels, so the others use them, too.
  constexpr double START_US = 0.4, SLOWER = 1.15;
  constexpr int LARGE = 40;
  const double limit_us = shape.k_tiles() >= LARGE ? SLOWER * us : us + START_US;
  return plan_rows(device, shape).us <= limit_us;
}

}  // namespace pen
