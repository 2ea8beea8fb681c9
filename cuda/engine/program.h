// The forward pass: ops, resolved to instructions when the model is created.
#pragma once

#include "../elementwise/map.h"
#include "model.h"

namespace pen {

// Finds what an op names. Throws if it does not exist or its shape is wrong for the op.
class Resolver {
 public:
  explicit Resolver(const pen_model& model) : m(model) {}

  const pen_model& m;

  const Rows& buffer(uint32_t index, uint32_t type) const;
  float* floats(uint32_t index) const { return buffer(index, PEN_F32).data.as<float>(); }
  __half* halves(uint32_t index) const { return buffer(index, PEN_F16).data.as<__half>(); }
  // A head of a buffer of either type. Empty for an operand without a buffer.
  Operand operand(const pen_part& part, uint32_t heads, uint32_t dim) const;
  const Matrix& matrix(uint32_t index, uint32_t rows, uint32_t cols) const;
  const Matrix& matrix(uint32_t index) const { return m.tensors.matrix(index); }
  const float* vector(uint32_t index, uint64_t length) const { return m.tensors.vector(index, length); }
  FinalNorm norm(const pen_norm& norm) const;
  const float* rope(uint32_t index) const { return index == PEN_NONE ? nullptr : m.ropes.as<float>() + m.rope_starts.at(index); }
  // Which of three positions rotates each pair. Null if the model rotates by one.
  const uint8_t* axes(uint32_t rope) const;
  uint32_t cache(uint32_t index) const;
};

Instruction compile(const pen_model& model, const pen_op& op);
// program_attention.cu
Instruction compile_heads(const Resolver& find, const pen_heads& op);
Instruction compile_attention(const Resolver& find, const pen_attention& op);
// program_experts.cu
Instruction compile_experts(const Resolver& find, const pen_experts& op);
Instruction compile_each_head(const Resolver& find, const pen_each_head& op);
// program_pictures.cu
Instruction compile_add_slice(const Resolver& find, const pen_add_slice& op);
Instruction compile_patches(const Resolver& find, const pen_patches& op);
Instruction compile_mix(const Resolver& find, const pen_mix& op);
Instruction compile_among(const Resolver& find, const pen_among& op);
// program_recurrence.cu
Instruction compile_convolve(const Resolver& find, const pen_convolve& op);
Instruction compile_scan(const Resolver& find, const pen_scan& op);
Instruction compile_delta(const Resolver& find, const pen_delta& op);

// Queues an instruction's kernels. Each of these functions runs one kind.
using Run = void(const Instruction& instruction, const Pass& pass);
Run run_heads, run_attention, run_general_attention, run_experts, run_each_head, run_convolve, run_scan, run_delta;
Run run_add_slice, run_patches, run_mix, run_among;

// Instructions [first, end) of a picture encoder's program, and the stream that they are queued on.
struct Slice {
  cudaStream_t stream;
  size_t first, end;
};
// The weights of a product.
double product_weights(const Instruction& instruction);
// Queues some instructions of a picture encoder.
void run_program(pen_model& model, const Step& step, const PictureStep& pictures, const Slice& slice);

// Queues a step whose metadata is on the device. The logits of its rows end up in scratch.logits, in a step with several sampled rows per
// sequence only those of the first max_slots rows.
void forward(pen_model& model, const pen_kv& kv, const Step& step);
// The final norm. Its input is the output of the last step's layers.
FinalNorm final_norm(const pen_model& model);
// Copies a batch's embeddings to where the step's rows begin. Must precede the forward pass.
void place_embeddings(pen_model& model, const pen_batch& batch, InFlight& flight);
// Queues the logits of at most max_slots rows of the last step.
void head(pen_model& model, const int32_t* rows, int num_rows);

}  // namespace pen
