// A model on the device: weights, scratch memory, steps in flight.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "../attention/attention.h"
#include "adapters.h"
#include "context.h"
#include "growing.h"
#include "instruction.h"
#include "metadata.h"
#include "scratch.h"
#include "tensors.h"

namespace pen {

struct Staging;
struct PictureMemory;

// A step whose results have not been collected.
struct InFlight {
  uint64_t step = 0;
  std::vector<int32_t> row_of;        // [num_sampled] where the sampled row's logits are
  std::vector<float> logits;          // [rows, vocab] if requested
  std::vector<int32_t> num_logprobs;  // [num_sampled] as requested; empty: none
  std::vector<uint8_t> pools;         // [num_seqs] as requested; empty: none
  int num_scored = 0, num_pools = 0, num_pool_rows = 0;
  Pinned meta, masks, prompt_lists, embeddings, adapters;               // to the device; the last two only once there are any
  Pinned sampled, logprobs, logprob_ids, scored, scored_ids, pooled, stream;  // from the device
  Event done;
  bool pending = false, unsampled = false, wants_logits = false;
  uint32_t loop_steps = 0, loop_collected = 0;  // of a loop: the most steps, and those whose ids the host has taken
  // The step's metadata on the device, and where mask_of lies in `meta`, if it is not sampled yet.
  Step device{};
  Paging paging{};
  size_t mask_of = 0;

  void allocate(const pen_model_desc& desc, const Scratch& scratch);
};

// The shape of step that a graph has room for: a decode step, where each row is a sequence, or the last rows of one prompt.
struct GraphShape {
  bool prompt;
  int tokens, blocks;  // rows, and blocks per sequence
  bool sampling;       // whether the graph includes the sampling

  int num_seqs() const { return prompt ? 1 : tokens; }
  bool operator==(const GraphShape& o) const { return !(*this < o) && !(o < *this); }
  bool operator<(const GraphShape& o) const {
    return std::tie(prompt, tokens, blocks, sampling) < std::tie(o.prompt, o.tokens, o.blocks, o.sampling);
  }
};

struct Graph {
  GraphShape shape{};
  cudaGraphExec_t exec = nullptr;  // null: memory was lacking
  ~Graph() { drop(); }
  void drop() {
    if (exec) cudaGraphExecDestroy(exec);
    exec = nullptr;
  }
};

// The graph of a decode step whose rows have adapters.
struct AdaptedGraph {
  Graph graph;
  int num_steps = 0;  // before it is captured
};

// When the steps of loops end, as the host has seen it.
struct Pace {
  std::chrono::steady_clock::time_point last{};
  std::chrono::duration<double> step{0};
};

}  // namespace pen

// The arrays of K and V, one of each per place: [num_blocks, heads, block_size, dim]. The first `backed` blocks have memory.
struct pen_kv {
  pen_model* model;
  std::vector<pen_cache> places;
  const pen::Driver* driver;  // null: all blocks have memory
  pen::ZeroPage zeros;
  std::vector<pen::Growing> keys, values;  // values: empty if they are the first elements of the keys
  int num_blocks, block_size, backed = 0;
  uint32_t zero_block;  // never written

  pen_kv(pen_model& model, uint32_t num_blocks, uint32_t block_size);
  // Maps memory to at least the first `blocks` blocks, unmaps that of later ones, and sets `backed`. Throws PEN_OUT_OF_MEMORY if there is
  // too little. Then nothing has changed.
  void resize(uint32_t blocks);
  pen::KvView layer(uint32_t cache) const;
  pen::CacheShape shape() const;
  pen::Paging paging() const;
};

struct pen_model {
  pen_ctx& ctx;
  pen_model_desc desc;  // its pointers are cleared
  std::vector<pen_cache> caches;
  std::vector<pen_group> groups;
  std::vector<uint32_t> rope_dims;  // rotated elements per head
  std::vector<size_t> rope_starts;  // where each rotation table begins
  std::vector<size_t> axis_starts;  // where its axes begin
  pen::Buffer arena;                // holds the weights
  pen::Tensors tensors;
  pen::Buffer ropes, overflow;
  pen::Buffer axes;                 // which of three positions rotates each pair, of all rotations
  bool has_axes;                    // false: always the first one
  std::vector<float*> inputs;       // the buffers that a step's rows are copied to; empty: an op writes them
  std::vector<pen::Buffer> states;  // [state_slots, width] each
  std::vector<uint32_t> state_widths;
  pen::Scratch scratch;
  pen::Adapters adapters;
  pen::SamplerState sampler;
  pen::Slots slots;
  std::unique_ptr<pen::Staging> staging;  // only while the model is loaded
  std::vector<uint32_t> most_rows;        // of each set; empty unless it is a picture encoder
  std::unique_ptr<pen::PictureMemory> pictures;
  pen::Stream stream;
  std::vector<pen::Instruction> program;
  pen::InFlight ring[pen::NUM_FLIGHTS];
  uint64_t advanced = 0;  // the last step after which the rows of `slots` moved on
  uint64_t steps = 0;
  std::map<pen::GraphShape, pen::Graph> graphs;
  std::map<std::pair<pen::GraphShape, bool>, pen::AdaptedGraph> adapted_graphs;  // the second: whether each row has an adapter
  std::vector<std::unique_ptr<pen::Graph>> loops;  // the least recently used one first
  size_t most_loops = 0;
  int loop_turn = 0;                               // steps per turn of a loop; 0: no loops
  bool loops_failed = false;                       // memory was lacking
  pen::Pinned end_loops;                           // [1] the number of the last loop that ends early
  pen::Pace pace;

  pen_model(pen_ctx& ctx, const pen_model_desc& desc);
  ~pen_model();
  bool has_head() const { return desc.output == PEN_NONE; }
  // `overlap`: use programmatic dependent launch if the device has it.
  pen::Launch launch(bool overlap) const { return {ctx.device, stream.handle, overlap && ctx.device.major >= 9}; }

 private:
  pen_model(pen_ctx& ctx, const pen_model_desc& desc, pen::Allocator allocator);
};

namespace pen {

// model.cu
void check_model(const pen_model_desc& desc);  // throws if the description is invalid
pen_need need_of(const pen_model_desc& desc);
// The places of the cache, each with the shape of one of its layers.
std::vector<pen_cache> places_of(const pen_cache* caches, size_t count);

// load.cu
void load_tensor(pen_model& model, uint32_t tensor, uint32_t first, uint32_t count, const uint8_t* data, uint64_t nbytes);
void finish_loading(pen_model& model);

}  // namespace pen
