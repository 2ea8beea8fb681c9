// Layers with experts for up to 8 rows: three kernels instead of the six of experts.h, with the same bits.
//
// The first kernel chooses the experts and lists them. The second computes their hidden activations. The third computes their outputs and
// adds them to the stream. Each expert is a group, and its choices are the columns of one product, so an expert is read once. The second
// kernel spreads the row tiles of all experts evenly over the blocks. In the third, a block takes one tile of all experts, so that it can
// add them up. The third kernel requests its weights before it waits for the second.
#pragma once

#include "experts.h"

namespace pen {

struct ExpertDecode {
  Routing routing;  // without adjugates; `chosen` and `weights` are not written
  Matrix gate_up;   // one expert's (Placement: rows of both share tiles); `data` is the stack's
  Matrix down;
  // The shared expert's matrices if their shapes and formats are those of the other experts. Otherwise null, and combine.shared may hold
  // the shared expert's output.
  const uint8_t* shared_gate_up;
  const uint8_t* shared_down;
  const __half* x;  // [num_rows, ldx], zero beyond the matrix's columns up to a multiple of 64
  int ldx;
  __half* hidden;  // scratch [num_rows · used, plus num_rows for a shared expert, ld_hidden], padded like x
  int ld_hidden;
  Activation activation;
  float params[4];                     // the activation's
  const float *gate_bias, *up_bias;    // [num_experts, ffn] or null
  void* lists;                         // scratch of lists_bytes(), aligned to 16
  Combine combine;                     // its outputs, weights, chosen and slot_mapping are not read
};

size_t lists_bytes();
// Whether expert_decode() can compute these arguments, and whether it is faster. Otherwise use the functions of experts.h.
bool can_decode(const Device& device, const ExpertDecode& args);
bool takes_decode(const Device& device, const ExpertDecode& args);
void expert_decode(const Launch& launch, const ExpertDecode& args);

}  // namespace pen
