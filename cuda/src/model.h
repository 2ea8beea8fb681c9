// A model on the device: weights, scratch, the state of its slots, its steps in flight.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "context.h"
#include "experts.h"
#include "linear.h"
#include "ops.h"

namespace pen {

// What widens, gates and narrows again: gate_up, or up and perhaps gate. Of experts the data are stacks, the shapes those of one.
struct FeedForward {
  Matrix gate_up, gate, up, down;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  bool fused = false;
};

struct Layer {
  Matrix q, k, v, attn_output;
  FeedForward ffn, shared;           // the experts', and the shared one's
  Matrix router;                     // of experts
  const float* shared_router = nullptr;
  const float *attn_norm = nullptr, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *q_norm = nullptr, *k_norm = nullptr;
  const float *post_attn_norm = nullptr, *ffn_norm = nullptr, *post_ffn_norm = nullptr;
  const float *attn_norm_bias = nullptr, *ffn_norm_bias = nullptr, *attn_output_bias = nullptr;
  uint32_t window = 0, rope = 0;
};

// Activations of the largest step. Columns of float16 rows past a matrix's own stay zero.
struct Scratch {
  Buffer x, x_other, branch, qkv, gate_up;  // float32
  Buffer h, q, attn, ffn, last;             // float16
  Buffer logits, attention, arrivals, sampler;
  int ld_hidden = 0, ld_attn = 0, ld_ffn = 0;
  ExpertScratch experts;
};

// Places in a step's metadata, which travels as one copy.
struct MetaLayout {
  int num_tokens, num_seqs, num_rows, max_blocks;
  size_t results, inputs, positions, slot_mapping, cu_seqlens, context_lens, slots, gather, mask_of, num_logprobs, block_tables, size;
  MetaLayout(int num_tokens, int num_seqs, int num_rows, int max_blocks);
};

// A step's metadata on the device.
struct Step {
  StepView view;
  int32_t* const* results;  // where the address of the sampled ids in pinned memory lies
  const int32_t* inputs;  // [num_tokens]
  const int32_t* slots;   // [num_rows]
  const int32_t* gather;  // [num_rows] or null: every row samples
  const int32_t* mask_of;  // [num_rows]
  const int32_t* num_logprobs;  // [num_rows]
  int num_rows;
  bool has_prefill;
};

// A step whose results have not been collected.
struct InFlight {
  uint64_t step = 0;
  std::vector<int32_t> row_of;  // [num_seqs] its row among the sampled ones, or -1
  std::vector<float> logits;    // [rows, vocab] where wanted
  std::vector<int32_t> num_logprobs;  // [num_seqs] as asked; empty: nobody asked
  Pinned meta, sampled;
  Pinned masks, logprobs, logprob_ids;
  Pinned prompt_lists, scored, scored_ids, pooled;
  std::vector<uint8_t> pools;  // [num_seqs] as asked; empty: nobody asked
  int num_scored = 0, num_pools = 0, num_pool_rows = 0;
  Event done;
  bool pending = false, unsampled = false;
  Step device{};  // while it is unsampled, with its places in the metadata
  size_t mask_of = 0;
};

struct Graph {
  cudaGraphExec_t exec = nullptr;
  bool refused = false;  // there was no memory for it
  ~Graph() { drop(); }
  void drop() {
    if (exec) cudaGraphExecDestroy(exec);
    exec = nullptr;
    refused = true;
  }
};

// Loading: pinned and device buffers that tensors pass through, one piece at a time.
struct Staging {
  struct Slot {
    Pinned pinned;
    Buffer device;
    Stream stream;
    Event done;
    bool used = false;
  };
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Slot*> free;
  std::mutex mutex;
  std::condition_variable available;
};

}  // namespace pen

struct pen_kv {
  pen_model* model;
  pen::Buffer k, v;  // [num_layers, num_blocks, num_kv_heads, block_size, head_dim]
  int num_blocks, block_size;
  pen::KvView layer(int index) const;
};

struct pen_model {
  pen_ctx& ctx;
  pen_model_desc desc;
  std::vector<pen::Layer> layers;
  pen::Matrix token_embd, position_embd, output;
  const float *output_norm = nullptr, *output_norm_bias = nullptr;
  pen::Buffer arena, ropes, overflow;
  size_t arena_used = 0;
  std::mutex arena_mutex;
  std::unique_ptr<pen::Staging> staging;

  pen::Scratch scratch;
  pen::SamplerState sampler{};
  std::vector<pen::Buffer> sampler_buffers;
  pen::Buffer init_lists;  // prompts, biases … of a slot on their way into the sampler's state
  pen::Buffer meta, sampled;
  pen::Buffer masks;
  pen::Buffer prompt_lists, scored, scored_ids, pool_sums, pooled;
  pen::Stream stream;
  pen::InFlight ring[3];
  uint64_t steps = 0;
  std::map<std::tuple<int, int, bool>, pen::Graph> graphs;  // by sequences and blocks a sequence, both rounded up; with sampling?
  bool overlap = false;  // programmatic dependent launch

  pen_model(pen_ctx& ctx, const pen_model_desc& desc);
  void add_tensor(uint32_t slot, uint32_t layer, uint32_t type, uint64_t rows, uint64_t cols, const uint8_t* data, uint64_t nbytes);
  void finish();
};

namespace pen {

// forward.cu: queues a step whose metadata is on the device; logits of `num_rows` rows end up in scratch.logits.
void forward(pen_model& model, const pen_kv& kv, const Step& step);
void sample_step(pen_model& model, const Step& step, bool overlap);  // overlap: directly behind the forward pass
void logprobs_step(pen_model& model, const Step& step, const InFlight& flight);  // after sample_step; into pinned memory
Norm final_norm(const pen_model& model);                 // of the step before: its input lies where the layers left it
void head(pen_model& model, const int32_t* rows, int num_rows);  // logits of rows of the step before, at most max_slots

// prompt.cu: what a step does for prompts. check, begin before the forward pass, finish after the sampling, collect.
struct PromptSizes {
  size_t lists, scored, scored_ids, sums, pooled;
  explicit PromptSizes(const pen_model_desc& desc);
  size_t total() const { return lists + scored + scored_ids + sums + pooled; }
};
void make_prompt_scratch(pen_model& model);
void check_prompt(const pen_model& model, const pen_kv& kv, const pen_batch& batch);
void begin_prompts(pen_model& model, pen_kv& kv, const pen_batch& batch, InFlight& flight);
void finish_prompts(pen_model& model, InFlight& flight);
void collect_prompts(const pen_model& model, const InFlight& flight, pen_output& out);

// step.cu
uint64_t submit(pen_model& model, pen_kv& kv, const pen_batch& batch);
void sample_with_masks(pen_model& model, uint64_t step, const pen_masks& masks);
void collect(pen_model& model, pen_output& out);
void warmup(pen_model& model, pen_kv& kv);
size_t scratch_bytes(const pen_model_desc& desc);
void make_scratch(pen_model& model);

}  // namespace pen
