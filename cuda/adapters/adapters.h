// Low-rank changes of products: y += scale · B (A x), for the rows that ask for them (LoRA, arXiv 2106.09685).
//
// The numeric definition: a row's A x is a sum over columns, each thread of a block adding every 256th group of eight of them, with float16
// weights and inputs and float32 sums; then a tree over the lanes of a warp, then the warps in order. B's products are added in ascending
// order of the rank, one adapter after the other in the order of the row's list. So a row's bits depend on that row alone.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "../elementwise/activation.h"

namespace pen {

// The change of a matrix. A rank of 0: none.
struct LowRank {
  const __half* a;  // [rank, cols]
  const __half* b;  // [rows, rank]
  int rank;
  float scale;
};

constexpr int MAX_CHANGED = 3;  // matrices of one product

// The adapters of a step's rows, of which each has at most `rounds`.
struct AdaptedRows {
  const int32_t* place;  // [rounds, stride] the place of the row's adapter; -1: none
  const float* scale;    // [rounds, stride]
  int rounds, stride;
  const int32_t* row_of;  // [num_rows] the step's row of each row of the product; null: they are the same
};

struct Change {
  AdaptedRows rows;
  const LowRank* changes[MAX_CHANGED];  // [places] for each matrix of the product; null: none
  int num_matrices, max_rank;           // the largest rank of the adapters in use
  const __half* x;                      // [num_rows, ldx]
  int ldx, cols, num_rows;
  float* thin;                          // [rounds, num_matrices, num_rows, ld_thin] scale · A x
  int ld_thin;
  // out [num_rows, ldo] += B · thin, matrix i from column `offset[i]` on
  float* out;
  int ldo, offset[MAX_CHANGED], num_outs[MAX_CHANGED];
};

// thin = scale · A x
void shrink(const Launch& launch, const Change& change);
// out += B · thin
void expand(const Launch& launch, const Change& change);

// Gate and up, whose products lie in tiles of 16 columns: eight of the gate, then the same eight of up. Rows without a change stay.
struct GatedChange {
  Change change;        // of two matrices: gate, then up
  const float* sums;    // [num_rows, ld] the products
  int ld, ffn;
  __half* h;            // [num_rows, ldh] out
  int ldh;
  Activation activation;
};

// h = activation(gate + B · thin) · (up + B · thin)
void expand_gated(const Launch& launch, const GatedChange& change);

}  // namespace pen
