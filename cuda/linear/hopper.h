// Launches hopper.cuh.
#pragma once

#include "linear.h"

namespace pen {

// The segments [first, first + count) of a product, which have one format.
Linear part_of(const Linear& args, int first, int count);

// Computes the product by blocks of 64 or 128 tokens. All segments have one format. Returns false if x cannot be described as boxes.
template <int TOKENS>
bool run_hopper(const Launch& launch, const Linear& args, const HopperPlan& plan);
// In separate files, because they take long to compile.
extern template bool run_hopper<64>(const Launch&, const Linear&, const HopperPlan&);
extern template bool run_hopper<128>(const Launch&, const Linear&, const HopperPlan&);
// The same by blocks of 128 tokens that take two K tiles at a time.
bool run_hopper_pieces(const Launch& launch, const Linear& args, const HopperPlan& plan);
inline bool run_hopper(const Launch& launch, const Linear& args, const HopperPlan& plan) {
  if (plan.tokens == 64) return run_hopper<64>(launch, args, plan);
  return plan.pieces ? run_hopper_pieces(launch, args, plan) : run_hopper<128>(launch, args, plan);
}

// Computes two parts in one launch. Returns false if x cannot be described as boxes.
bool run_pair(const Launch& launch, const Linear& first, const Linear& second, const HopperPair& plan);

}  // namespace pen
