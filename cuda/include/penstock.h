// The C interface of the CUDA engine: plain C, no CUDA types. Everything that enters or leaves the device passes through it.
//
// Every fallible call returns a status and leaves its text in pen_last_error(); results leave through out-pointers. No exception
// crosses the interface and nothing aborts. A model, its KV cache and its steps belong to one thread at a time; only pen_model_tensor
// may be called from several threads at once.
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEN_ABI_VERSION 4u

typedef enum {
  PEN_OK = 0,
  PEN_INVALID_ARG = 1,
  PEN_UNSUPPORTED = 2,
  PEN_OUT_OF_MEMORY = 3,
  PEN_MISSING_TENSOR = 4,
  PEN_CUDA = 5,  // sticky: the device is lost for this process
  PEN_INTERNAL = 6,
} pen_status;

// What a tensor is for. The order is that of `TensorSlot` in src/model/slots.rs.
typedef enum {
  PEN_TOKEN_EMBD,
  PEN_POSITION_EMBD,
  PEN_OUTPUT_NORM,
  PEN_OUTPUT_NORM_BIAS,
  PEN_OUTPUT,
  PEN_ROPE_FREQS,
  PEN_ROPE_FACTORS_LONG,
  PEN_ROPE_FACTORS_SHORT,
  PEN_ATTN_NORM,
  PEN_ATTN_NORM_BIAS,
  PEN_ATTN_Q,
  PEN_ATTN_K,
  PEN_ATTN_V,
  PEN_ATTN_Q_BIAS,
  PEN_ATTN_K_BIAS,
  PEN_ATTN_V_BIAS,
  PEN_ATTN_Q_NORM,
  PEN_ATTN_K_NORM,
  PEN_ATTN_OUTPUT,
  PEN_ATTN_OUTPUT_BIAS,
  PEN_POST_ATTN_NORM,
  PEN_FFN_NORM,
  PEN_FFN_NORM_BIAS,
  PEN_FFN_GATE,
  PEN_FFN_UP,
  PEN_FFN_DOWN,
  PEN_FFN_GATE_BIAS,
  PEN_FFN_UP_BIAS,
  PEN_FFN_DOWN_BIAS,
  PEN_FFN_ROUTER,
  PEN_FFN_GATE_EXPS,
  PEN_FFN_UP_EXPS,
  PEN_FFN_DOWN_EXPS,
  PEN_SHARED_ROUTER,
  PEN_FFN_GATE_SHEXP,
  PEN_FFN_UP_SHEXP,
  PEN_FFN_DOWN_SHEXP,
  PEN_POST_FFN_NORM,
  PEN_TOKEN_NORM,
  PEN_TOKEN_NORM_BIAS,
  PEN_TOKEN_TYPES,
  PEN_OUTPUT_BIAS,
  PEN_CLASSIFIER,
  PEN_CLASSIFIER_BIAS,
  PEN_CLASSIFIER_OUTPUT,
  PEN_CLASSIFIER_OUTPUT_BIAS,
  PEN_POST_ATTN_NORM_BIAS,
  PEN_POST_FFN_NORM_BIAS,
  PEN_ATTN_Q_NORM_BIAS,
  PEN_ATTN_K_NORM_BIAS,
  PEN_ATTN_SUB_NORM,
  PEN_ATTN_QKV,
  PEN_ATTN_GATE,
  PEN_ATTN_SINKS,
  PEN_ATTN_Q_A,
  PEN_ATTN_Q_A_NORM,
  PEN_ATTN_Q_B,
  PEN_ATTN_KV_A,
  PEN_ATTN_KV_A_NORM,
  PEN_ATTN_KV_B,
  PEN_ATTN_K_B,
  PEN_ATTN_V_B,
  PEN_FFN_SUB_NORM,
  PEN_FFN_ACT_SCALES,
  PEN_FFN_ROUTER_BIAS,
  PEN_FFN_ROUTER_SCALE,
  PEN_EXPERT_CHOICE_BIAS,
  PEN_FFN_NORM_EXPS,
  PEN_POST_FFN_NORM1,
  PEN_POST_FFN_NORM2,
  PEN_FFN_GATE_EXPS_BIAS,
  PEN_FFN_UP_EXPS_BIAS,
  PEN_FFN_DOWN_EXPS_BIAS,
  PEN_FFN_DOWN_EXPS_SCALE,
  PEN_FFN_GATE_CHEXPS,
  PEN_FFN_UP_CHEXPS,
  PEN_FFN_DOWN_CHEXPS,
  PEN_LAYER_OUTPUT_SCALE,
  PEN_PER_LAYER_TOKEN_EMBD,
  PEN_PER_LAYER_MODEL_PROJ,
  PEN_PER_LAYER_PROJ_NORM,
  PEN_PER_LAYER_GATE,
  PEN_PER_LAYER_PROJ,
  PEN_PER_LAYER_POST_NORM,
  PEN_ALTUP_PROJ,
  PEN_ALTUP_UNEMBD_PROJ,
  PEN_ALTUP_CORRECT_COEF,
  PEN_ALTUP_CORRECT_SCALE,
  PEN_ALTUP_PREDICT_COEF,
  PEN_ALTUP_ROUTER,
  PEN_ALTUP_ROUTER_NORM,
  PEN_LAUREL_L,
  PEN_LAUREL_R,
  PEN_LAUREL_POST_NORM,
  PEN_SSM_IN,
  PEN_SSM_X,
  PEN_SSM_DT,
  PEN_SSM_DT_BIAS,
  PEN_SSM_A,
  PEN_SSM_D,
  PEN_SSM_CONV,
  PEN_SSM_CONV_BIAS,
  PEN_SSM_OUT,
  PEN_SSM_NORM,
  PEN_SSM_DT_NORM,
  PEN_SSM_B_NORM,
  PEN_SSM_C_NORM,
  PEN_SSM_ALPHA,
  PEN_SSM_BETA,
  PEN_SSM_BA,
  PEN_SSM_CONV_Q,
  PEN_SSM_CONV_K,
  PEN_SSM_CONV_V,
  PEN_SSM_F_A,
  PEN_SSM_F_B,
  PEN_SSM_G_A,
  PEN_SSM_G_B,
  PEN_SHORT_CONV_IN,
  PEN_SHORT_CONV,
  PEN_SHORT_CONV_OUT,
  PEN_NUM_SLOTS,
} pen_slot;

typedef struct pen_ctx pen_ctx;
typedef struct pen_model pen_model;
typedef struct pen_kv pen_kv;

// A layer's features that differ between layers.
typedef struct {
  uint32_t window;  // tokens that a row sees, itself included; 0: all
  uint32_t rope;    // index of its rotation table
} pen_layer_desc;

// A tensor of the model. Its shape follows from the slot and the model's dimensions: a matrix, the matrices of all experts one after
// another, or a vector, which is always float32 (PEN_SHARED_ROUTER is one).
typedef struct {
  uint32_t slot;
  uint32_t layer;  // 0 for tensors that belong to no layer
  uint32_t type;   // ggml's id
} pen_tensor;

typedef struct {
  uint32_t num_layers, vocab_size, hidden_dim, num_heads, num_kv_heads, head_dim, ffn_dim;
  uint32_t rope_dim;    // rotated elements per head
  uint32_t rope_pairs;  // 0: adjacent elements, 1: halves of the head
  uint32_t activation;  // 0: SiLU, 1: GELU (tanh)
  uint32_t layer_norm;  // 0: RMSNorm, 1: LayerNorm
  uint32_t num_positions;  // rows of PEN_POSITION_EMBD; 0: positions are rotations
  // Experts per layer, of which a row uses `experts_used`; 0: the layers are dense. In a model with experts, ffn_dim is that of the
  // expert that all rows share; 0: there is none.
  uint32_t num_experts, experts_used, expert_ffn_dim, normalise_experts;
  float norm_eps, attn_scale, embedding_scale;
  float attn_soft_cap, final_soft_cap;  // cap · tanh(x / cap) of scaled scores, of logits; 0: none
  uint32_t max_positions;      // rows of each rotation table
  uint32_t num_ropes;
  const float* rope_tables;    // [num_ropes, max_positions, rope_dim]: cosines of the pairs, then sines; pen_model_need does not read it
  const pen_layer_desc* layers;  // [num_layers]
  const pen_tensor* tensors;     // [num_tensors] every tensor that will come
  uint32_t num_tensors;
  uint32_t max_batch_tokens, max_slots, max_blocks;  // the largest batch; max_blocks: of one sequence
} pen_model_desc;

// What a model takes of a device's memory, in bytes.
typedef struct {
  uint64_t weights;
  uint64_t step_weights;  // of these, what a decode step of one row reads
  uint64_t scratch;       // activations, the sampler's state, workspaces, buffers for loading, graphs: an estimate from above
  uint64_t kv_token;      // one token's K and V in all layers
} pen_need;

// A tensor type.
typedef struct {
  uint32_t type;     // ggml's id, in
  const char* name;  // out
  uint32_t block_size, block_bytes;  // out: weights and bytes of a block in the file
} pen_quant;

// How an engine slot samples. Neutral values switch a filter off: see `SamplingParams` in src/logits.
typedef struct {
  uint32_t slot;
  float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  uint32_t top_k, min_tokens;
  uint64_t seed;
  const uint32_t* prompt;  // ids that the repetition penalty counts as seen
  uint32_t num_prompt;
  const uint32_t* generated;  // ids generated before (a resumed sequence)
  uint32_t num_generated;
  const uint32_t* bias_ids;
  const float* biases;
  uint32_t num_biases;
  const uint32_t* suppressed;  // not sampled before min_tokens
  uint32_t num_suppressed;
} pen_slot_init;

// One step: flat arrays as in the engine's `Batch`. Everything that it points to is copied before pen_submit returns.
typedef struct {
  uint32_t num_tokens, num_seqs, max_blocks, num_init, want_logits;
  uint32_t sample_later;          // not 0: pen_sample follows, once the masks are known
  const int32_t* inputs;          // [num_tokens] an id, or -1 - slot: what that slot sampled last
  const uint32_t* positions;      // [num_tokens]
  const uint32_t* cu_seqlens_q;   // [num_seqs + 1]
  const uint32_t* context_lens;   // [num_seqs]
  const uint32_t* slot_mapping;   // [num_tokens]
  const uint32_t* block_tables;   // [num_seqs, max_blocks]
  const uint32_t* slots;          // [num_seqs]
  const uint8_t* sample;          // [num_seqs]
  const pen_slot_init* init;      // [num_init]
  const int32_t* num_logprobs;    // [num_seqs] likeliest ids wanted beside the sampled one; -1: no log-probabilities; null: for no sequence
  uint32_t num_copies;            // at most max_slots
  const uint32_t* copies;         // [num_copies, 2] from, to: blocks copied before the rows are written; each `to` occurs once
  uint32_t num_scored;            // rows whose next token is known, and whose log-probability is asked for
  const uint32_t* scored_rows;    // [num_scored] of num_tokens, ascending
  const uint32_t* scored_ids;     // [num_scored] the token that follows
  const uint32_t* scored_logprobs;  // [num_scored] likeliest ids wanted beside it
  const uint8_t* pools;           // [num_seqs] PEN_POOL_*; null: none
} pen_batch;

// What the sequences of a step may sample; copied before pen_sample returns.
typedef struct {
  uint32_t num_masks;     // at most max_slots
  uint32_t num_seqs;      // of the step
  const uint32_t* masks;  // [num_masks, ceil(vocab / 32)] a bit per id, from the lowest of each word: 0 forbids it; null if num_masks is 0
  const int32_t* mask_of;  // [num_seqs] row of masks, or -1
} pen_masks;

#define PEN_MAX_LOGPROBS 20
// A sequence's rows, after the final norm, become a vector: the row at position 0, the last one, or the mean of all from position 0 on.
// PEN_POOL_COMPLETE is added if the sequence ends with this step: then the vector is handed out.
#define PEN_POOL_NONE 0
#define PEN_POOL_FIRST 1
#define PEN_POOL_LAST 2
#define PEN_POOL_MEAN 3
#define PEN_POOL_COMPLETE 4
#define PEN_SAMPLED_NONE (-1)
#define PEN_SAMPLED_NOT_FINITE (-2)

typedef struct {
  uint64_t step;        // in: which step
  uint32_t num_seqs;    // in: of that step
  int32_t* sampled;     // [num_seqs] out: an id, or one of the values above
  float* logits;        // [num_seqs, vocab] out, raw; rows of those that did not sample stay as they are; null: not asked
  float* logprobs;      // [num_seqs, 1 + PEN_MAX_LOGPROBS] out, of the raw logits: the sampled id's, then the likeliest in descending
                        // order; NaN if there is no distribution; rows of those that did not ask stay as they are; null: not asked
  int32_t* logprob_ids;  // [num_seqs, PEN_MAX_LOGPROBS] out: ids of the likeliest, -1 past the vocabulary; null with logprobs
  uint32_t num_scored;   // in: of that step
  float* scored;         // [num_scored, 1 + PEN_MAX_LOGPROBS] out, as logprobs; null: none
  int32_t* scored_ids;   // [num_scored, PEN_MAX_LOGPROBS] out, as logprob_ids
  float* pooled;         // [num_seqs, hidden] out; rows of those that are not complete stay as they are; null: none
} pen_output;

uint32_t pen_abi_version(void);
const char* pen_last_error(void);  // of this thread
pen_status pen_device_count(uint32_t* count);
pen_status pen_quant_info(pen_quant* info);
pen_status pen_ctx_create(uint32_t device, pen_ctx** out);
void pen_ctx_destroy(pen_ctx* ctx);
// Free and total device memory; what the engine holds, by its own count; the device's name (truncated to fit; name_size 0: not asked);
// and the bytes per second that a copy within the device's memory reads and writes, measured by this call (null: not asked; no step may
// be in flight).
pen_status pen_mem_info(pen_ctx* ctx, uint64_t* free_bytes, uint64_t* total_bytes, uint64_t* held_bytes, char* name, uint32_t name_size,
                        double* copy_bytes_per_second);
// Needs no device: nothing is allocated.
pen_status pen_model_need(const pen_model_desc* desc, pen_need* need);
// Allocates everything but the KV cache. Every required tensor must be listed.
pen_status pen_model_begin(pen_ctx* ctx, const pen_model_desc* desc, pen_model** out);
// A listed tensor, as blocks of its type. The data may be dropped once this returns.
pen_status pen_model_tensor(pen_model* model, uint32_t slot, uint32_t layer, const void* data, uint64_t nbytes);
pen_status pen_model_finish(pen_model* model);  // waits for all copies; every listed tensor must have come
void pen_model_destroy(pen_model* model);
// Allocates the model's cache, and captures the graphs of decode steps.
pen_status pen_kv_create(pen_model* model, uint32_t num_blocks, uint32_t block_size, pen_kv** out);
void pen_kv_destroy(pen_kv* kv);
pen_status pen_submit(pen_model* model, pen_kv* kv, const pen_batch* batch, uint64_t* step);
// The rest of a step whose batch said sample_later. It must be the last one submitted, and no other may be submitted before this call.
pen_status pen_sample(pen_model* model, uint64_t step, const pen_masks* masks);
pen_status pen_collect(pen_model* model, pen_output* out);

#ifdef __cplusplus
}
#endif
#endif
