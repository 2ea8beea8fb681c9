// What forward.cu calls: one host function an op. Each is defined in the .cu file of its family and queues its kernels on
// `launch.stream`. Nothing here knows a model, a request or the ABI.
#pragma once

#include "../ops/common.cuh"

namespace pen {

// The step's metadata on the device. Rows past the real ones (a graph's bucket is larger) have slot_mapping NO_SLOT, sequences past
// the real ones a context length of 0.
struct StepView {
  const uint32_t* positions;     // [num_tokens]
  const uint32_t* slot_mapping;  // [num_tokens] block * block_size + offset
  const uint32_t* cu_seqlens_q;  // [num_seqs + 1]
  const uint32_t* context_lens;  // [num_seqs]
  const uint32_t* block_tables;  // [num_seqs, max_blocks]
  int num_tokens, num_seqs, max_blocks;
  int max_query;    // most rows of a sequence in this step (1: decode only)
  int max_context;  // upper bound of context_lens
};
constexpr uint32_t NO_SLOT = 0xffffffffu;

// One layer's pages: [num_blocks, num_kv_heads, block_size, head_dim] each, block_size a multiple of 32.
struct KvView {
  __half* k;
  __half* v;
  int num_blocks, block_size, num_kv_heads, head_dim;
};

// Bias, qk-norm and rotation of a step's fresh Q, K and V; K and V go into the pages, Q out in float16.
struct QkvFinish {
  const float* qkv;  // [num_tokens, (num_heads + 2 num_kv_heads) * head_dim]: q, k, v side by side
  const float *q_bias, *k_bias, *v_bias;  // null: none
  const float *q_norm, *k_norm;           // [head_dim], null: none
  float norm_eps;
  const float* rope;  // [max_positions, rope_dim]: cosines of the rope_dim / 2 pairs, then sines
  int rope_dim;
  bool rope_halves;  // pairs (i, i + rope_dim / 2); else (2i, 2i + 1)
  int num_heads;
  __half* q;  // [num_tokens, num_heads * head_dim]
  KvView kv;
};
void qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step);

struct Attention {
  const __half* q;  // [num_tokens, num_heads * head_dim]
  KvView kv;
  __half* out;  // [num_tokens, out_stride] the first num_heads * head_dim of each row
  int out_stride;
  int num_heads;
  float scale;
  uint32_t window;  // tokens a row sees, itself included; 0: all
  float* workspace;
  size_t workspace_bytes;
  float soft_cap = 0.0f;  // scaled scores become soft_cap · tanh(score / soft_cap); 0: as they are
};
// Bytes that a step with these bounds needs.
size_t attention_workspace(int num_seqs, int num_heads, int num_kv_heads, int head_dim, int max_context);
// Sequences with one row, parallel over the context. `fresh`: the rows' Q, K and V are not finished yet, and are finished on the way
// (null: qkv_finish has run).
void attention_decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh = nullptr);
// Sequences with more than one row. Both give a row the same bits.
void attention_prefill(const Launch& launch, const Attention& args, const StepView& step);

// --- sampling ---

// Of a slot; not less than what the API lets through, or one request could fail a whole step.
constexpr int MAX_BIASES = 4096;      // logit biases
constexpr int MAX_SUPPRESSED = 2048;  // stop ids that min_tokens forbids: the request's and the vocabulary's own
constexpr int MAX_LOGPROBS = 20;
struct SlotParams {
  float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  uint32_t top_k, min_tokens, num_biases, num_suppressed, num_generated;
  uint64_t seed;
};
// Device arrays that live as long as the model.
struct SamplerState {
  SlotParams* params;      // [max_slots]
  uint32_t* counts;        // [max_slots, vocab] times generated; bit 31: it is in the prompt, 30: it has a bias, 29: it is suppressed
  uint32_t* bias_ids;      // [max_slots, MAX_BIASES] ascending
  float* biases;           // [max_slots, MAX_BIASES]
  int32_t* last;           // [max_slots] what the slot sampled last: an id, or -2 (not finite)
  int max_slots, vocab;
};
// Sets a slot up from device copies of its lists (all in device memory): clears its counts, marks the prompt's ids where the
// repetition penalty asks, counts the generated ones where any penalty asks.
void sampler_reset(const Launch& launch, const SamplerState& state, uint32_t slot, const SlotParams& params, const uint32_t* prompt,
                   uint32_t num_prompt, const uint32_t* generated, uint32_t num_generated, const uint32_t* bias_ids, const float* biases,
                   const uint32_t* suppressed);
struct Sample {
  const float* logits;  // [num_rows, vocab]
  int num_rows;
  const int32_t* slots;    // [num_rows] device; -1: no row here (padding)
  const uint32_t* masks;   // null, or [num_masks, ceil(vocab / 32)]: bit 0 forbids the id
  const int32_t* mask_of;  // [num_rows] row of masks, or -1; null: no masks at all
  const int32_t* num_logprobs;  // [num_rows] -1: none; n: those of the chosen and of the n likeliest; null: none at all
  float* logprobs;         // [num_rows, 1 + MAX_LOGPROBS] out: the chosen one's, then the likeliest in descending order
  int32_t* logprob_ids;    // [num_rows, MAX_LOGPROBS] out
  int32_t* sampled;        // [num_rows] out: an id or -2; also written to state.last
  int32_t* const* copy;    // where the address of a copy of these lies, of rows that are no padding; null: none
  void* workspace;
  size_t workspace_bytes;
};
size_t sampler_workspace(int num_rows, int vocab);
// What rows ask for (slots, mask_of, the slots' parameters) is read ahead of the wait: a call must not follow programmatically on anything that
// writes them, directly or through kernels between: another call, sampler_reset.
void sample(const Launch& launch, const SamplerState& state, const Sample& args);
// The log-probabilities alone, of the same rows after `sample`, which computes them by itself where `num_logprobs` is there.
void sample_logprobs(const Launch& launch, const SamplerState& state, const Sample& args);

}  // namespace pen
