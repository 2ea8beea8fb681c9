// The kernel of RMSNorm.
#pragma once

#include "rms_row.cuh"

namespace pen {

// Grid: (rows). `gather`: the row of each block (negative: no row). Null: the block's number is the row.
__global__ void __launch_bounds__(NORM_THREADS) norm_kernel(const __grid_constant__ Norm norm, const int32_t* gather, __half* h, int ldh) {
  __shared__ __align__(16) float sums[2 * NORM_WARPS];
  let_next_start();
  constexpr int PIECES = 4;
  const NormWeights<PIECES> weights(norm);
  const int row = gather ? gather[blockIdx.x] : int(blockIdx.x);
  wait_for_previous();
  if (row < 0) return;
  h += size_t(blockIdx.x) * ldh;
  if (norm.hidden <= PIECES * NORM_THREADS * 4) {
    return norm_some<1, PIECES>(norm, [&] { return weights; }, row, row, [h](int) { return PlainRow{h}; }, norm.x_out, sums);
  }
  norm_wide_row(norm, row, PlainRow{h}, norm.x_out, sums);
}

}  // namespace pen
