// The C interface of the CUDA engine, in plain C without CUDA types. Everything that enters or leaves the device passes through it.
//
// Every fallible call returns a status and stores its message for pen_last_error(). Results are returned through out-pointers. No exception
// crosses the interface, and no call aborts the process. A model, its KV cache and its steps belong to one thread at a time. Only
// pen_model_tensor may be called from several threads at once.
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEN_ABI_VERSION 12u

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
// A model is described by tensors, buffers and ops. Each step runs the ops once, in their order. Each op names the buffers that it reads
// and writes. A buffer holds `per_token` rows for each row of a set: the rows of the step, or one of the sets of a picture encoder.
#define PEN_NONE 0xffffffffu  // no tensor, no buffer

#define PEN_ROWS_STEP 0
#define PEN_ROWS_PATCHES 1
#define PEN_ROWS_TOWER 2
#define PEN_ROWS_CELLS 3
#define PEN_ROWS_QUERIES 4
#define PEN_ROWS_BROKEN 5
#define PEN_NUM_ROW_SETS 6

#define PEN_VECTOR 0      // float32, rows · cols elements
#define PEN_MATRIX 1      // `count` matrices of rows × cols, one after another
#define PEN_UPPER_HALF 2  // shares a matrix with the next tensor; each tile of the matrix holds rows of both: gate, then up
#define PEN_LOWER_HALF 3
typedef struct {
  uint32_t kind, type;  // type: ggml's id
  uint32_t rows, cols, count;
  uint32_t read;  // how many of the `count` matrices a decode step of one row reads
} pen_tensor;

#define PEN_F32 0
#define PEN_F16 1  // each row is padded with zeros to a multiple of 64 elements, as inputs of products are
typedef struct {
  uint32_t type, width, per_token, rows;  // rows: PEN_ROWS_*
} pen_buffer;

// A part of a buffer's rows, cut into heads or groups. Element i of head h lies at first + h · stride + i.
typedef struct {
  uint32_t buffer, first, stride;
} pen_part;

// The part of the cache that a layer uses per token: keys of `key_dim` and values of `value_dim`. If value_dim is 0, the values are the
// first elements of the keys. The layer uses the blocks of one cache group. Layers of different groups may share a place if their shapes
// are equal: a block belongs to one group at a time.
typedef struct {
  uint32_t heads, key_dim, value_dim, group, place;
} pen_cache;

// A cache group: which earlier tokens its rows see.
typedef struct {
  uint32_t window;   // as in pen_attention; 0: all tokens
  uint32_t chunked;  // 1: the tokens since the last multiple of the window
} pen_group;

// Norm of x, a buffer of float32 rows. If there is a branch, it is added to x first: x_out = x + RMSNorm(branch) · branch_weight.
#define PEN_RMS_NORM 0
#define PEN_LAYER_NORM 1
#define PEN_NO_NORM 2
typedef struct {
  uint32_t kind, x, branch, branch_weight, x_out, weight, bias;
  float eps;
} pen_norm;

// out = row of the table · scale (+ row of the token types' table) (+ row of the positions' table). A row whose input is an embedding is
// that embedding (+ row of the positions' table), or that of token 0 if `pads_embeddings` is not 0.
typedef struct {
  uint32_t table, types, positions, out, pads_embeddings;
  float scale;
} pen_embed;

// out (float16) = norm(x)
typedef struct {
  pen_norm norm;
  uint32_t out;
} pen_normalise;

// Norm of each head by itself, or its scaling to `length`. `own`: each head has its own weights.
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
// out[offset …] = W · x for up to three matrices. x is the norm of a buffer, or `in` (float16) if norm.x is PEN_NONE. If there is a norm
// and it is written to memory, it goes to `in`. SILU_MUL and GELU_MUL take a matrix of two halves and write float16. The columns of x begin
// at `first` of `in`. They are cut into 1, 2, 4 or 8 slices, whose sums are added in halves if `halves` is not 0 (cuda/linear/shape.h).
// There must be PEN_HALVES_COLUMNS columns for that.
#define PEN_HALVES_COLUMNS 8192
typedef struct {
  pen_norm norm;
  uint32_t in, first, w0, w1, w2, offset1, offset2, out, epilogue, slices, halves;
} pen_linear;

// Adds up what shards have summed (cuda/elementwise/exchange.h). The parts are the sums of neighbouring slices in ascending order: two of
// four slices each, or eight; PEN_NONE: an empty slice. For each output that is not PEN_NONE: out += the sum of the parts, or if `halves`,
// out = (out + the sum of the first half) + that of the second, or the same without the old value if `add` is 0. All buffers are float32
// and have one width.
typedef struct {
  uint32_t part0, part1, part2, part3, part4, part5, part6, part7, num_parts;
  uint32_t out0, out1, out2, out3, out4, out5, out6, out7, add, halves;
} pen_exchange;

// out = each head's matrix of the stack · that head's row of `in`. Both buffers have one row per token and head.
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
#define PEN_GELU_QUICK 12
// out = activation(gate) · up, or activation(up) without a gate. gate_up: [gate, up] or [up]. If `cutoff` is not 0, the gate first becomes
// max(gate − (mean + cutoff · deviation of its row), 0). xielu0 to xielu3 are the parameters of PEN_XIELU.
typedef struct {
  uint32_t gate_up, gate_bias, up_bias, out, dim, gated, activation;
  float cutoff, xielu0, xielu1, xielu2, xielu3;
} pen_activate;

// Elementwise over `heads` heads of `dim` elements: y = then(scale · f(in + bias)), y = factor · y · g(by), then out = y or out += y. bias:
// [heads · dim], or [dim] for one head. scale: a factor per scale_group elements, [heads · dim / scale_group]. Missing parts are PEN_NONE
// or PEN_IDENTITY.
typedef struct {
  pen_part in, by, out;
  uint32_t heads, dim, bias, f, scale, scale_group, then, g, add;
  float factor;
} pen_map;

#define PEN_PAIRS_ADJACENT 0  // (2i, 2i + 1)
#define PEN_PAIRS_HALVES 1    // (i, i + n / 2) of n rotated elements
#define PEN_PAIRS_QUARTERS 2  // the halves of each half of the rotated elements
// Bias, clamp, norm, rotation and temperature of each head (cuda/heads/heads.h). The result goes to `out`, or to the keys or values of
// layer `cache` unless that is PEN_NONE. rope_pairs: PEN_PAIRS_*.
typedef struct {
  pen_part in, out;
  uint32_t heads, dim, bias, norm, norm_dim, weight, own, norm_bias, norm_behind;
  uint32_t rope, rope_first, rope_pairs;
  uint32_t cache, values;
  float clamp, eps, temperature_scale, temperature_floor, temperature_offset;
} pen_heads;

#define PEN_SLIDING 0
#define PEN_CHUNKED 1
#define PEN_SYMMETRIC 2
#define PEN_SIGHT_CAUSAL 0
#define PEN_SIGHT_WHOLE 1
#define PEN_SIGHT_LATER 2
// Attention over a layer's cache. If `qkv` is not PEN_NONE, it holds fresh q, k and v side by side. The op applies their biases, head norms
// and rotation and writes k and v to the cache. Otherwise `q` (float16) is ready and the cache is written. `general`: the op needs features
// that only the general kernel computes. `run_sight` says which rows of its run a row of a whole run sees besides: none, all, or the later
// ones.
typedef struct {
  uint32_t qkv, q, out, cache, heads, value_dim, q_bias, k_bias, v_bias, q_norm, k_norm, rope, rope_halves;
  uint32_t general, window, window_kind, bidirectional, run_sight, sinks;
  float eps, scale, soft_cap, alibi;
} pen_attention;

// Place of a mixer's state: the layer, and the offset of its first float.
typedef struct {
  uint32_t layer, first;
} pen_state;

// Causal convolution over time, each of the `channels` channels by itself. kernel: [channels, taps].
typedef struct {
  pen_part in, out;
  pen_state state;
  uint32_t kernel, bias, channels, taps, silu;
} pen_convolve;

// A selective scan or a linear attention (cuda/recurrence/recurrence.h). `factors` and `steps` are parts of buffers, or vectors that hold
// for all rows.
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
// out (+)= factor · Σ weight · expert(in) over the experts that `scores` chooses for each row, plus the shared expert
// (cuda/experts/experts.h).
typedef struct {
  uint32_t scores, in, out, add;
  uint32_t count, used, gating, normalise, groups, groups_used, choice_bias, output_scales;
  uint32_t chunk_group;  // if not 0: adjugate experts, one for each group of that many experts
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

// out (+)= in · |like| / |in|, for each row
typedef struct {
  pen_part in, like, out;
  uint32_t dim, add;
} pen_match;

// out += slice `slice` of the embeddings, for rows that are embeddings. Slice 0 is what the row begins with.
typedef struct {
  uint32_t slice, out;
} pen_add_slice;

// out (float16 or float32) = the pixels of each patch, colour by colour and line by line [3, size, size]. A pixel x of 0 to 255 becomes
// (x / 255 - mean) / deviation.
typedef struct {
  uint32_t out, size;
  float mean0, mean1, mean2, deviation0, deviation1, deviation2;
} pen_patches;

// out = the sum of weighted rows, or out += it, for `parts` equal parts of each row. The rows are those of a buffer of float32, or of a
// table, a vector of rows one after another. The step's list number `list` says which rows, and their weights. interleaved: the elements
// of a part lie `parts` apart.
typedef struct {
  uint32_t in, table, out, parts, interleaved, add, list;
} pen_mix;

// Attention among rows of the step (cuda/pictures/among.h). All four buffers are float16. The step's list number `list` says which rows see
// which. Heads lie `stride` elements apart, those of `out` value_dim.
typedef struct {
  uint32_t q, k, v, out, heads, kv_heads, dim, value_dim, stride, value_stride, list;
  float scale;
} pen_among;

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
#define PEN_OP_EXCHANGE 16
#define PEN_OP_ADD_SLICE 17
#define PEN_OP_PATCHES 18
#define PEN_OP_MIX 19
#define PEN_OP_AMONG 20
#define PEN_NUM_OPS 21
typedef struct {
  uint32_t kind;
  uint32_t rows;     // PEN_ROWS_*: the op runs once for each row of this set
  const void* args;  // the struct that belongs to `kind`
} pen_op;

// The logits: cap · tanh(scale · (W · norm(x) + bias) / cap). A cap of 0 means no cap.
typedef struct {
  pen_norm norm;
  uint32_t w, bias;
  float scale, soft_cap;
} pen_head;

typedef struct {
  uint32_t vocab_size, hidden_dim;
  uint32_t max_positions;      // rows of each rotation table
  const uint32_t* rope_dims;   // [num_ropes] rotated elements per head
  const float* rope_tables;    // one table after another, [max_positions, dim] each: cosines of the pairs, then sines; not read by
                               // pen_model_need
  const uint8_t* rope_axes;    // for one table after another, [dim / 2] each: which of a row's three positions rotates each pair; null: the
                               // first rotates all
  const pen_tensor* tensors;   // [num_tensors] every one must be loaded
  const pen_buffer* buffers;   // [num_buffers]
  const pen_cache* caches;     // [num_caches]
  const pen_group* groups;     // [num_groups] at least one
  const uint32_t* states;      // [num_states] floats of one sequence's recurrent state
  const pen_op* ops;           // [num_ops]
  const uint32_t* inputs;      // [num_inputs] buffers of the residual stream that a step begins with: each row of it is an embedding
  pen_head head;
  uint32_t output;             // a program without a head: the buffer whose rows a step returns in place of logits; otherwise PEN_NONE
  uint32_t num_ropes, num_tensors, num_buffers, num_caches, num_groups, num_states, num_ops, num_inputs;
  uint32_t max_batch_tokens, max_slots, max_blocks;  // the largest batch; max_blocks is per sequence
  uint32_t state_slots;
  uint32_t slices;             // further slices of an embedding, for ops that add one
  const uint32_t* most_rows;   // a picture encoder: [PEN_NUM_ROW_SETS] the most rows of each set; null: a language model
} pen_model_desc;

// Device memory that a model needs [bytes].
typedef struct {
  uint64_t weights;
  uint64_t step_weights;  // what a decode step of one row reads of the weights
  uint64_t scratch;       // activations, the sampler's state, workspaces, buffers for loading, graphs: an upper estimate
  uint64_t kv_token;      // one token's K and V in all layers
  uint64_t state;         // the recurrent states of all slots
} pen_need;

// A tensor type.
typedef struct {
  uint32_t type;     // in: ggml's id
  const char* name;  // out
  uint32_t block_size, block_bytes;  // out: weights and bytes per block in the file
} pen_quant;

// A step of which only the size is known: `rows` rows of each of its sequences, over contexts of the same length.
typedef struct {
  uint32_t num_seqs, rows, context;
} pen_load;

// A model's KV cache.
typedef struct {
  uint32_t num_blocks, block_size;  // in: addresses are reserved for all blocks
  uint32_t backed;            // in: how many of the first blocks get memory; out: how many have memory, all on a device that cannot map it
  uint32_t captured, wanted;  // out: how many graphs there are, and how many there would be with more time
  double capture_seconds;     // in
  uint32_t resident;          // in: PEN_RESIDENT_*
  uint32_t loop_turn;         // out: steps between two points where a loop may end; 0: the model has no loops
  uint32_t loops, loops_wanted;  // out: as `captured` and `wanted`, of loops
  double step_seconds, loop_seconds;  // out: time of a step of one row from the host, and in a loop; 0: not measured
} pen_kv_init;

// Whether decode steps may run in loops on the device: never, if they are as fast there as from the host, or wherever the device has loops.
#define PEN_RESIDENT_OFF 0
#define PEN_RESIDENT_AUTO 1
#define PEN_RESIDENT_ON 2

// How a sequence slot samples. Neutral values disable a filter: see `SamplingParams` in src/logits.
typedef struct {
  uint32_t slot;
  float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  uint32_t top_k, min_tokens;
  uint64_t seed;
  const uint32_t* prompt;  // ids that the repetition penalty counts as seen
  uint32_t num_prompt;
  const uint32_t* generated;  // ids generated so far, if the sequence is resumed
  uint32_t num_generated;
  const uint32_t* bias_ids;
  const float* biases;
  uint32_t num_biases;
  const uint32_t* suppressed;  // not sampled before min_tokens
  uint32_t num_suppressed;
} pen_slot_init;

// The news about a row of a decode step (one row per sequence), and so about its slot: everything that the device does not know yet.
typedef struct {
  uint32_t slot;
  int32_t input;             // as in pen_batch
  int32_t num_logprobs;      // as in pen_batch; -1 if the row does not sample
  uint32_t samples;          // 0: the row is not sampled
  uint32_t is_new;           // 0: the row had the same slot in the last decode step
  uint32_t length;           // the sequence's tokens in the cache, without the row's
  uint32_t room;             // the tokens that its tables hold, more than `length`
  uint32_t position;         // at most `length`; less behind rows that share positions. The slot keeps the difference
  uint32_t state_slot;
  uint32_t first_table, num_tables;  // its changed tables: a part of the batch's
} pen_row;

// Entries of a block table that are new.
typedef struct {
  uint32_t group, first, count;  // entries first … first + count - 1 of the group's table
  uint32_t at;                   // where they begin in the batch's list of blocks
} pen_table;

// Where a step's rows come from. ARRAYS: from the batch's arrays. CHANGES: the slots and rows of the device, after the changes. A decode
// step only. SLOTS: the slots and rows of the device as they are, which stand for the same sequences as in the step before, each one token
// further. Nothing is sent. The arrays are given always.
#define PEN_FROM_ARRAYS 0
#define PEN_FROM_CHANGES 1
#define PEN_FROM_SLOTS 2

// A loop: up to `loop_steps` decode steps that the device runs by itself, each with the rows of the step before, one token further. All
// rows sample, and the block tables hold the places of all steps. A row without room for a step gives ids of no meaning. The steps are a
// multiple of `loop_turn`. Each step is collected by itself.
#define PEN_MAX_LOOP_STEPS 64

#define PEN_FIRST_EMBEDDING (-1073741824)
// One step, as flat arrays like those of the engine's `Batch`. Everything that the struct points to is copied before pen_submit returns.
typedef struct {
  uint32_t num_tokens, num_seqs, num_sampled, num_embeddings, max_blocks, num_init, want_logits;
  uint32_t sample_later;          // if not 0: pen_sample follows once the masks are known
  const int32_t* inputs;          // [num_tokens] an id, -1 - slot for the id that this slot sampled last, or PEN_FIRST_EMBEDDING - n
  const uint32_t* positions;      // [num_tokens]
  const uint32_t* grid_positions;  // [num_tokens, 2] second and third position of each row; null: they equal the first
  const uint32_t* token_types;    // [num_tokens] rows of the token types' table; null: all 0
  const uint32_t* cu_seqlens_q;   // [num_seqs + 1]
  const uint32_t* context_lens;   // [num_seqs]
  const uint32_t* slot_mapping;   // [num_groups, num_tokens]
  const uint32_t* block_tables;   // [num_groups, num_seqs, max_blocks] entries before a window are not read
  const uint32_t* slots;          // [num_seqs]
  const uint32_t* sampled_rows;   // [num_sampled] ascending, any number per sequence
  const pen_slot_init* init;      // [num_init]
  const int32_t* num_logprobs;    // [num_sampled] how many likeliest ids to return with the sampled one; -1: no log-probabilities; null:
                                  // none for any row
  uint32_t num_copies;            // at most max_slots · num_groups
  const uint32_t* copies;         // [num_copies, 2] from, to: blocks copied before rows are written; each `to` occurs once
  const uint32_t* state_slots;    // [num_seqs] each sequence's state slot; null if the model has no recurrent state
  uint32_t num_state_copies;      // at most 2 max_slots
  const uint32_t* state_copies;   // [num_state_copies, 2] from, to: states copied before the rows run; each `to` occurs once
  uint32_t num_scored;            // rows whose next token is known and whose log-probability is requested
  const uint32_t* scored_rows;    // [num_scored] of num_tokens, ascending
  const uint32_t* scored_ids;     // [num_scored] the token that follows
  const uint32_t* scored_logprobs;  // [num_scored] how many likeliest ids to return with it
  const uint8_t* pools;           // [num_seqs] PEN_POOL_*; null: none
  const float* embeddings;        // [num_embeddings, (1 + slices) hidden]
  uint32_t source, num_tables, num_blocks;  // PEN_FROM_*
  const pen_row* rows;            // [num_seqs] if the source is PEN_FROM_CHANGES
  const pen_table* tables;        // [num_tables]
  const uint32_t* blocks;         // [num_blocks]
  uint32_t num_runs;              // whole runs: their rows see each other in layers with run_sight
  const uint32_t* runs;           // [num_runs, 2] the first row of the step, and the number of rows, which one sequence has
  uint32_t loop_steps;            // 0: no loop. Otherwise the source is the slots, changed or not
  uint32_t num_rounds;            // the most adapters of a row; 0: no row has any
  const int32_t* adapters;        // [num_rounds, num_tokens] the place of each row's adapter, or -1
  const float* adapter_scales;    // [num_rounds, num_tokens]
} pen_batch;

#define PEN_MAX_ADAPTERS 64
#define PEN_MAX_ROUNDS 8
// W' = W + scale · B A, which an adapter makes of a matrix of the program's linear ops. Numbers are float16.
typedef struct {
  uint32_t tensor;  // PEN_NONE: the head's matrix
  uint32_t rows, cols, rank;
  float scale;
  const uint16_t* a;  // [rank, cols]
  const uint16_t* b;  // [rows, rank]
} pen_change;

// The ids that the sampled rows of a step may take. Copied before pen_sample returns.
typedef struct {
  uint32_t num_masks;     // at most num_sampled
  uint32_t num_sampled;   // number of sampled rows in the step
  const uint32_t* masks;  // [num_masks, ceil(vocab / 32)] one bit per id, lowest bit first; 0 forbids the id; null if num_masks is 0
  const int32_t* mask_of;  // [num_sampled] row of `masks`, or -1
} pen_masks;

#define PEN_MAX_LOGPROBS 20
// How a sequence's rows become one vector after the final norm: the row at position 0, the last row, or the mean of all rows from position
// 0. PEN_POOL_COMPLETE is added if the sequence ends with this step. Only then is the vector returned.
#define PEN_POOL_NONE 0
#define PEN_POOL_FIRST 1
#define PEN_POOL_LAST 2
#define PEN_POOL_MEAN 3
#define PEN_POOL_COMPLETE 4
#define PEN_SAMPLED_NOT_FINITE (-2)
#define PEN_SAMPLED_SKIPPED (-3)  // the sequence's rows before it were sampled differently from the batch's inputs

typedef struct {
  uint64_t step;         // in: the step's number
  uint32_t ends_loops;   // in: if not 0, the loops in flight end at the next point where they may, those that have not begun at once
  uint32_t num_sampled;  // in: sampled rows of that step; out: 0 if a loop has ended before its next step
  uint32_t goes_on;      // out: whether the loop has further steps to collect
  int32_t* sampled;      // [num_sampled] out: an id, or one of the values above
  float* logits;         // [num_sampled, vocab] out: raw; null: not requested
  float* logprobs;       // [num_sampled, 1 + PEN_MAX_LOGPROBS] out: log-probabilities of the raw logits: the sampled id's, then the
                         // likeliest in descending order; NaN if there is no distribution; rows that were not requested are unchanged;
                         // null: not requested
  int32_t* logprob_ids;  // [num_sampled, PEN_MAX_LOGPROBS] out: the likeliest ids; -1 beyond the vocabulary; null if logprobs is
  uint32_t num_scored;   // in: scored rows of that step
  float* scored;         // [num_scored, 1 + PEN_MAX_LOGPROBS] out, as logprobs; null: none
  int32_t* scored_ids;   // [num_scored, PEN_MAX_LOGPROBS] out, as logprob_ids
  float* pooled;         // [num_seqs, hidden] out; rows of incomplete sequences are unchanged; null: none
  float* stream;         // [num_tokens, hidden] out: the output of a program without a head; null: not requested
} pen_output;

// Which rows each part of a row is a weighted sum of.
typedef struct {
  uint32_t num_parts, num_terms;
  const uint32_t* ends;    // [num_parts] the end of each part's terms
  const uint32_t* rows;    // [num_terms]
  const float* weights;    // [num_terms]
} pen_terms;

// Rows that see each other.
typedef struct {
  uint32_t first, rows, first_key, keys;  // the queries' rows, and those of the keys that they see
} pen_span;
typedef struct {
  uint32_t num_spans;
  const pen_span* spans;  // no row is in two of them
} pen_spans;

// A patch: where its first pixel lies in the pixels, and the bytes from one line of its picture to the next.
typedef struct {
  uint32_t first, line;
} pen_patch;

// Pictures for an encoder. Everything that the struct points to is copied before the call returns.
typedef struct {
  uint32_t num_pixels;         // bytes of pixels
  uint32_t num_terms, num_spans;
  const uint32_t* rows;        // [PEN_NUM_ROW_SETS]
  const uint8_t* pixels;       // lines of RGB
  const pen_patch* patches;    // [rows of PEN_ROWS_PATCHES]
  const uint32_t* positions;   // [rows of PEN_ROWS_TOWER, 2] the second and third position of each row; the first is 0
  const pen_terms* terms;      // [num_terms] the lists of PEN_OP_MIX
  const pen_spans* spans;      // [num_spans] the lists of PEN_OP_AMONG
} pen_pictures;

const char* pen_last_error(void);  // of the calling thread
pen_status pen_device_count(uint32_t* count);
pen_status pen_quant_info(uint32_t abi_version, pen_quant* info);  // refuses callers with another version of this header
pen_status pen_ctx_create(uint32_t device, pen_ctx** out);
void pen_ctx_destroy(pen_ctx* ctx);
// Returns the device's free and total memory, the bytes that the engine holds by its own count, and the device's name. The name is
// truncated to name_size; 0 skips it. Also measures the bytes per second that a copy within the device's memory reads and writes. A null
// pointer skips this; otherwise no step may be in flight.
pen_status pen_mem_info(pen_ctx* ctx, uint64_t* free_bytes, uint64_t* total_bytes, uint64_t* held_bytes, char* name, uint32_t name_size,
                        double* copy_bytes_per_second);
// Needs no device and allocates nothing.
pen_status pen_model_need(const pen_model_desc* desc, pen_need* need);
// Returns the kernels that an op would run in such a step, as the paths of their files under cuda/, separated by commas. The number num_ops
// stands for the head and sampling. The text is truncated to `size`. The device is that of `ctx`, or, if this is null, one of architecture
// `arch`, such as "sm_90a", which need not be there.
pen_status pen_kernels(pen_ctx* ctx, const char* arch, const pen_model_desc* desc, const pen_load* load, uint32_t op, char* text,
                       uint32_t size);
// Allocates everything except the KV cache.
pen_status pen_model_begin(pen_ctx* ctx, const pen_model_desc* desc, pen_model** out);
// Loads `count` matrices of a tensor, starting at number `first`, as blocks of its type. The caller may free the data once this returns.
pen_status pen_model_tensor(pen_model* model, uint32_t tensor, uint32_t first, uint32_t count, const void* data, uint64_t nbytes);
pen_status pen_model_finish(pen_model* model);  // waits for all copies; every tensor must have been loaded
void pen_model_destroy(pen_model* model);
// Creates the model's cache and captures the graphs of decode steps over short contexts, then those of the other decode steps and of lone
// prompts until `capture_seconds` have passed. A step without a graph launches its kernels one by one.
pen_status pen_kv_create(pen_model* model, pen_kv_init* init, pen_kv** out);
// Maps memory for the first `num_blocks` blocks and unmaps that of later ones, which no step in flight may use. Memory is mapped in pages,
// so `backed`, the number of blocks that now have memory, may be larger. PEN_OUT_OF_MEMORY leaves everything unchanged.
pen_status pen_kv_resize(pen_kv* kv, uint32_t num_blocks, uint32_t* backed);
void pen_kv_destroy(pen_kv* kv);
// Loads an adapter to a place below PEN_MAX_ADAPTERS, in place of what is there. Without changes, the place is empty afterwards. Everything
// is copied before the call returns.
pen_status pen_adapter_load(pen_model* model, uint32_t place, const pen_change* changes, uint32_t num_changes);
pen_status pen_submit(pen_model* model, pen_kv* kv, const pen_batch* batch, uint64_t* step);
// Samples a step whose batch set sample_later. It must be the last step submitted, and no other may be submitted before this call.
pen_status pen_sample(pen_model* model, uint64_t step, const pen_masks* masks);
pen_status pen_collect(pen_model* model, pen_output* out);
// Runs a picture encoder and waits for it. out: [rows, width] of the model's output buffer.
pen_status pen_encode(pen_model* model, const pen_pictures* pictures, float* out);

#ifdef __cplusplus
}
#endif
#endif
