// A model on the device: weights, scratch memory, its steps in flight.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "../attention/attention.h"
#include "context.h"
#include "metadata.h"
#include "scratch.h"
#include "weights.h"

namespace pen {

struct Staging;

// A step whose results have not been collected.
struct InFlight {
  uint64_t step = 0;
  std::vector<int32_t> row_of;        // [num_seqs] its row among the sampled ones, or -1
  std::vector<float> logits;          // [rows, vocab] if wanted
  std::vector<int32_t> num_logprobs;  // [num_seqs] as asked; empty: no sequence asks
  std::vector<uint8_t> pools;         // [num_seqs] as asked; empty: no sequence asks
  int num_scored = 0, num_pools = 0, num_pool_rows = 0;
  Pinned meta, masks, prompt_lists;                                     // to the device
  Pinned sampled, logprobs, logprob_ids, scored, scored_ids, pooled;  // from it
  Event done;
  bool pending = false, unsampled = false;
  // While it is unsampled: the step on the device, and the offset of mask_of in its metadata.
  Step device{};
  size_t mask_of = 0;

  void allocate(const pen_model_desc& desc, const Scratch& scratch);
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

}  // namespace pen

struct pen_kv {
  pen_model* model;
  pen::Buffer k, v;  // [num_layers, num_blocks, num_kv_heads, block_size, head_dim]
  int num_blocks, block_size;

  pen_kv(pen_model& model, uint32_t num_blocks, uint32_t block_size);
  pen::KvView layer(int index) const;
  size_t block_bytes() const;  // of K or V, in one layer
};

struct pen_model {
  pen_ctx& ctx;
  pen_model_desc desc;  // without what it points to
  pen::Buffer arena;    // of the weights
  pen::Weights weights;
  pen::Buffer ropes, overflow;
  pen::Scratch scratch;
  pen::SamplerState sampler;
  std::unique_ptr<pen::Staging> staging;  // while it is being loaded
  pen::Stream stream;
  pen::InFlight ring[3];
  uint64_t steps = 0;
  // By sequences and blocks per sequence, both rounded up; with sampling or without.
  std::map<std::tuple<int, int, bool>, pen::Graph> graphs;

  pen_model(pen_ctx& ctx, const pen_model_desc& desc);
  ~pen_model();
  // `overlap`: programmatic dependent launch, if the device has it.
  pen::Launch launch(bool overlap) const { return {ctx.device, stream.handle, overlap && ctx.device.major >= 9}; }

 private:
  pen_model(pen_ctx& ctx, const pen_model_desc& desc, pen::Allocator allocator);
};

namespace pen {

// model.cu
void check_model(const pen_model_desc& desc);  // throws what this engine does not support
pen_need need_of(const pen_model_desc& desc);

// load.cu
void load_tensor(pen_model& model, uint32_t slot, uint32_t layer, const uint8_t* data, uint64_t nbytes);
void finish_loading(pen_model& model);

}  // namespace pen
