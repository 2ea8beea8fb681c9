// The layout of a model's weights.
#include "weights.h"

#include <string>

#include "context.h"

namespace pen {

namespace {

// Gate and up in one matrix, or each in its own.
Target gate_of(FeedForward& f, uint64_t ffn, uint64_t hidden, uint64_t count = 1) {
  if (f.fused) return {&f.gate_up, nullptr, ffn, hidden, Placement::UPPER_HALF, count};
  return {&f.gate, nullptr, ffn, hidden, Placement::WHOLE, count};
}
Target up_of(FeedForward& f, uint64_t ffn, uint64_t hidden, uint64_t count = 1) {
  if (f.fused) return {&f.gate_up, nullptr, ffn, hidden, Placement::LOWER_HALF, count};
  return {&f.up, nullptr, ffn, hidden, Placement::WHOLE, count};
}

std::string name_of(uint32_t slot, uint32_t layer) { return "tensor slot " + std::to_string(slot) + " of layer " + std::to_string(layer); }

}  // namespace

Weights::Weights(const pen_model_desc& desc, uint8_t* base) : layers(desc.num_layers) {
  list(desc);
  choose_shapes(desc);
  place(desc, base);
  require_all(desc);
}

void Weights::list(const pen_model_desc& d) {
  for (uint32_t i = 0; i < d.num_tensors; i++) {
    const pen_tensor& t = d.tensors[i];
    const std::string name = name_of(t.slot, t.layer);
    if (t.slot >= PEN_NUM_SLOTS || t.layer >= d.num_layers) throw StatusError(PEN_INVALID_ARG, name + " does not exist");
    const auto [entry, fresh] = listed_.try_emplace({t.slot, t.layer});
    if (!fresh) throw StatusError(PEN_INVALID_ARG, name + " is listed twice");
    entry->second.quant = quant_row(t.type);
    if (!entry->second.quant) throw StatusError(PEN_UNSUPPORTED, name + " has the unknown type " + std::to_string(t.type));
  }
}

Weights::Listed* Weights::listed(uint32_t slot, uint32_t layer) {
  const auto found = listed_.find({slot, layer});
  return found == listed_.end() ? nullptr : &found->second;
}

// Whether both tensors are there and of one type, or neither is there.
bool Weights::alike(uint32_t gate, uint32_t up, uint32_t layer) const {
  const auto quant = [&](uint32_t slot) {
    const auto found = listed_.find({slot, layer});
    return found == listed_.end() ? nullptr : found->second.quant;
  };
  return quant(gate) == quant(up);
}

void Weights::choose_shapes(const pen_model_desc& d) {
  has_gate = d.num_experts > 0 || listed(PEN_FFN_GATE, 0);
  for (uint32_t i = 0; i < d.num_layers; i++) {
    Layer& l = layers[i];
    l.window = d.layers[i].window;
    l.rope = d.layers[i].rope;
    const bool biased = listed(PEN_FFN_GATE_BIAS, i) || listed(PEN_FFN_UP_BIAS, i);
    l.ffn.fused = d.num_experts > 0 ? alike(PEN_FFN_GATE_EXPS, PEN_FFN_UP_EXPS, i) : !biased && alike(PEN_FFN_GATE, PEN_FFN_UP, i);
    l.shared.fused = alike(PEN_FFN_GATE_SHEXP, PEN_FFN_UP_SHEXP, i);
  }
}

Target Weights::target(const pen_model_desc& d, uint32_t slot, uint32_t layer) {
  const uint64_t hidden = d.hidden_dim, heads = uint64_t(d.num_heads) * d.head_dim, kv = uint64_t(d.num_kv_heads) * d.head_dim;
  Layer& l = layers[layer];
  switch (slot) {
    case PEN_TOKEN_EMBD: return {&token_embd, nullptr, d.vocab_size, hidden};
    case PEN_POSITION_EMBD: return {&position_embd, nullptr, d.num_positions, hidden};
    case PEN_OUTPUT: return {&output, nullptr, d.vocab_size, hidden};
    case PEN_OUTPUT_NORM: return {nullptr, &output_norm, 1, hidden};
    case PEN_OUTPUT_NORM_BIAS: return {nullptr, &output_norm_bias, 1, hidden};
    case PEN_ATTN_NORM: return {nullptr, &l.attn_norm, 1, hidden};
    case PEN_ATTN_NORM_BIAS: return {nullptr, &l.attn_norm_bias, 1, hidden};
    case PEN_ATTN_Q: return {&l.q, nullptr, heads, hidden};
    case PEN_ATTN_K: return {&l.k, nullptr, kv, hidden};
    case PEN_ATTN_V: return {&l.v, nullptr, kv, hidden};
    case PEN_ATTN_Q_BIAS: return {nullptr, &l.q_bias, 1, heads};
    case PEN_ATTN_K_BIAS: return {nullptr, &l.k_bias, 1, kv};
    case PEN_ATTN_V_BIAS: return {nullptr, &l.v_bias, 1, kv};
    case PEN_ATTN_Q_NORM: return {nullptr, &l.q_norm, 1, d.head_dim};
    case PEN_ATTN_K_NORM: return {nullptr, &l.k_norm, 1, d.head_dim};
    case PEN_ATTN_OUTPUT: return {&l.attn_output, nullptr, hidden, heads};
    case PEN_ATTN_OUTPUT_BIAS: return {nullptr, &l.attn_output_bias, 1, hidden};
    case PEN_POST_ATTN_NORM: return {nullptr, &l.post_attn_norm, 1, hidden};
    case PEN_FFN_NORM: return {nullptr, &l.ffn_norm, 1, hidden};
    case PEN_FFN_NORM_BIAS: return {nullptr, &l.ffn_norm_bias, 1, hidden};
    case PEN_FFN_GATE: return gate_of(l.ffn, d.ffn_dim, hidden);
    case PEN_FFN_UP: return up_of(l.ffn, d.ffn_dim, hidden);
    case PEN_FFN_DOWN: return {&l.ffn.down, nullptr, hidden, d.ffn_dim};
    case PEN_FFN_GATE_BIAS: return {nullptr, &l.ffn.gate_bias, 1, d.ffn_dim};
    case PEN_FFN_UP_BIAS: return {nullptr, &l.ffn.up_bias, 1, d.ffn_dim};
    case PEN_FFN_DOWN_BIAS: return {nullptr, &l.ffn.down_bias, 1, hidden};
    case PEN_FFN_ROUTER: return {&l.router, nullptr, d.num_experts, hidden};
    case PEN_FFN_GATE_EXPS: return gate_of(l.ffn, d.expert_ffn_dim, hidden, d.num_experts);
    case PEN_FFN_UP_EXPS: return up_of(l.ffn, d.expert_ffn_dim, hidden, d.num_experts);
    case PEN_FFN_DOWN_EXPS: return {&l.ffn.down, nullptr, hidden, d.expert_ffn_dim, Placement::WHOLE, d.num_experts};
    case PEN_SHARED_ROUTER: return {nullptr, &l.shared_router, 1, hidden};
    case PEN_FFN_GATE_SHEXP: return gate_of(l.shared, d.ffn_dim, hidden);
    case PEN_FFN_UP_SHEXP: return up_of(l.shared, d.ffn_dim, hidden);
    case PEN_FFN_DOWN_SHEXP: return {&l.shared.down, nullptr, hidden, d.ffn_dim};
    case PEN_POST_FFN_NORM: return {nullptr, &l.post_ffn_norm, 1, hidden};
    default: return {};
  }
}

void Weights::place(const pen_model_desc& d, uint8_t* base) {
  const bool tied = !listed(PEN_OUTPUT, 0);
  for (const auto& [key, listed] : listed_) {
    const auto [slot, layer] = key;
    const Target t = target(d, slot, layer);
    const std::string name = name_of(slot, layer);
    if (!t.matrix && !t.vector) throw StatusError(PEN_INVALID_ARG, name + " is not loaded, since the rotation tables hold it");
    if (t.vector && listed.quant->id != 0) throw StatusError(PEN_UNSUPPORTED, name + " is a vector of another type than float32");
    if (t.cols % listed.quant->block_size != 0) throw StatusError(PEN_INVALID_ARG, name + " has rows of incomplete blocks");
    uint64_t one = t.cols * sizeof(float);
    if (t.matrix) {
      const bool shared = t.placement != Placement::WHOLE, placed = t.matrix->rows > 0;
      if (placed && !shared) throw StatusError(PEN_INVALID_ARG, name + " is the second tensor for its place");
      if (placed) continue;  // gate and up meet in one matrix: the second of them takes no more memory
      *t.matrix = Matrix{base + bytes, int(shared ? 2 * t.rows : t.rows), int(t.cols), listed.quant->format, listed.quant->record_bytes};
      one = t.matrix->bytes();
    } else {
      *t.vector = reinterpret_cast<const float*>(base + bytes);
    }
    bytes += round_up(one * t.count, 256);
    const bool looked_up = slot == PEN_POSITION_EMBD || (slot == PEN_TOKEN_EMBD && !tied);
    if (!looked_up) step_bytes += round_up(one * (t.count > 1 ? d.experts_used : 1), 256);
  }
  if (tied) output = token_embd;
}

void Weights::require_all(const pen_model_desc& d) const {
  const auto require = [](bool there, const char* what) {
    if (!there) throw StatusError(PEN_MISSING_TENSOR, std::string(what) + " is missing");
  };
  const auto there = [&](uint32_t slot, uint32_t layer) { return listed_.count({slot, layer}) > 0; };
  const auto complete = [](const FeedForward& f, bool gated) {
    return f.down.rows > 0 && (f.fused ? f.gate_up.rows > 0 : f.up.rows > 0 && (!gated || f.gate.rows > 0));
  };
  require(token_embd.rows > 0 && there(PEN_OUTPUT_NORM, 0), "the embedding or the head's norm");
  require(d.num_positions == 0 || position_embd.rows > 0, "the positions' embedding");
  for (uint32_t i = 0; i < d.num_layers; i++) {
    const Layer& l = layers[i];
    require(l.q.rows > 0 && l.k.rows > 0 && l.v.rows > 0 && l.attn_output.rows > 0, "a layer's attention matrix");
    require(complete(l.ffn, has_gate), "a layer's gate, up or down");
    require(d.num_experts == 0 || l.router.rows > 0, "a layer's router");
    require(d.num_experts == 0 || d.ffn_dim == 0 || (there(PEN_SHARED_ROUTER, i) && complete(l.shared, true)), "a layer's shared expert");
    require(there(PEN_ATTN_NORM, i) && there(PEN_FFN_NORM, i), "a layer's norm");
  }
}

bool Weights::complete() const {
  for (const auto& [key, listed] : listed_) {
    if (!listed.came) return false;
  }
  return true;
}

}  // namespace pen
