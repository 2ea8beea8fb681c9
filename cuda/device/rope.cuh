// The rotation of rows with three positions.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace pen {

// The row of a rotation's table [max_positions, dim] for one pair of elements: that of the position which rotates the pair. `axes`: the
// number of that position, for each pair. `grid`: the second and the third position of a row.
__device__ __forceinline__ const float* rope_row(const float* table, int dim, const uint8_t* axes, int pair, uint32_t position,
                                                 const uint32_t* grid) {
  const int axis = axes[pair];
  return table + static_cast<size_t>(axis == 0 ? position : grid[axis - 1]) * dim;
}

}  // namespace pen
