// The sums that shards of a model exchange, for shards on one device.
//
// A product in slices (linear/shape.h) is cut into its eight slices, or if it is added in halves, into two parts of four slices each. An
// output is its old value + the parts, or in halves, (its old value + the first half of the parts) + the second half, or the same without
// the old value. Parts and halves are added in ascending order, from zero. So outputs have the bits of the whole product. All of it is
// float32.
#pragma once

#include "../device/launch.h"
#include "../linear/shape.h"

namespace pen {

struct Exchange {
  const float* parts[SLICES];  // [rows, width] each; null: zeros
  float* outs[SLICES];         // [rows, width] each
  int half, num_parts, num_outs, width;  // half: how many parts are added up first
  bool add;
};
void exchange(const Launch& launch, const Exchange& args, int rows);

}  // namespace pen
