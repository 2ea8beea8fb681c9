// Launches rows.cuh, and plans how it cuts a product into blocks.
#pragma once

#include "linear.h"

namespace pen {

constexpr int ROWS_TOKENS = 64;  // most tokens
constexpr int ROWS_WARPGROUPS = 4;  // most warpgroups of a block, not counting the producers'

// Tiles of eight columns in a product of this many tokens.
inline int column_tiles(int num_tokens) { return num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : num_tokens <= 32 ? 4 : 8; }
inline int row_blocks(const Linear& args, int warpgroups) {
  int groups = 0;
  for (int i = 0; i < args.num_segments; i++) groups += ceil_div(args.w[i].tiles(), 4 * warpgroups);
  return groups;
}

// A block takes four row tiles per warpgroup. Each of `shares` blocks computes some of their slices. `us`: the estimated time.
struct RowsPlan {
  int warpgroups, shares;
  double us;
};
RowsPlan plan_rows(const Device& device, const Linear& args);
// Whether linear() uses these kernels.
bool takes_rows(const Device& device, const Linear& args);
void linear_rows(const Launch& launch, const Linear& args, const RowsPlan& plan);

}  // namespace pen
