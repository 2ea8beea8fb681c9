// Token embeddings: x[token] = row of the table · scale, in float32. If tokens have types, the row of the token's type is added. If
// positions are learned, the row of the token's position is added (rounded). A token's id comes with the step, or it is what a slot
// sampled last. If that sampling failed, there is no id: row 0 is read, and the result is thrown away.
#pragma once

#include "../device/launch.h"
#include "../quant/matrix.h"

namespace pen {

struct Embed {
  Matrix table;
  const int32_t* inputs;  // [num_tokens] an id, or -1 - slot
  const int32_t* last;    // [max_slots] what each slot sampled last
  float* x;               // [num_tokens, hidden] out
  int num_tokens;
  float scale;
  const float* types;          // [types, hidden], null: none
  const uint32_t* token_type;  // [num_tokens]
  Matrix positions;          // of learned positions, else without data
  const uint32_t* position;  // [num_tokens]
};
void embed(const Launch& launch, const Embed& args);

}  // namespace pen
