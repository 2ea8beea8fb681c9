// Plans how hopper.cuh spreads a product over the device.
#pragma once

#include "linear.h"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8;  // per block
constexpr int HOPPER_CLUSTER = 2;
constexpr int HOPPER_TOKENS[] = {64, 128};  // a block has one of these numbers
// Up to this many tokens, products take so little time that fetching their code matters: all products of one format share one kernel, and
// sums are written by straight code. Measured: a layer of 8B with 128 rows takes 203 instead of 206 µs, though its products alone take
// longer.
constexpr int HOPPER_FEW_TOKENS = 256;

__host__ __device__ inline int row_groups(const Matrix& w) { return ceil_div(w.tiles(), HOPPER_ROW_TILES); }

// The units of work, which a cluster takes one after the other. A tile is a group of tokens × a pair of groups of eight row tiles. Each of
// the first `whole` tiles is one unit. Each of the others is `shares` units, which take some of the slices each. Units that run at the same
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

// How blocks of `tokens` tokens spread a product over the device, and the estimated time.
struct HopperPlan {
  int tokens;
  HopperGrid grid;
  double us;
};
HopperPlan plan_hopper(const Device& device, const Linear& args, int tokens);
// Two parts of a product in one launch, whose first clusters compute the first part.
struct HopperPair {
  HopperPlan first, second;  // by blocks of the same number of tokens
  int clusters;              // clusters of the first part
  double us;
};
// Finds the plan with the least estimated time. Moves the workspace of `second` to follow that of `first`.
HopperPair plan_pair(const Device& device, const Linear& first, Linear& second);
// Finds the plan with the least estimated time. All segments have one format.
HopperPlan best_plan(const Device& device, const Linear& args);
// Calls f(part) for each part of a product that has its own launch. Neighbouring segments of one format share a launch.
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
// The number of clusters that run at the same time. A processing cluster of the device may have an odd number of multiprocessors.
int hopper_clusters(const Device& device);

// Computes the product by blocks of 64 or 128 tokens. All segments have one format. Returns false if x cannot be described as boxes.
template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args);
// In separate files, because they take long to compile.
extern template bool run_hopper<64>(const Launch&, const Linear&);
extern template bool run_hopper<128>(const Launch&, const Linear&);
// Computes the product by blocks of 128 tokens that take two K tiles at a time. Returns false if there is no such kernel for this format or
// number of columns, or if x cannot be described as boxes.
bool run_hopper_pieces(const Launch& launch, const Linear& args);
// Runs the best of these for a number of tokens.
inline bool run_hopper(const Launch& launch, const Linear& args, int tokens) {
  if (tokens == 64) return run_hopper<64>(launch, args);
  return run_hopper_pieces(launch, args) || run_hopper<128>(launch, args);
}

// Whether one launch can compute two parts of these formats: a layer's Q and K together with its V, in files of mixed types.
bool has_pair(int first, int second);
// Computes two parts in one launch. Returns false if x cannot be described as boxes.
bool run_pair(const Launch& launch, const Linear& first, const Linear& second, const HopperPair& plan);

}  // namespace pen
