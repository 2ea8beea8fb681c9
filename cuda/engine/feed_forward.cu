// The feed-forward part of a layer: dense, or experts.
#include "../experts/experts.h"
#include "pass.h"

namespace pen {

void Pass::feed_forward(const Layer& l, const Norm& norm) { m.desc.num_experts > 0 ? experts(l, norm) : dense(l, norm); }

void Pass::dense(const Layer& l, const Norm& norm) const {
  const Scratch& s = m.scratch;
  const FeedForward& f = l.ffn;
  const int ffn = m.desc.ffn_dim;
  const bool gated = m.weights.has_gate;
  __half* const h = s.ffn.as<__half>();
  if (f.fused) {
    Linear args = product(f.gate_up, s.h.as<__half>(), s.ld_hidden, activation(), nullptr, s.ld_ffn);
    args.out16 = h;
    normalise(args, norm, l.ffn_norm_bias);
    linear(launch, args);
  } else {
    float* const gate_up = s.gate_up.as<float>();
    Linear args = product(gated ? f.gate : f.up, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, gate_up, gated ? 2 * ffn : ffn);
    if (gated) {
      args.w[1] = f.up;
      args.out_offset[1] = ffn;
      args.num_segments = 2;
    }
    normalise(args, norm, l.ffn_norm_bias);
    linear(launch, args);
    activate(launch, Activate{gate_up, f.gate_bias, f.up_bias, h, ffn, s.ld_ffn, gated, activation()}, tokens);
  }
  branch(f.down, h, s.ld_ffn, l.post_ffn_norm, f.down_bias);
}

// out = Σ weight · expert(h) over each row's experts, and the shared one's.
void Pass::experts(const Layer& l, const Norm& norm) const {
  const pen_model_desc& d = m.desc;
  const Scratch& s = m.scratch;
  const ExpertScratch& e = s.experts;
  const int num_experts = d.num_experts, used = d.experts_used, hidden = d.hidden_dim, choices = tokens * used;
  const uint32_t* slot_mapping = step.view.slot_mapping;
  __half* const h = s.h.as<__half>();
  rms_norm(launch, norm, nullptr, tokens, h, s.ld_hidden);  // written out, since many read it
  linear(launch, product(l.router, h, s.ld_hidden, Epilogue::STORE, e.scores.as<float>(), num_experts));
  route(launch, Routing{e.scores.as<float>(), slot_mapping, h, l.shared_router, tokens, num_experts, used, s.ld_hidden, hidden,
                        d.normalise_experts != 0, e.chosen.as<int32_t>(), e.weights.as<float>(), e.share.as<float>()});
  const Groups groups(choices, num_experts);
  group_choices(launch, Grouping{e.chosen.as<int32_t>(), choices, num_experts, groups.size, groups.most, e.expert_of.as<int32_t>(),
                                 e.order.as<int32_t>()});
  routed(l, groups.size, groups.most);
  if (l.shared_router) shared(l.shared);
  const float* shared_out = l.shared_router ? e.shared.as<float>() : nullptr;
  combine(launch, Combine{e.outputs.as<float>(), e.weights.as<float>(), shared_out, e.share.as<float>(), slot_mapping,
                          branch_out(l.post_ffn_norm), hidden, used, !l.post_ffn_norm}, tokens);
}

// The outputs of all choices.
void Pass::routed(const Layer& l, int group, int num_groups) const {
  const Scratch& s = m.scratch;
  const ExpertScratch& e = s.experts;
  const int used = m.desc.experts_used, ffn = m.desc.expert_ffn_dim;
  __half* const hidden = e.hidden.as<__half>();
  ExpertLinear args{};
  args.expert_of = e.expert_of.as<int32_t>();
  args.order = e.order.as<int32_t>();
  args.x = s.h.as<__half>();
  args.ldx = s.ld_hidden;
  args.share = used;
  if (l.ffn.fused) {
    args.w[0] = l.ffn.gate_up;
    args.num_segments = 1;
    args.out16 = hidden;
    args.ldo = e.ld;
    args.epilogue = activation();
    expert_linear(launch, args, group, num_groups);
  } else {
    float* const gate_up = e.gate_up.as<float>();
    args.w[0] = l.ffn.gate;
    args.w[1] = l.ffn.up;
    args.out_offset[1] = ffn;
    args.num_segments = 2;
    args.out = gate_up;
    args.ldo = 2 * ffn;
    args.epilogue = Epilogue::STORE;
    expert_linear(launch, args, group, num_groups);
    activate(launch, Activate{gate_up, nullptr, nullptr, hidden, ffn, e.ld, true, activation()}, tokens * used);
  }
  ExpertLinear down{};
  down.expert_of = args.expert_of;
  down.order = args.order;
  down.w[0] = l.ffn.down;
  down.num_segments = 1;
  down.x = hidden;
  down.ldx = e.ld;
  down.share = 1;
  down.out = e.outputs.as<float>();
  down.ldo = m.desc.hidden_dim;
  down.epilogue = Epilogue::STORE;
  expert_linear(launch, down, group, num_groups);
}

// The shared expert: a dense layer for all rows.
void Pass::shared(const FeedForward& f) const {
  const Scratch& s = m.scratch;
  const int ffn = m.desc.ffn_dim;
  __half* const h = s.ffn.as<__half>();
  if (f.fused) {
    Linear args = product(f.gate_up, s.h.as<__half>(), s.ld_hidden, activation(), nullptr, s.ld_ffn);
    args.out16 = h;
    linear(launch, args);
  } else {
    float* const gate_up = s.gate_up.as<float>();
    Linear args = product(f.gate, s.h.as<__half>(), s.ld_hidden, Epilogue::STORE, gate_up, 2 * ffn);
    args.w[1] = f.up;
    args.out_offset[1] = ffn;
    args.num_segments = 2;
    linear(launch, args);
    activate(launch, Activate{gate_up, nullptr, nullptr, h, ffn, s.ld_ffn, true, activation()}, tokens);
  }
  linear(launch, product(f.down, h, s.ld_ffn, Epilogue::STORE, s.experts.shared.as<float>(), m.desc.hidden_dim));
}

}  // namespace pen
