// Linear layers: y = W · x.
//
// The numeric definition, which all kernels of this folder and of experts/ keep: weights are the rows (M) of the tensor-core product and
// tokens its columns (N). W's columns are cut into SLICES slices by a rule that depends on the matrix only (slice_begin). A slice is a
// chain of m16n8k16 products in ascending order from zero: float16 weights and inputs, float32 accumulators. The slices' sums are added in
// ascending order from zero, and the epilogue follows; or they are added in halves (Slicing), each of which goes through the epilogue. So
// an output depends neither on the number of tokens nor on the kernel that computed it.
//
// Kernels: decode.cuh and decode_stream.cuh (up to 8 tokens), batch.cuh (up to 64), prefill.cuh (any number); on sm_90a rows.cuh (up to
// 64) and hopper.cuh (any number).
#pragma once

#include "../norm/norm.h"
#include "choose.h"

namespace pen {

enum class Epilogue : int {
  STORE,     // out[n][row] = y
  ADD,       // out[n][row] += y: the residual stream
  SILU_MUL,  // out16[n][row / 2] = silu(gate) · up, for matrices whose tiles hold both (Placement)
  GELU_MUL,
};
__host__ __device__ constexpr bool is_gated(Epilogue epilogue) { return epilogue == Epilogue::SILU_MUL || epilogue == Epilogue::GELU_MUL; }

struct Linear {
  // Matrices that read the same x. Their outputs follow one another in the output's columns.
  Matrix w[MAX_SEGMENTS];
  int out_offset[MAX_SEGMENTS];
  int num_segments;
  const __half* x;  // [num_tokens, ldx], zero beyond the matrix's columns up to a multiple of 64
  int ldx, num_tokens;
  // If norm.x is not null, every block computes its input as this norm instead of reading x. Only if takes_norm() allows it.
  Norm norm;
  float* out;      // [num_tokens, ldo]
  __half* out16;   // [num_tokens, ldo]
  int ldo;
  Epilogue epilogue;
  Slicing slicing;  // halves: with STORE and ADD only
  // Workspace for the sums of blocks that share a tile. Its contents do not outlive the kernel. Null: blocks do not share tiles.
  float* slabs;
  size_t slab_bytes;
  uint32_t* arrivals;  // [MAX_SHARED_TILES] zero before and after each kernel
  int max_wait_cycles = 1 << 16;  // how long a block may wait for the others that share its tile
  int stacked = 1;                // more than one: only for linear_stack()
};

// The properties of a product and of a device from which choose.h decides.
ProductShape shape_of(const Linear& args);
ProductDevice product_device(const Device& device);

// Computes the product for any number of tokens. The number decides which kernel runs, but does not change a bit of any row.
void linear(const Launch& launch, const Linear& args);
// Launches what choose() decided for a product of this shape.
void launch_product(const Launch& launch, const Linear& args, const ProductPlan& plan);

// Products of a stack of matrices, stored one below the other as w[0]. Each reads its own columns: matrix i those that start at i · cols.
// Returns false if there is no kernel for that on this device or for such matrices. Best for seventeen tokens and more.
bool linear_stack(const Launch& launch, const Linear& args);

// Launches products of many tokens.
void linear_blocks(const Launch& launch, const Linear& args, const ProductPlan& plan);
void linear_prefill_any(const Launch& launch, const Linear& args);

}  // namespace pen
