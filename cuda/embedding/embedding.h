// Token embeddings: x[token] = row of the table · scale, in float32. If tokens have types, the row of the token's type is added. If
// positions are learned, the row of the token's position is added (rounded). A token's id comes with the step or is the id that a slot
// sampled last. If that sampling failed, there is no id: row 0 is read, and the result is discarded. A row whose input is an embedding is
// in x already, and only a position is added to it. A table without rows for embeddings reads row 0 for them.
#pragma once

#include "../device/launch.h"
#include "../quant/matrix.h"

namespace pen {

// Inputs up to this one are embeddings.
constexpr int32_t FIRST_EMBEDDING = -(1 << 30);

// The token id of an input. Negative if there is none: for an embedding, and if the slot's sampling failed.
__device__ inline int id_of(int32_t input, const int32_t* last) {
  return input >= 0 ? input : input > FIRST_EMBEDDING ? last[-1 - input] : -1;
}

struct Embed {
  Matrix table;
  const int32_t* inputs;  // [num_tokens] an id, -1 - slot, or an embedding
  const int32_t* last;    // [max_slots] the id that each slot sampled last
  float* x;               // [num_tokens, hidden] out; in: the rows that are embeddings
  bool pads_embeddings;   // whether an embedding reads row 0 instead
  int num_tokens;
  float scale;
  const float* types;          // [types, hidden], null: none
  const uint32_t* token_type;  // [num_tokens]
  Matrix positions;          // table of learned positions; without data if there is none
  const uint32_t* position;  // [num_tokens]
};
void embed(const Launch& launch, const Embed& args);

// x += a further slice of the embeddings that rows are. Rows that are tokens stay.
struct AddSlice {
  const float* slices;  // [num_tokens, stride] of which the slice is the first `hidden`
  size_t stride;
  float* x;  // [num_tokens, hidden]
  int hidden;
};
void add_slice(const Launch& launch, const AddSlice& args, const int32_t* inputs, int num_tokens);

}  // namespace pen
