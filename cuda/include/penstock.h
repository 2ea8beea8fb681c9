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

#define PEN_ABI_VERSION 7u

typedef enum {
  PEN_OK = 0,
  PEN_INVALID_ARG = 1,
  PEN_UNSUPPORTED = 2,
  PEN_OUT_OF_MEMORY = 3,
  PEN_MISSING_TENSOR = 4,
  PEN_CUDA = 5,  // sticky: the device is lost for this process
  PEN_INTERNAL = 6,
} pen_status;

typedef struct pen_ctx pen_ctx;
typedef struct pen_model pen_model;
typedef struct pen_kv pen_kv;

// --- the program: a model as a list of ops ---
//
// A model comes as tensors, buffers and ops. The ops run in their order, once per step, and each names the buffers that it reads and
// writes. Buffers hold rows: `per_token` of them for each row of the step.
#define PEN_NONE 0xffffffffu  // no tensor, no buffer

#define PEN_VECTOR 0      // float32, rows · cols elements
#define PEN_MATRIX 1      // count matrices of rows × cols, one after another
#define PEN_UPPER_HALF 2  // shares a matrix with the tensor behind it, each tile of which holds rows of both: gate, then up
#define PEN_LOWER_HALF 3
typedef struct {
  uint32_t kind, type;  // type: ggml's id
  uint32_t rows, cols, count;
  uint32_t read;  // of `count`, how many a decode step of one row reads
} pen_tensor;

#define PEN_F32 0
#define PEN_F16 1  // a row is padded with zeros to a multiple of 64 elements, as the inputs of products are
typedef struct {
  uint32_t type, width, per_token;
} pen_buffer;

// Elements of a buffer's rows that are cut into heads or groups: element i of head h lies at first + h · stride + i.
typedef struct {
  uint32_t buffer, first, stride;
} pen_part;

// What a layer keeps of each token. Keys of `key_dim`; values of `value_dim`, or, if that is 0, the first elements of the keys. Its blocks
// are those of a cache group. Layers of different groups may share a place, if they keep the same: a block belongs to one group at a time.
typedef struct {
  uint32_t heads, key_dim, value_dim, group, place;
} pen_cache;

// A cache group: what its rows see of the tokens before them.
typedef struct {
  uint32_t window;   // as of attention; 0: all
  uint32_t chunked;  // 1: those from the last multiple of the window on
} pen_group;

// A norm of x, a buffer of float32 rows. With a branch, x first moves: x_out = x + RMSNorm(branch) · branch_weight.
#define PEN_RMS_NORM 0
#define PEN_LAYER_NORM 1
#define PEN_NO_NORM 2
typedef struct {
  uint32_t kind, x, branch, branch_weight, x_out, weight, bias;
  float eps;
} pen_norm;

// out = row of the table · scale (+ row of the types' vector) (+ row of the positions' table)
typedef struct {
  uint32_t table, types, positions, out;
  float scale;
} pen_embed;

// out (float16) = norm(x)
typedef struct {
  pen_norm norm;
  uint32_t out;
} pen_normalise;

// Each head alone: a norm, or a scaling to `length`. `own`: each head has weights of its own.
#define PEN_LENGTH 3
typedef struct {
  pen_part in, out;
  uint32_t kind, heads, dim, weight, bias, own;
  float eps, length;
} pen_group_norm;

#define PEN_STORE 0
#define PEN_ADD 1
#define PEN_SILU_MUL 2
#define PEN_GELU_MUL 3
// out[offset …] = W · x for up to three matrices. x: `in` (float16), or the norm of a buffer unless norm.x is PEN_NONE; then `in` is where
// the norm goes if it is written. SILU_MUL and GELU_MUL take a matrix of two halves and give float16.
typedef struct {
  pen_norm norm;
  uint32_t in, w0, w1, w2, offset1, offset2, out, epilogue;
} pen_linear;

// out = each head's matrix of the stack · its row of `in`: both have a row per token and head.
typedef struct {
  uint32_t stack, in, out, heads;
} pen_each_head;

#define PEN_SILU 0
#define PEN_GELU 1
#define PEN_GELU_ERF 2
#define PEN_RELU 3
#define PEN_RELU_SQUARED 4
#define PEN_SWIGLU_CLAMPED 5
#define PEN_XIELU 6
#define PEN_IDENTITY 7
#define PEN_SIGMOID 8
#define PEN_TANH 9
#define PEN_SOFTPLUS 10
#define PEN_EXP 11
// out = activation(gate) · up, or without a gate activation(up); gate_up: [gate, up] or [up]. `cutoff`, unless 0: the gate first becomes
// max(gate − (mean + cutoff · deviation of its row), 0). xielu: parameters of that activation.
typedef struct {
  uint32_t gate_up, gate_bias, up_bias, out, dim, gated, activation;
  float cutoff, xielu0, xielu1, xielu2, xielu3;
} pen_activate;

// Elementwise, over `heads` heads of `dim` elements: y = then(scale · f(in + bias)), y = factor · y · g(by), out = y or out += y.
// bias: [heads · dim], or [dim] of one row; scale: [heads · dim / scale_group], multiplies. Missing parts are PEN_NONE or PEN_IDENTITY.
typedef struct {
  pen_part in, by, out;
  uint32_t heads, dim, bias, f, scale, scale_group, then, g, add;
  float factor;
} pen_map;

// Bias, clamp, norm, rotation, temperature of each head (cuda/heads/heads.h). It goes to `out`, or, unless `cache` is PEN_NONE, to that
// layer's keys or values.
typedef struct {
  pen_part in, out;
  uint32_t heads, dim, bias, norm, norm_dim, weight, own, norm_bias, norm_behind;
  uint32_t rope, rope_first, rope_halves;
  uint32_t cache, values;
  float clamp, eps, temperature_scale, temperature_floor, temperature_offset;
} pen_heads;

#define PEN_SLIDING 0
#define PEN_CHUNKED 1
#define PEN_SYMMETRIC 2
// Attention over a layer's cache. If `qkv` is not PEN_NONE, it holds fresh q, k and v side by side, which the op finishes with biases,
// norms of heads and rotation, and writes to the cache; else `q` (float16) is ready and the cache written. `general`: with what only the
// general kernel computes.
typedef struct {
  uint32_t qkv, q, out, cache, heads, value_dim, q_bias, k_bias, v_bias, q_norm, k_norm, rope, rope_halves;
  uint32_t general, window, window_kind, bidirectional, sinks;
  float eps, scale, soft_cap, alibi;
} pen_attention;

// Where a mixer's state lies: a layer's, and the first float of it.
typedef struct {
  uint32_t layer, first;
} pen_state;

// A causal convolution over time of `channels` channels, each alone. kernel: [channels, taps].
typedef struct {
  pen_part in, out;
  pen_state state;
  uint32_t kernel, bias, channels, taps, silu;
} pen_convolve;

// A selective scan or a linear attention (cuda/recurrence/recurrence.h). `factors` and `steps`: parts, or vectors that hold for all rows.
typedef struct {
  pen_part x, b, c, factors, steps;
  pen_state state;
  uint32_t constant_factors, a, by_channel, group, heads, keys, values, out;
} pen_scan;

// The gated delta rule (cuda/recurrence/recurrence.h).
typedef struct {
  pen_part q, k, v, decay, beta;
  pen_state state;
  uint32_t by_key, tiled, heads, key_heads, keys, values, out;
} pen_delta;

#define PEN_GATE_SOFTMAX 0
#define PEN_GATE_SIGMOID 1
#define PEN_GATE_SOFTMAX_OF_CHOSEN 2
// out (+)= factor · Σ weight · expert(in) over the experts of each row by `scores`, and the shared expert's part (cuda/experts/experts.h).
typedef struct {
  uint32_t scores, in, out, add;
  uint32_t count, used, gating, normalise, groups, groups_used, choice_bias, output_scales;
  uint32_t chunk_group;  // not 0: adjugate experts, of which each group of that many experts has one
  uint32_t gate, up, down, dim, hidden, gate_bias, up_bias, down_bias, activation, weigh_input;
  uint32_t shared, shared_router, mean_shared;
  float scale, factor;
} pen_experts;

// Four residual streams (AltUp, Gemma 3n): out[to] += Σ (coefficients[to, from] · router) · in[from].
typedef struct {
  uint32_t streams, router, coefficients, hidden;
} pen_predict;

// streams[to] += (x − streams[0]) · (1 + coefficients[to] · router)
typedef struct {
  uint32_t streams, x, router, coefficients, hidden;
} pen_correct;

// out (+)= in · |like| / |in|, row by row
typedef struct {
  pen_part in, like, out;
  uint32_t dim, add;
} pen_match;

#define PEN_OP_EMBED 0
#define PEN_OP_NORMALISE 1
#define PEN_OP_GROUP_NORM 2
#define PEN_OP_LINEAR 3
#define PEN_OP_EACH_HEAD 4
#define PEN_OP_ACTIVATE 5
#define PEN_OP_MAP 6
#define PEN_OP_HEADS 7
#define PEN_OP_ATTENTION 8
#define PEN_OP_CONVOLVE 9
#define PEN_OP_SCAN 10
#define PEN_OP_DELTA 11
#define PEN_OP_EXPERTS 12
#define PEN_OP_PREDICT 13
#define PEN_OP_CORRECT 14
#define PEN_OP_MATCH 15
#define PEN_NUM_OPS 16
typedef struct {
  uint32_t kind;
  const void* args;  // the struct of its kind
} pen_op;

// The logits: cap · tanh(scale · (W · norm(x) + bias) / cap); a cap of 0: none.
typedef struct {
  pen_norm norm;
  uint32_t w, bias;
  float scale, soft_cap;
} pen_head;

typedef struct {
  uint32_t vocab_size, hidden_dim;
  uint32_t max_positions;      // rows of each rotation table
  const uint32_t* rope_dims;   // [num_ropes] rotated elements per head
  const float* rope_tables;    // one table after another, [max_positions, dim] each: cosines of the pairs, then sines; pen_model_need
                               // does not read them
  const pen_tensor* tensors;   // [num_tensors] all of which will come
  const pen_buffer* buffers;   // [num_buffers]
  const pen_cache* caches;     // [num_caches]
  const pen_group* groups;     // [num_groups] at least one
  const uint32_t* states;      // [num_states] floats of recurrent state of a sequence
  const pen_op* ops;           // [num_ops]
  pen_head head;
  uint32_t num_ropes, num_tensors, num_buffers, num_caches, num_groups, num_states, num_ops;
  uint32_t max_batch_tokens, max_slots, max_blocks;  // the largest batch; max_blocks: of one sequence
  uint32_t state_slots;
} pen_model_desc;

// What a model takes of a device's memory, in bytes.
typedef struct {
  uint64_t weights;
  uint64_t step_weights;  // of these, what a decode step of one row reads
  uint64_t scratch;       // activations, the sampler's state, workspaces, buffers for loading, graphs: an estimate from above
  uint64_t kv_token;      // one token's K and V in all layers
  uint64_t state;         // the recurrent states of all slots
} pen_need;

// A tensor type.
typedef struct {
  uint32_t type;     // ggml's id, in
  const char* name;  // out
  uint32_t block_size, block_bytes;  // out: weights and bytes of a block in the file
} pen_quant;

// How a sequence slot samples. Neutral values switch a filter off: see `SamplingParams` in src/logits.
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
  const uint32_t* token_types;    // [num_tokens] rows of the types' vector; null: all 0
  const uint32_t* cu_seqlens_q;   // [num_seqs + 1]
  const uint32_t* context_lens;   // [num_seqs]
  const uint32_t* slot_mapping;   // [num_groups, num_tokens]
  const uint32_t* block_tables;   // [num_groups, num_seqs, max_blocks] what a window has left is not read
  const uint32_t* slots;          // [num_seqs]
  const uint8_t* sample;          // [num_seqs]
  const pen_slot_init* init;      // [num_init]
  const int32_t* num_logprobs;    // [num_seqs] likeliest ids wanted beside the sampled one; -1: no log-probabilities; null: for no sequence
  uint32_t num_copies;            // at most max_slots · num_groups
  const uint32_t* copies;         // [num_copies, 2] from, to: blocks copied before the rows are written; each `to` occurs once
  const uint32_t* state_slots;    // [num_seqs] the recurrent state of each; null if the model has none
  uint32_t num_state_copies;      // at most 2 max_slots
  const uint32_t* state_copies;   // [num_state_copies, 2] from, to: states copied before the rows run; each `to` occurs once
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
// Allocates everything but the KV cache.
pen_status pen_model_begin(pen_ctx* ctx, const pen_model_desc* desc, pen_model** out);
// `count` matrices of a tensor from number `first` on, as blocks of its type. The data may be dropped once this returns.
pen_status pen_model_tensor(pen_model* model, uint32_t tensor, uint32_t first, uint32_t count, const void* data, uint64_t nbytes);
pen_status pen_model_finish(pen_model* model);  // waits for all copies; every tensor must have come
void pen_model_destroy(pen_model* model);
// Makes the model's cache, and captures the graphs of decode steps over short contexts. Addresses are reserved for all `num_blocks` blocks;
// the first `backed` have memory behind them, or all on a device that cannot map memory.
pen_status pen_kv_create(pen_model* model, uint32_t num_blocks, uint32_t backed, uint32_t block_size, pen_kv** out);
// Captures the graphs of other decode steps and of lone prompts until `seconds` have passed. Then there are `captured` of `wanted`. A
// step whose graph is not there launches its kernels one by one.
pen_status pen_kv_capture(pen_kv* kv, double seconds, uint32_t* captured, uint32_t* wanted);
// Puts memory behind the first `num_blocks` blocks, or takes it from behind later ones, which no step in flight may use. Memory comes in
// pages, and so `backed`, the number of blocks that have memory now, may be larger. PEN_OUT_OF_MEMORY: nothing has changed.
pen_status pen_kv_resize(pen_kv* kv, uint32_t num_blocks, uint32_t* backed);
void pen_kv_destroy(pen_kv* kv);
pen_status pen_submit(pen_model* model, pen_kv* kv, const pen_batch* batch, uint64_t* step);
// The rest of a step whose batch said sample_later. It must be the last one submitted, and no other may be submitted before this call.
pen_status pen_sample(pen_model* model, uint64_t step, const pen_masks* masks);
pen_status pen_collect(pen_model* model, pen_output* out);

#ifdef __cplusplus
}
#endif
#endif
