// Token embeddings: x[token] = row of the table · scale, in float32. If tokens have types, the row of the token's type is added. If
// positions are learned, the row of the token's position is added (rounded). A token's id comes with the step or is the id that a slot
// sampled last. If that sampling failed, there is no id: row 0 is read, and the result is discarded.
#pragma once

#include "../device/launch.h"
#include "../quant/matrix.h"

namespace pen {

struct Embed {
  Matrix table;
  const int32_t* inputs;  // [num_tokens] an id, or -1 - slot
  const int32_t* last;    // [max_slots] the id that each slot sampled last
  float* x;               // [num_tokens, hidden] out
  int num_tokens;
  float scale;
  const float* types;          // [types, hidden], null: none
  const uint32_t* token_type;  // [num_tokens]
  Matrix positions;          // table of learned positions; without data if there is none
  const uint32_t* position;  // [num_tokens]
};
void embed(const Launch& launch, const Embed& args);

}  // namespace pen
