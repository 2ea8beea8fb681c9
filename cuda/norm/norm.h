// Norms of rows of the residual stream: RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016).
//
// Computed for x [rows, hidden] in float32, one row by one block of NORM_THREADS:
//   RMSNorm    h = x · inverse · weight, inverse = rsqrt(Σ x² / hidden + eps). Each product is rounded. The result is rounded to float16.
//              With a branch (architectures that normalise a branch's output before they add it), x is updated first:
//              x += branch · scale · branch_weight, scale = rsqrt(Σ branch² / hidden + eps).
//   LayerNorm  h = (x − mean) · inverse · weight + bias, inverse = 1 / sqrt(Σ (x − mean)² / hidden + eps), rounded to float16.
// Order of the sums: each thread adds its own columns in ascending order by fused multiply-adds (RMSNorm: four neighbouring columns of
// every 1024; LayerNorm: one of every 256), then the lanes of a warp add up by a tree, then the warps in ascending order. A row's bits
// depend on that row alone. A linear layer that normalises its own input (linear/decode.cuh, through rms_row.cuh) gets the same bits.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"

namespace pen {

constexpr int NORM_WARPS = 8;
constexpr int NORM_THREADS = NORM_WARPS * WARP;

struct Norm {
  const float* x;       // [rows, hidden], hidden a multiple of 4
  const float* branch;  // [rows, hidden] or null
  const float* branch_weight;
  float* x_out;         // [rows, hidden] receives the updated x; must not be x itself; null: the updated x is not needed any more
  const float* weight;  // [hidden]
  int hidden;
  float eps;
};

struct LayerNorm {
  const float* x;               // [rows, hidden]
  const float *weight, *bias;   // [hidden]; bias may be null
  int hidden;
  float eps;
  const int32_t* gather;  // [num_rows] as for rms_norm
  __half* h;              // [num_rows, ldh] out
  int ldh;
  bool plain = false;  // h is x itself: the model has no norm here
};

// h [num_rows, ldh] = the norm of rows of x: the first ones, or those that `gather` lists (negative: no row).
void rms_norm(const Launch& launch, const Norm& norm, const int32_t* gather, int num_rows, __half* h, int ldh);
void layer_norm(const Launch& launch, const LayerNorm& norm, int num_rows);

}  // namespace pen
