// How hopper.cuh spreads a product over the device.
#pragma once

#include "linear.h"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8;  // of a block
constexpr int HOPPER_CLUSTER = 2;

__host__ __device__ inline int row_groups(const Matrix& w) { return ceil_div(w.tiles(), HOPPER_ROW_TILES); }

// The units of work, of which a cluster takes one after another. A tile is a group of tokens × a pair of groups of eight row tiles. The
// first `whole` tiles are a unit each, and each of the others is `shares` units, which take some of the slices. Units that run at the same
// time share weights in L2.
struct HopperGrid {
  int token_groups, pairs, shares, whole, units;
  bool boxed = false;  // sums of whole tiles can be written as boxes
  HopperGrid(const Linear& p, int tokens) : token_groups(ceil_div(p.num_tokens, tokens)), shares(1) {
    int groups = 0;
    for (int i = 0; i < p.num_segments; i++) groups += row_groups(p.w[i]);
    pairs = ceil_div(groups, HOPPER_CLUSTER);
    whole = units = tiles();
  }
  __host__ __device__ int tiles() const { return token_groups * pairs; }
  void share(int whole_tiles, int each) { whole = whole_tiles, shares = each, units = whole + (tiles() - whole) * each; }
};

// How a product is spread over the device by blocks of so many tokens, and what that is estimated to take.
struct HopperPlan {
  HopperGrid grid;
  double us;
};
HopperPlan plan_hopper(const Device& device, const Linear& args, int tokens);
// Calls f(part) for each part of a product that has a launch of its own: neighbouring segments of one format share one.
template <class F>
void each_part(const Linear& args, F f) {
  for (int begin = 0, end; begin < args.num_segments; begin = end) {
    Linear part = args;
    for (end = begin; end < args.num_segments && args.w[end].format == args.w[begin].format; end++) {
      part.w[end - begin] = args.w[end], part.out_offset[end - begin] = args.out_offset[end];
    }
    part.num_segments = end - begin;
    f(part);
  }
}
// The clusters that run at the same time: a processing cluster of the device may have an odd number of multiprocessors.
int hopper_clusters(const Device& device);

// The product by blocks of 64 or 128 tokens. All segments have one format. False: x cannot be described.
template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args);
// In files of their own, since they take long to compile.
extern template bool run_hopper<64>(const Launch&, const Linear&);
extern template bool run_hopper<128>(const Launch&, const Linear&);

}  // namespace pen
