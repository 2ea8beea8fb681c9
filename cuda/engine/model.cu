// What a model takes of a device, and its construction.
#include "model.h"

#include <string>

#include "../experts/experts.h"
#include "staging.h"

namespace pen {

namespace {

// For graphs, kernels' code, and what the driver rounds up.
constexpr size_t RESERVE = size_t(256) << 20;

size_t rope_bytes(const pen_model_desc& d) { return size_t(d.max_positions) * d.rope_dim * d.num_ropes * sizeof(float); }

}  // namespace

void check_model(const pen_model_desc& d) {
  if (d.head_dim > 256 || d.head_dim % 8 != 0) throw StatusError(PEN_UNSUPPORTED, "heads of " + std::to_string(d.head_dim) + " elements");
  if (d.hidden_dim % 4 != 0) throw StatusError(PEN_UNSUPPORTED, "a hidden size of " + std::to_string(d.hidden_dim));
  if (d.num_experts > MAX_EXPERTS) throw StatusError(PEN_UNSUPPORTED, std::to_string(d.num_experts) + " experts");
  if (d.num_experts > 0 && (d.experts_used == 0 || d.experts_used > d.num_experts)) {
    throw StatusError(PEN_INVALID_ARG, "a row uses none of its experts, or more than there are");
  }
}

pen_need need_of(const pen_model_desc& d) {
  const Weights weights(d, nullptr);
  Allocator sizes(nullptr);
  const Scratch scratch(d, weights, sizes);
  pen_need need{};
  need.weights = weights.bytes;
  need.step_weights = weights.step_bytes;
  need.scratch = sizes.bytes() + rope_bytes(d) + STAGING_BYTES + RESERVE;
  need.kv_token = 2 * sizeof(__half) * size_t(d.num_layers) * d.num_kv_heads * d.head_dim;
  return need;
}

void InFlight::allocate(const pen_model_desc& d, const Scratch& s) {
  const size_t slots = d.max_slots;
  meta = Pinned(s.meta.size());
  masks = Pinned(s.masks.size());
  prompt_lists = Pinned(s.prompt_lists.size());
  sampled = Pinned(round_seqs(int(slots)) * 4);
  logprobs = Pinned(slots * (1 + MAX_LOGPROBS) * 4);
  logprob_ids = Pinned(slots * MAX_LOGPROBS * 4);
  scored = Pinned(s.scored.size());
  scored_ids = Pinned(s.scored_ids.size());
  pooled = Pinned(s.pooled.size());
}

}  // namespace pen

using namespace pen;

pen_model::pen_model(pen_ctx& ctx, const pen_model_desc& d) : pen_model(ctx, d, Allocator(&ctx.memory)) {}

pen_model::pen_model(pen_ctx& context, const pen_model_desc& d, Allocator allocator)
    : ctx(context),
      desc(d),
      arena(context.memory, Weights(d, nullptr).bytes, true),
      weights(d, arena.as<uint8_t>()),
      ropes(context.memory, rope_bytes(d)),
      overflow(context.memory, sizeof(int), true),
      scratch(d, weights, allocator),
      sampler(scratch.sampler_state(d)),
      staging(std::make_unique<Staging>(context)) {
  check(cudaMemcpy(ropes.as<float>(), d.rope_tables, rope_bytes(d), cudaMemcpyHostToDevice), "copying rotation tables");
  desc.rope_tables = nullptr;
  desc.layers = nullptr;
  desc.tensors = nullptr;
  for (InFlight& flight : ring) flight.allocate(d, scratch);
  check(cudaDeviceSynchronize(), "preparing device memory");
}

pen_model::~pen_model() = default;

pen_kv::pen_kv(pen_model& m, uint32_t blocks, uint32_t size) : model(&m), num_blocks(int(blocks)), block_size(int(size)) {
  // Zeroed: kernels may read what no row has written yet, and it must not be a NaN.
  const size_t bytes = block_bytes() * blocks * m.desc.num_layers;
  k = Buffer(m.ctx.memory, bytes, true);
  v = Buffer(m.ctx.memory, bytes, true);
}

size_t pen_kv::block_bytes() const { return size_t(block_size) * model->desc.num_kv_heads * model->desc.head_dim * sizeof(__half); }

KvView pen_kv::layer(int index) const {
  const pen_model_desc& d = model->desc;
  const size_t offset = index * block_bytes() * num_blocks / sizeof(__half);
  return {k.as<__half>() + offset, v.as<__half>() + offset, num_blocks, block_size, int(d.num_kv_heads), int(d.head_dim)};
}
