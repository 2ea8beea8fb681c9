// Layers with experts for up to 8 rows, in three kernels in place of the six of experts.h, with the same bits.
//
// The first chooses the experts and lists them, the second computes what their activations give, the third what they add to the stream.
// Experts are the groups, each expert's choices the columns of one product: an expert is read once. In the second kernel the row tiles of
// all experts are spread evenly over the blocks; in the third a block takes a tile of all experts, so that it can add them up. That one
// requests its weights before it waits for the second.
#pragma once

#include "experts.h"

namespace pen {

constexpr int DECODE_ROWS = 8;
constexpr int DECODE_CHOICES = 128;
constexpr int DECODE_EXPERTS = 512;
constexpr int DECODE_THREADS = SLICES * 32;

struct ExpertDecode {
  Routing routing;  // without adjugates; `chosen` and `weights` are not written
  Matrix gate_up;   // of one expert (Placement: rows of both share tiles), `data` is that of the stack
  Matrix down;
  // The shared expert's matrices, if they have the shapes and formats of the others', or null: then combine.shared may hold what it gave.
  const uint8_t* shared_gate_up;
  const uint8_t* shared_down;
  const __half* x;  // [num_rows, ldx], columns past the matrix's are zero up to a multiple of 64
  int ldx;
  __half* hidden;  // [num_rows · used, and num_rows for a shared expert, ld_hidden] scratch, with columns as those of x
  int ld_hidden;
  Activation activation;
  float params[4];                     // of the activation
  const float *gate_bias, *up_bias;    // [num_experts, ffn] or null
  void* lists;                         // scratch of lists_bytes(), aligned to 16
  Combine combine;                     // its outputs, weights, chosen and slot_mapping are not read
};

size_t lists_bytes();
// Whether expert_decode() can compute these, and whether it should. Otherwise the functions of experts.h do.
bool can_decode(const Device& device, const ExpertDecode& args);
bool takes_decode(const Device& device, const ExpertDecode& args);
void expert_decode(const Launch& launch, const ExpertDecode& args);

}  // namespace pen
