// Attention for everything that the kernels of attention.h cannot do: long heads, values that are shorter or longer than keys, latent
// attention, ALiBi, windows that do not slide, rows that see later rows. Takes decode steps and prompts alike.
//
// The numeric definition is that of attention.h, with these additions.
//   ALiBi   s becomes s · scale - slope · |position - key| (under a soft cap: tanh(s · scale / cap) · cap - …), and c is log2(e)
// If both can compute a row, its bits are those of attention.h's kernels.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "../device/step.h"
#include "general_choose.h"

namespace pen {

// One layer's pages: k [num_blocks, num_kv_heads, block_size, k_dim], v [num_blocks, num_kv_heads, block_size, v_dim]. k_dim and v_dim are
// multiples of 8, block_size is a multiple of 32. In latent attention, v equals k and v_dim equals k_dim, and keys are read once.
struct GeneralKv {
  const __half *k, *v;
  int num_blocks, block_size, num_kv_heads, k_dim, v_dim;
};

struct GeneralAttention {
  const __half* q;  // head h of row t begins at t · ld_q + h · head_dim
  int ld_q;
  GeneralKv kv;
  __half* out;  // head h of row t begins at t · ld_out + h · value_dim
  int ld_out;
  int num_heads;            // a multiple of num_kv_heads
  int head_dim, value_dim;  // up to k_dim and v_dim, and up to GENERAL_DIM
  float scale;
  uint32_t window = 0;  // 0: none
  Window window_kind = Window::SLIDING;
  bool bidirectional = false;    // requires that the step holds all rows of its sequences
  RunSight run_sight = RunSight::CAUSAL;  // in a step with whole runs
  float soft_cap = 0.0f;         // 0: none
  float alibi = 0.0f;            // ALiBi's largest bias (Press et al. 2022); 0: none
  const float* sinks = nullptr;  // [num_heads], null: none
  float* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Computes all sequences of the view, with one row or more. A step that has both is faster as two views, because each sequence of a view
// gets as many blocks as the view's longest sequence needs.
void attention_general(const Launch& launch, const GeneralAttention& args, const StepView& step);

}  // namespace pen
