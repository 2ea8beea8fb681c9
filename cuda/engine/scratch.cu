// The sizes of a model's scratch memory, and the only place that knows them.
#include "scratch.h"

#include "../experts/experts.h"
#include "../linear/linear.h"
#include "metadata.h"

namespace pen {

namespace {

constexpr size_t WORKSPACE = size_t(128) << 20;

ExpertScratch expert_scratch(const pen_model_desc& d, const Weights& weights, size_t rows, Allocator& take) {
  ExpertScratch e;
  if (d.num_experts == 0) return e;
  const bool separate = std::any_of(weights.layers.begin(), weights.layers.end(), [](const Layer& l) { return !l.ffn.fused; });
  const size_t choices = rows * d.experts_used;
  e.ld = int(round_up(d.expert_ffn_dim, CHUNK));
  e.scores = take.zeroed(rows * d.num_experts * 4);
  e.chosen = take.zeroed(choices * 4);
  e.weights = take.zeroed(choices * 4);
  e.share = take.zeroed(rows * 4);
  // Whatever the step's groups are: there are no more than groups of eight, and no more places in them than in groups of 64.
  e.expert_of = take.zeroed(size_t(most_groups(int(choices), int(d.num_experts), 8)) * 4);
  e.order = take.zeroed((choices + size_t(d.num_experts) * 64) * 4);
  e.gate_up = take.zeroed(separate ? choices * 2 * d.expert_ffn_dim * 4 : 0);
  e.hidden = take.zeroed(choices * e.ld * 2);
  e.outputs = take.zeroed(choices * d.hidden_dim * 4);
  e.shared = take.zeroed(d.ffn_dim ? rows * d.hidden_dim * 4 : 0);
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
  pooled = reinterpret_cast<Pooled*>(copies + 2 * d.max_slots);
}

size_t PromptLists::bytes(const pen_model_desc& d) {
  return (4 * size_t(d.max_batch_tokens) + 2 * d.max_slots) * 4 + d.max_slots * sizeof(Pooled);
}

Scratch::Scratch(const pen_model_desc& d, const Weights& weights, Allocator& take) {
  // A graph's rows are rounded up, and padding is computed, too.
  const size_t seqs = round_seqs(int(d.max_slots)), rows = std::max<size_t>(d.max_batch_tokens, seqs);
  const size_t heads = size_t(d.num_heads) * d.head_dim, kv = size_t(d.num_kv_heads) * d.head_dim;
  const size_t slots = d.max_slots, tokens = d.max_batch_tokens;
  const auto has_separate = [](const Layer& l) { return !l.ffn.fused || !l.shared.fused; };
  const bool separate = std::any_of(weights.layers.begin(), weights.layers.end(), has_separate);
  ld_hidden = int(round_up(d.hidden_dim, CHUNK));
  ld_attn = int(round_up(heads, CHUNK));
  ld_ffn = int(round_up(d.ffn_dim, CHUNK));
  x = take.zeroed(rows * d.hidden_dim * 4);
  x_other = take.zeroed(rows * d.hidden_dim * 4);
  branch = take.zeroed(rows * d.hidden_dim * 4);
  qkv = take.zeroed(rows * (heads + 2 * kv) * 4);
  gate_up = take.zeroed(separate ? rows * 2 * d.ffn_dim * 4 : 0);
  h = take.zeroed(rows * ld_hidden * 2);
  q = take.zeroed(rows * heads * 2);
  attn = take.zeroed(rows * ld_attn * 2);
  ffn = take.zeroed(rows * ld_ffn * 2);
  last = take.zeroed(seqs * ld_hidden * 2);
  logits = take.zeroed(seqs * d.vocab_size * 4);
  workspace = take.raw(WORKSPACE);
  arrivals = take.zeroed(MAX_SHARED_TILES * 4);
  sampler = take.zeroed(sampler_workspace(int(seqs), int(d.vocab_size)));
  experts = expert_scratch(d, weights, rows, take);

  params = take.zeroed(slots * sizeof(SlotParams));
  counts = take.zeroed(slots * d.vocab_size * 4);
  bias_ids = take.zeroed(slots * MAX_BIASES * 4);
  biases = take.zeroed(slots * MAX_BIASES * 4);
  last_sampled = take.zeroed(slots * 4);
  slot_lists = take.raw((2 * size_t(d.max_positions) + 2 * MAX_BIASES + MAX_SUPPRESSED) * 4);
  meta = take.zeroed(MetaLayout(int(rows), int(seqs), int(seqs), 2 * int(d.max_blocks) + 256).size);
  masks = take.zeroed(seqs * ceil_div(int(d.vocab_size), 32) * 4);

  prompt_lists = take.zeroed(PromptLists::bytes(d));
  scored = take.zeroed(tokens * (1 + MAX_LOGPROBS) * 4);
  scored_ids = take.zeroed(tokens * MAX_LOGPROBS * 4);
  pool_sums = take.zeroed(slots * d.hidden_dim * 8);
  pooled = take.zeroed(slots * d.hidden_dim * 4);
}

SamplerState Scratch::sampler_state(const pen_model_desc& d) const {
  return {params.as<SlotParams>(), counts.as<uint32_t>(),        bias_ids.as<uint32_t>(), biases.as<float>(),
          last_sampled.as<int32_t>(), int(d.max_slots), int(d.vocab_size)};
}

}  // namespace pen
