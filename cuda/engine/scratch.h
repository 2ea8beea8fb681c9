// A model's device memory apart from its weights and its KV cache.
#pragma once

#include <map>
#include <vector>

#include "../prompt/prompt.h"
#include "../sampling/sampling.h"
#include "memory.h"
#include "penstock.h"
#include "slots.h"

namespace pen {

// Scratch of experts. experts/experts.h defines a choice.
struct ExpertScratch {
  Buffer chosen, weights;    // [rows, used]
  Buffer share;              // [rows]
  Buffer expert_of, order;   // [groups], [groups, group]
  Buffer num_groups;         // [1]
  Buffer gate_up;            // float32 [choices, 2 ffn], unless gate and up are one matrix
  Buffer input;              // float16 [choices, ld], for experts whose inputs are weighted
  std::map<uint32_t, Buffer> hidden;  // by the experts' inner dimension: float16 [choices, ld], padded with zeros
  Buffer outputs;            // [choices, hidden]
};

// The work of a step on prompts, as arrays in one piece of memory. Each array is as long as the largest step needs.
struct PromptLists {
  int32_t *scored_rows, *scored_ids, *scored_logprobs, *pool_rows;
  uint32_t *copies, *state_copies;
  Pooled* pooled;
  PromptLists(void* base, const pen_model_desc& desc);
  static size_t bytes(const pen_model_desc& desc);
  // The most blocks that a step can copy: a sequence that shares a prompt copies the prompt's last block in each cache group.
  static size_t max_copies(const pen_model_desc& desc) { return size_t(desc.max_slots) * desc.num_groups; }
};

// A buffer of the program.
struct Rows {
  Buffer data;
  pen_buffer desc;
  int ld = 0;  // elements from one row to the next
};

// Scratch memory, sized for the largest step.
struct Scratch {
  std::vector<Rows> rows;  // the program's buffers
  Buffer slices;           // [rows, slices, hidden] further slices of the embeddings that rows are
  Buffer last;             // float16 [rows of the head, ld_hidden]
  Buffer logits;
  int ld_hidden = 0;
  ExpertScratch experts;
  // Workspaces: one that attention and linear layers share, because they never run at the same time, and the sampler's.
  Buffer workspace, arrivals, sampler;
  // The sampler's state.
  Buffer params, counts, bias_ids, biases, last_sampled;
  Buffer slot_lists;  // a slot's prompt, biases … before they enter that state
  Buffer drafts, drawn;  // of a step's sampled rows
  // A step's metadata and masks.
  Buffer meta, masks;
  // A step's work on prompts.
  SlotArrays slots;
  Buffer prompt_lists, scored, scored_ids, pool_rows, pool_sums, pooled;

  Scratch(const pen_model_desc& desc, Allocator& take);
  SamplerState sampler_state(const pen_model_desc& desc) const;
  // Workspace of products and attention [bytes]. The number of attention's partial results grows with the sequences.
  static size_t workspace_bytes(const pen_model_desc& desc);
  // A graph's number of rows is rounded up, and padding rows are computed, too.
  static int max_rows(const pen_model_desc& desc);
};

}  // namespace pen
