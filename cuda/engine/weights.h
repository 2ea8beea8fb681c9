// A model's weights: where each tensor goes, and how much memory all of them take.
#pragma once

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "../quant/repack.h"
#include "penstock.h"

namespace pen {

// The matrices of a gated layer (or a layer without a gate). With experts, `data` are stacks and the shapes those of one expert.
struct FeedForward {
  Matrix gate_up, gate, up, down;  // either gate_up or up, with a gate or without
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  bool fused = false;  // gate and up share tiles in gate_up: they are of one type and have no biases
};

struct Layer {
  Matrix q, k, v, attn_output;
  FeedForward ffn;     // dense, or of all experts
  FeedForward shared;  // of the expert that all rows share
  Matrix router;       // scores of the experts
  const float* shared_router = nullptr;
  const float *attn_norm = nullptr, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  const float *post_attn_norm = nullptr, *ffn_norm = nullptr, *post_ffn_norm = nullptr;
  const float *attn_norm_bias = nullptr, *ffn_norm_bias = nullptr, *attn_output_bias = nullptr;
  uint32_t window = 0, rope = 0;
};

// What a tensor fills: a matrix or a vector.
struct Target {
  Matrix* matrix = nullptr;
  const float** vector = nullptr;
  uint64_t rows = 0, cols = 0;
  Placement placement = Placement::WHOLE;
  uint64_t count = 1;  // matrices of this shape, one after another
};

class Weights {
 public:
  // Lays out the listed tensors from `base` on. With a null base nothing may be read, but sizes are right.
  Weights(const pen_model_desc& desc, uint8_t* base);

  std::vector<Layer> layers;
  Matrix token_embd, position_embd, output;
  const float *output_norm = nullptr, *output_norm_bias = nullptr;
  bool has_gate = false;
  uint64_t bytes = 0;       // of all tensors
  uint64_t step_bytes = 0;  // of these, what a decode step of one row reads

  struct Listed {
    const QuantRow* quant;
    std::atomic<bool> came{false};
  };
  // The listed tensor, or null.
  Listed* listed(uint32_t slot, uint32_t layer);
  Target target(const pen_model_desc& desc, uint32_t slot, uint32_t layer);
  bool complete() const;  // all listed tensors have come

 private:
  void list(const pen_model_desc& desc);
  bool alike(uint32_t gate, uint32_t up, uint32_t layer) const;
  void choose_shapes(const pen_model_desc& desc);
  void place(const pen_model_desc& desc, uint8_t* base);
  void require_all(const pen_model_desc& desc) const;

  std::map<std::pair<uint32_t, uint32_t>, Listed> listed_;  // by slot and layer
};

}  // namespace pen
