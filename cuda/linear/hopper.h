// How hopper.cuh spreads a product over the device.
#pragma once

#include "linear.h"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8;  // of a block
constexpr int HOPPER_CLUSTER = 2;
constexpr int HOPPER_TOKENS[] = {64, 128};  // a block has one of these
// Up to so many tokens, products take so little time that the code which they fetch counts: all of one format share one kernel, and sums
// are written by straight code. Measured: a layer of 8B with 128 rows takes 203 instead of 206 µs, though its products alone take longer.
constexpr int HOPPER_FEW_TOKENS = 256;

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
  int tokens;
  HopperGrid grid;
  double us;
};
HopperPlan plan_hopper(const Device& device, const Linear& args, int tokens);
// Two parts of a product in one launch, whose first clusters compute the first part.
struct HopperPair {
  HopperPlan first, second;  // by blocks of as many tokens
  int clusters;              // of the first part
  double us;
};
// What is estimated to take the least time. Moves the workspace of `second` behind that of `first`.
HopperPair plan_pair(const Device& device, const Linear& first, Linear& second);
// What is estimated to take the least time. All segments have one format.
HopperPlan best_plan(const Device& device, const Linear& args);
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
// The same by blocks of 128 tokens that take two K tiles at a time. False: there is no such kernel for this format or number of columns, or
// x cannot be described.
bool run_hopper_pieces(const Launch& launch, const Linear& args);
// The best of these for a number of tokens.
inline bool run_hopper(const Launch& launch, const Linear& args, int tokens) {
  if (tokens == 64) return run_hopper<64>(launch, args);
  return run_hopper_pieces(launch, args) || run_hopper<128>(launch, args);
}

// Whether one launch can compute two parts of these formats: a layer's Q and K beside its V in files of mixed types.
bool has_pair(int first, int second);
// Does so. False: x cannot be described.
bool run_pair(const Launch& launch, const Linear& first, const Linear& second, const HopperPair& plan);

}  // namespace pen
