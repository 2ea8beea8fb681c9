// The sums of slices, and how blocks that share a row tile put theirs together (sm_90a).
#pragma once

#include "../device/kernel.cuh"
#include "linear.h"

namespace pen {

// Bytes of workspace for the slices of `tiles` row tiles and 8 `nt` tokens.
__host__ __device__ constexpr size_t slices_workspace(int tiles, int nt) { return size_t(tiles) * SLICES * nt * WARP * 16; }

// Slices that the warp that comes last reads at once, if it has about a hundred registers.
constexpr int slices_at_once(int nt) { return nt >= 16 ? 1 : nt >= 8 ? 2 : nt >= 4 ? 4 : SLICES; }

template <int NT>
__device__ __forceinline__ void add_sums(float (&sums)[NT][4], const float (&y)[NT][4]) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], y[n][i]);
  }
}

// A lane's place in the workspace for the slices of a row tile: fragments side by side.
template <int NT>
struct SliceSums {
  float4* place;  // in the first slice
  __device__ __forceinline__ SliceSums(float* workspace, int tile) {
    place = reinterpret_cast<float4*>(workspace) + size_t(tile) * SLICES * NT * WARP + threadIdx.x % WARP;
  }
  __device__ __forceinline__ void put(int slice, const float (&y)[NT][4]) const {
#pragma unroll
    for (int n = 0; n < NT; n++) place[(slice * NT + n) * WARP] = make_float4(y[n][0], y[n][1], y[n][2], y[n][3]);
  }
  // Called by each of the `shares` warps that have put the tile's slices. Adds all of them for the one that comes last, in ascending order
  // from zero, and returns whether this one did. The first `together` slices lie where the first would, as their sum: such a sum is never
  // a negative zero, so it may be added to zero once more.
  template <int BATCH = slices_at_once(NT)>
  __device__ __forceinline__ bool gather(uint32_t* arrivals, int shares, float (&sums)[NT][4], int together = 1) const {
    const bool first_lane = threadIdx.x % WARP == 0;
    __syncwarp();
    uint32_t before = 0;
    if (first_lane) before = add_and_order(arrivals);
    if (__shfl_sync(0xffffffffu, before, 0) != uint32_t(shares - 1)) return false;
    __syncwarp();
    if (first_lane) *arrivals = 0;  // for the next kernel
#pragma unroll 1
    for (int s = 0; s < SLICES; s += s == 0 ? together + BATCH - 1 : BATCH) {
      // Reads past L1, which may still hold what an earlier kernel read at this address.
      float4 part[BATCH][NT];
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int slice = k == 0 ? s : k + s + (s == 0 ? together - 1 : 0);
#pragma unroll
        for (int n = 0; n < NT; n++) part[k][n] = slice < SLICES ? __ldcg(place + (slice * NT + n) * WARP) : float4{};
      }
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const float y[4] = {part[k][n].x, part[k][n].y, part[k][n].z, part[k][n].w};
#pragma unroll
          for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], y[i]);
        }
      }
    }
    return true;
  }
};

}  // namespace pen
