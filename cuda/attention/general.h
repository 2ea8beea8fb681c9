// Attention for whatever the kernels of attention.h cannot do: long heads, values of another length than keys, latent attention, ALiBi,
// windows that do not slide, rows that see later rows. Decode steps and prompts alike.
//
// The numeric definition is that of attention.h, with these additions.
//   ALiBi   s becomes s · scale - slope · |position - key| (under a soft cap: tanh(s · scale / cap) · cap - …), and c is log2(e)
// Where both can compute a row, its bits are those of attention.h's kernels.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "../device/step.h"

namespace pen {

constexpr int GENERAL_DIM = 1024;  // the longest key and value

// Positions that a row at `position` sees, [begin, end). `last` is position + 1, or the sequence's length if rows are bidirectional.
//   SLIDING    [position + 1 - window, last)
//   CHUNKED    [position / window · window, last)
//   SYMMETRIC  [position - window / 2, min(last, position + window / 2 + 1))
enum class Window : int { SLIDING, CHUNKED, SYMMETRIC };

// One layer's pages: k [num_blocks, num_kv_heads, block_size, k_dim], v [num_blocks, num_kv_heads, block_size, v_dim]. k_dim and v_dim are
// multiples of 8, block_size a multiple of 32. In latent attention v is k, and v_dim is k_dim: then keys are read once.
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
  bool bidirectional = false;    // the step then holds all rows of its sequences
  float soft_cap = 0.0f;         // 0: none
  float alibi = 0.0f;            // ALiBi's largest bias (Press et al. 2022); 0: none
  const float* sinks = nullptr;  // [num_heads], null: none
  float* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Bytes of workspace with which steps of up to num_tokens rows and max_context positions can be split over the context. Less does no harm
// but to the time.
size_t attention_general_workspace(const Device& device, int num_tokens, int num_heads, int num_kv_heads, int value_dim, int max_context);
// All sequences of the view, of one row and of more. A step that has both is faster as a view of each: the blocks of a view are as many
// as its longest sequence needs.
void attention_general(const Launch& launch, const GeneralAttention& args, const StepView& step);

}  // namespace pen
