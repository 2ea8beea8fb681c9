// Computes the sizes of a model's scratch memory. No other file knows them.
#include "scratch.h"

#include "../experts/experts.h"
#include "../linear/linear.h"
#include "context.h"
#include "metadata.h"

namespace pen {

namespace {

// The largest size that several ops need.
struct Largest {
  size_t chosen = 0, groups = 0, order = 0, gate_up = 0, input = 0, outputs = 0;
  std::map<uint32_t, size_t> hidden;

  void count(size_t choices, size_t experts) {
    // Bounds for any group size: there are at most as many groups as with the smallest size, and at most as many places as with the
    // largest.
    groups = std::max(groups, size_t(most_groups(int(choices), int(experts), MIN_GROUP)));
    order = std::max(order, choices + experts * MAX_GROUP);
  }
  void op(const pen_experts& e, size_t rows) {
    const size_t experts = e.chunk_group ? (e.count + e.chunk_group - 1) / e.chunk_group : e.count, choices = rows * e.used;
    count(choices, experts);
    chosen = std::max(chosen, choices);
    gate_up = std::max(gate_up, choices * 2 * e.dim);
    if (e.weigh_input) input = std::max(input, choices * round_up(e.hidden, K_TILE));
    hidden[e.dim] = std::max(hidden[e.dim], choices * round_up(e.dim, K_TILE));
    outputs = std::max(outputs, choices * e.hidden);
  }
};

ExpertScratch expert_scratch(const pen_model_desc& d, size_t rows, Allocator& take) {
  Largest most;
  for (uint32_t i = 0; i < d.num_ops; i++) {
    if (d.ops[i].kind == PEN_OP_EXPERTS) most.op(*static_cast<const pen_experts*>(d.ops[i].args), rows);
    if (d.ops[i].kind == PEN_OP_EACH_HEAD) {
      const uint32_t heads = static_cast<const pen_each_head*>(d.ops[i].args)->heads;
      most.count(rows * heads, heads);
    }
  }
  ExpertScratch e;
  if (most.order == 0) return e;
  e.chosen = take.zeroed(most.chosen * 4);
  e.weights = take.zeroed(most.chosen * 4);
  e.share = take.zeroed(rows * 4);
  e.expert_of = take.zeroed(most.groups * 4);
  e.order = take.zeroed(most.order * 4);
  e.num_groups = take.zeroed(4);
  e.gate_up = take.zeroed(most.gate_up * 4);
  e.input = take.zeroed(most.input * 2);
  for (const auto& [dim, halves] : most.hidden) e.hidden[dim] = take.zeroed(halves * 2);
  e.outputs = take.zeroed(most.outputs * 4);
  return e;
}

}  // namespace

PromptLists::PromptLists(void* base, const pen_model_desc& d) {
  const size_t t = d.max_batch_tokens;
  scored_rows = static_cast<int32_t*>(base);
  scored_ids = scored_rows + t;
  scored_logprobs = scored_ids + t;
  pool_rows = scored_logprobs + t;
  copies = reinterpret_cast<uint32_t*>(pool_rows + t);
  state_copies = copies + 2 * max_copies(d);
  pooled = reinterpret_cast<Pooled*>(state_copies + 4 * d.max_slots);
}

size_t PromptLists::bytes(const pen_model_desc& d) {
  return (4 * size_t(d.max_batch_tokens) + 2 * max_copies(d) + 4 * d.max_slots) * 4 + d.max_slots * sizeof(Pooled);
}

int Scratch::max_rows(const pen_model_desc& d) { return round_seqs(int(d.max_slots)); }

size_t Scratch::workspace_bytes(const pen_model_desc& d) { return size_t(max_rows(d) > 64 ? 256 : 128) << 20; }

Scratch::Scratch(const pen_model_desc& d, Allocator& take) : slots(d, max_rows(d), take) {
  const size_t seqs = size_t(max_rows(d)), most = std::max<size_t>(d.max_batch_tokens, seqs);
  const size_t num_slots = d.max_slots, tokens = d.max_batch_tokens;
  ld_hidden = int(round_up(d.hidden_dim, K_TILE));
  for (uint32_t i = 0; i < d.num_buffers; i++) {
    const pen_buffer& b = d.buffers[i];
    Rows buffer;
    buffer.desc = b;
    buffer.ld = b.type == PEN_F16 ? int(round_up(b.width, K_TILE)) : int(b.width);
    const size_t most_rows = b.rows == PEN_ROWS_STEP ? most : d.most_rows[b.rows];
    buffer.data = take.zeroed(most_rows * b.per_token * buffer.ld * (b.type == PEN_F16 ? 2 : 4));
    rows.push_back(std::move(buffer));
  }
  slices = take.zeroed(most * d.slices * d.hidden_dim * 4);
  last = take.zeroed(seqs * ld_hidden * 2);
  logits = take.zeroed(seqs * d.vocab_size * 4);
  workspace = take.raw(workspace_bytes(d));
  arrivals = take.zeroed(MAX_SHARED_TILES * 4);
  sampler = take.zeroed(sampler_workspace(int(seqs), int(d.vocab_size)));
  experts = expert_scratch(d, most, take);

  params = take.zeroed(num_slots * sizeof(SlotParams));
  counts = take.zeroed(num_slots * d.vocab_size * 4);
  bias_ids = take.zeroed(num_slots * MAX_BIASES * 4);
  biases = take.zeroed(num_slots * MAX_BIASES * 4);
  last_sampled = take.zeroed(num_slots * 4);
  drafts = take.zeroed(tokens * 4);
  drawn = take.zeroed(tokens * 4);
  slot_lists = take.raw((2 * size_t(d.max_positions) + 2 * MAX_BIASES + MAX_SUPPRESSED) * 4);
  const bool has_grid = d.rope_axes != nullptr;
  meta = take.zeroed(MetaLayout(int(most), int(seqs), int(most), 2 * int(d.max_blocks) + 256, int(d.num_groups), has_grid, true).size);
  masks = take.zeroed(seqs * ceil_div(int(d.vocab_size), 32) * 4);

  prompt_lists = take.zeroed(PromptLists::bytes(d));
  scored = take.zeroed(tokens * (1 + MAX_LOGPROBS) * 4);
  scored_ids = take.zeroed(tokens * MAX_LOGPROBS * 4);
  pool_rows = take.zeroed(tokens * d.hidden_dim * 4);
  pool_sums = take.zeroed(num_slots * d.hidden_dim * 8);
  pooled = take.zeroed(num_slots * d.hidden_dim * 4);
}

SamplerState Scratch::sampler_state(const pen_model_desc& d) const {
  return {params.as<SlotParams>(), counts.as<uint32_t>(),        bias_ids.as<uint32_t>(), biases.as<float>(),
          last_sampled.as<int32_t>(), int(d.max_slots), int(d.vocab_size)};
}

}  // namespace pen
