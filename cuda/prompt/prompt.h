// A step's work on prompts apart from K and V: copies blocks of a shared prompt, and pools rows into vectors (embeddings).
//
// A vector is the sum of a sequence's rows after the final norm, divided once at the end. A normed row is float32, because no product
// follows that would need float16. Its own sums are float64: each thread adds every 256th column in ascending order, then a tree adds up
// the threads. Rows are added in float64 in the order of their positions. The sum so far is kept per slot, so a vector's bits do not depend
// on how the prompt was cut into chunks.
#pragma once

#include "../norm/norm.h"

namespace pen {

// Copies blocks within pages of `block_bytes`, a multiple of 16. `copies`: [num_copies, 2] from, to. No block is written twice, and no
// written block is read.
void copy_blocks(const Launch& launch, const uint32_t* copies, int num_copies, void* pages, size_t block_bytes);

enum class NormKind { RMS, LAYER, NONE };
// The norm before the head.
struct FinalNorm {
  NormKind kind;
  Norm norm;          // without a branch unless RMS
  const float* bias;  // null: none
};
// out [num_rows, hidden] = the listed rows of the residual stream after the final norm.
void final_rows(const Launch& launch, const int32_t* rows, int num_rows, const FinalNorm& norm, float* out);

// A vector to which rows of this step belong.
struct Pooled {
  int32_t slot;          // keeps the sum between steps
  int32_t seq;           // its row of the output
  int32_t first, count;  // its rows in the list of rows
  int32_t starts;        // not 0: no row was added before
  int32_t divisor;       // divisor of the complete vector; 0: not complete
};
// Adds rows [num_rows, hidden] to the sums [max_slots, hidden] of `pooled`. Complete vectors go to out [num_seqs, hidden].
void pool_rows(const Launch& launch, const Pooled* pooled, int num_vectors, const float* rows, double* sums, float* out, int hidden);

}  // namespace pen
