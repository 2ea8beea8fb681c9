// Attention over pages, and the op before it, which finishes a step's fresh Q, K and V.
//
// Attention is softmax(scale · q Kᵀ) V over the keys that a row sees, for any number of rows per sequence.
//
// The numeric definition, which all kernels keep (cluster.cuh, decode.cuh, long.cuh and persistent.cuh for one row, prefill.cuh,
// prefill_hopper.cuh and prefill_boxed.cuh for more). Keys are cut into tiles of 64 at absolute positions [64 i, 64 i + 64). For a row and
// a tile
//   s   = q · k by tensor-core products, head_dim in steps of 16, ascending, float32; -inf for keys that the row may not see
//   m_i = max(s) · c with c = scale · log2(e);  p = exp2(s · c - m_i) rounded to float16
//         (under a soft cap s becomes tanh(s · scale / cap) before it is masked, and c is cap · log2(e): Gemma 2)
//   l_i = sum of p, O_i = p · V, by tensor-core products over the keys in steps of 16, ascending, from zero
// The tiles that hold a key visible to the row are merged in ascending order (the online softmax: Milakov and Gimelshein 2018; as
// attention: Dao 2023) within KV splits of 512 keys at absolute positions [512 i, 512 i + 512). The KV splits are merged in ascending
// order, from an empty state. A head's sink is merged last, as a tile of m_i = sink · log2(e), l_i = 1 and O_i = 0. Nothing else enters. So
// a row's bits depend neither on the batch nor on the kernel. The spread of tiles over warps, and of KV splits over blocks, may follow the
// batch and the device. KV splits exist for the blocks: a block leaves one partial result per eight tiles.
//
// Fresh Q, K and V get, in this order: bias, RMS norm of each head of Q and K (Qwen3, Gemma 3), rotation of Q and K (RoFormer, Su et al.
// 2021), rounding to float16. All of it is float32, and each operation is rounded. A head's bits depend on that head alone.
#pragma once

#include <cuda_fp16.h>

#include "../device/launch.h"
#include "../device/step.h"
#include "choose.h"

namespace pen {

// One layer's pages of K and of V: [num_blocks, num_kv_heads, block_size, head_dim] each, block_size a multiple of 32.
struct KvView {
  __half* k;
  __half* v;
  int num_blocks, block_size, num_kv_heads, head_dim;
};

// A step's fresh Q, K and V. K and V go to the pages, Q goes to `q`.
struct QkvFinish {
  const float* qkv;  // [num_tokens, (num_heads + 2 num_kv_heads) * head_dim]: q, k, v side by side
  const float *q_bias, *k_bias, *v_bias;  // null: none
  const float *q_norm, *k_norm;           // [head_dim], null: none
  float norm_eps;
  const float* rope;  // [max_positions, rope_dim]: cosines of the rope_dim / 2 pairs, then sines
  int rope_dim;
  bool rope_halves;  // pairs (i, i + rope_dim / 2); otherwise (2i, 2i + 1)
  int num_heads;
  __half* q;  // [num_tokens, num_heads * head_dim]
  KvView kv;
  const uint8_t* rope_axes;  // [rope_dim / 2] which of a row's three positions rotates each pair, in a step with a grid
  bool by_position;          // decode kernels rotate a row by its position; otherwise by its place in the sequence, which they need anyway
};
void qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step);

struct Attention {
  const __half* q;  // [num_tokens, num_heads * head_dim]
  KvView kv;
  __half* out;  // [num_tokens, out_stride] the first num_heads * head_dim of each row are written
  int out_stride;
  int num_heads;
  float scale;
  uint32_t window;  // tokens that a row sees, including itself; 0: all
  float* workspace;
  size_t workspace_bytes;
  float soft_cap = 0.0f;  // scaled scores become soft_cap · tanh(score / soft_cap); 0: no cap
  // Only for head sizes for which attention_extras() is true. Other heads use general.h.
  const float* sinks = nullptr;  // [num_heads] scores of keys without a value, one per head (gpt-oss); null: none
  bool chunked = false;          // a row at `position` sees keys from position / window · window (Llama 4)
};
// Whether heads of this size may have sinks and chunked windows.
bool attention_extras(int head_dim);
// Computes the view's sequences with one row, in parallel over the context. Sequences with more rows cost empty blocks. `fresh`: the rows'
// Q, K and V, which are finished on the way and written to the Q and pages of `args`. Null: qkv_finish has run. That is required if the
// step has a grid, or if a row's position is not its place and the heads are not rotated `by_position`.
void attention_decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh = nullptr);
// Computes the view's sequences with more than one row. Sequences with one row cost empty blocks.
void attention_prefill(const Launch& launch, const Attention& args, const StepView& step);

}  // namespace pen
