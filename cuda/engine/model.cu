// Computes a model's need of device memory and constructs it.
#include "model.h"

#include <string>

#include "../experts/experts.h"
#include "encode.h"
#include "loop.h"
#include "program.h"
#include "staging.h"

namespace pen {

namespace {

// Memory for graphs, kernels' code, and the driver's rounding.
constexpr size_t RESERVE = size_t(384) << 20;

size_t rope_floats(const pen_model_desc& d, uint32_t count) {
  size_t floats = 0;
  for (uint32_t i = 0; i < count; i++) floats += size_t(d.max_positions) * d.rope_dims[i];
  return floats;
}

// The axes of the first `count` rotations.
size_t rope_pairs(const pen_model_desc& d, uint32_t count) {
  size_t pairs = 0;
  for (uint32_t i = 0; i < count; i++) pairs += d.rope_dims[i] / 2;
  return pairs;
}

size_t state_bytes(const pen_model_desc& d, uint32_t state) { return size_t(d.state_slots) * d.states[state] * sizeof(float); }

void check_stream(const pen_model_desc& d, uint32_t buffer) {
  const bool exists = buffer < d.num_buffers;
  if (!exists || d.buffers[buffer].type != PEN_F32 || d.buffers[buffer].width != d.hidden_dim || d.buffers[buffer].per_token != 1) {
    throw StatusError(PEN_INVALID_ARG, "buffer " + std::to_string(buffer) + " holds no rows of the residual stream");
  }
}

// Checks a set of rows. A language model has one.
void check_rows(const pen_model_desc& d, uint32_t rows) {
  if (rows >= PEN_NUM_ROW_SETS || (rows == PEN_ROWS_STEP) != !d.most_rows) throw StatusError(PEN_INVALID_ARG, "no such set of rows");
}

// Checks the rows that a picture encoder returns.
void check_output(const pen_model_desc& d) {
  if (d.output >= d.num_buffers || d.buffers[d.output].type != PEN_F32) throw StatusError(PEN_INVALID_ARG, "an encoder returns no rows");
}

}  // namespace

void check_model(const pen_model_desc& d) {
  for (uint32_t i = 0; i < d.num_caches; i++) {
    if (d.caches[i].group >= d.num_groups) throw StatusError(PEN_INVALID_ARG, "a cache's group does not exist");
  }
  if (d.hidden_dim % 4 != 0) {
    throw StatusError(PEN_UNSUPPORTED, "a hidden size of " + std::to_string(d.hidden_dim) + ", expected a multiple of 4");
  }
  for (uint32_t i = 0; i < d.num_buffers; i++) check_rows(d, d.buffers[i].rows);
  if ((d.output == PEN_NONE) == (d.head.w == PEN_NONE)) throw StatusError(PEN_INVALID_ARG, "a program has a head or gives rows");
  for (const uint32_t* buffer = d.inputs; buffer != d.inputs + d.num_inputs; buffer++) check_stream(d, *buffer);
  if (d.output != PEN_NONE) d.most_rows ? check_output(d) : check_stream(d, d.output);
  for (size_t i = 0; d.rope_axes && i < rope_pairs(d, d.num_ropes); i++) {
    if (d.rope_axes[i] > 2) throw StatusError(PEN_INVALID_ARG, "a rotation has three positions at most");
  }
  for (uint32_t i = 0; i < d.num_ops; i++) {
    if (d.ops[i].kind >= PEN_NUM_OPS || !d.ops[i].args) throw StatusError(PEN_INVALID_ARG, "op " + std::to_string(i) + " does not exist");
    check_rows(d, d.ops[i].rows);
    if (d.ops[i].kind != PEN_OP_EXPERTS) continue;
    const auto& e = *static_cast<const pen_experts*>(d.ops[i].args);
    if (e.count > MAX_EXPERTS) {
      throw StatusError(PEN_UNSUPPORTED, std::to_string(e.count) + " experts, expected at most " + std::to_string(MAX_EXPERTS));
    }
    if (e.used == 0 || e.used > e.count) throw StatusError(PEN_INVALID_ARG, "a row uses no expert, or more experts than there are");
  }
}

std::vector<pen_cache> places_of(const pen_cache* caches, size_t count) {
  std::vector<pen_cache> places;
  for (size_t i = 0; i < count; i++) {
    const pen_cache& cache = caches[i];
    if (cache.place > places.size()) throw StatusError(PEN_INVALID_ARG, "a cache's place does not exist");
    if (cache.place == places.size()) {
      places.push_back(cache);
      continue;
    }
    const pen_cache& other = places[cache.place];
    if (cache.heads != other.heads || cache.key_dim != other.key_dim || cache.value_dim != other.value_dim) {
      throw StatusError(PEN_INVALID_ARG, "caches of different shapes share a place");
    }
  }
  return places;
}

pen_need need_of(const pen_model_desc& d) {
  const Tensors tensors(d, nullptr);
  Allocator sizes(nullptr);
  const Scratch scratch(d, sizes);
  pen_need need{};
  need.weights = tensors.bytes;
  need.step_weights = tensors.step_bytes;
  need.scratch = sizes.bytes() + rope_floats(d, d.num_ropes) * sizeof(float) + STAGING_BYTES + RESERVE;
  for (const pen_cache& cache : places_of(d.caches, d.num_caches)) {
    need.kv_token += sizeof(__half) * uint64_t(cache.heads) * (cache.key_dim + cache.value_dim);
  }
  for (uint32_t i = 0; i < d.num_states; i++) need.state += Memory::taken(state_bytes(d, i));
  return need;
}

void InFlight::allocate(const pen_model_desc& d, const Scratch& s) {
  meta = Pinned(s.meta.size());
  masks = Pinned(s.masks.size());
  prompt_lists = Pinned(s.prompt_lists.size());
  const size_t rows = std::max<size_t>(round_seqs(int(d.max_slots)), d.max_batch_tokens);
  sampled = Pinned(result_words(Scratch::max_rows(d), rows) * 4);
  logprobs = Pinned(rows * (1 + MAX_LOGPROBS) * 4);
  logprob_ids = Pinned(rows * MAX_LOGPROBS * 4);
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
      caches(d.caches, d.caches + d.num_caches),
      groups(d.groups, d.groups + d.num_groups),
      rope_dims(d.rope_dims, d.rope_dims + d.num_ropes),
      arena(context.memory, Tensors(d, nullptr).bytes, true),
      tensors(d, arena.as<uint8_t>()),
      ropes(context.memory, rope_floats(d, d.num_ropes) * sizeof(float)),
      overflow(context.memory, sizeof(int), true),
      axes(context.memory, rope_pairs(d, d.num_ropes)),
      has_axes(d.rope_axes != nullptr),
      state_widths(d.states, d.states + d.num_states),
      scratch(d, allocator),
      sampler(scratch.sampler_state(d)),
      slots(scratch.slots.view(d, Scratch::max_rows(d))),
      staging(std::make_unique<Staging>(context)),
      end_loops(sizeof(uint32_t)),
      most_rows(d.most_rows, d.most_rows + (d.most_rows ? PEN_NUM_ROW_SETS : 0)),
      stream(d.most_rows ? Priority::LOW : Priority::USUAL) {
  *end_loops.as<uint32_t>() = 0;
  slots.end_loops = end_loops.as<uint32_t>();
  if (d.most_rows) pictures = std::make_unique<PictureMemory>(context.memory, d.most_rows);
  check(cudaMemcpy(ropes.as<float>(), d.rope_tables, rope_floats(d, d.num_ropes) * sizeof(float), cudaMemcpyHostToDevice),
        "copying rotation tables");
  if (has_axes) {
    check(cudaMemcpy(axes.as<uint8_t>(), d.rope_axes, rope_pairs(d, d.num_ropes), cudaMemcpyHostToDevice), "copying the rotations' axes");
  }
  for (uint32_t i = 0; i < d.num_ropes; i++) {
    rope_starts.push_back(rope_floats(d, i));
    axis_starts.push_back(rope_pairs(d, i));
  }
  for (uint32_t i = 0; i < d.num_inputs; i++) inputs.push_back(scratch.rows[d.inputs[i]].data.as<float>());
  for (uint32_t i = 0; i < d.num_states; i++) states.emplace_back(context.memory, state_bytes(d, i), true);
  for (uint32_t i = 0; i < d.num_ops; i++) program.push_back(compile(*this, d.ops[i]));
  desc.rope_tables = nullptr;
  desc.rope_dims = nullptr;
  desc.rope_axes = nullptr;
  desc.inputs = nullptr;
  desc.tensors = nullptr;
  desc.buffers = nullptr;
  desc.caches = nullptr;
  desc.groups = nullptr;
  desc.states = nullptr;
  desc.ops = nullptr;
  desc.most_rows = nullptr;
  for (InFlight& flight : ring) flight.allocate(d, scratch);
  const auto results = [&](int i) { return ring[i].sampled.as<int32_t>(); };
  prepare(launch(false), slots, groups.data(), {results(0), results(1), results(2)});
  check(cudaDeviceSynchronize(), "preparing device memory");
}

pen_model::~pen_model() = default;

pen::Paging pen_kv::paging() const { return {block_size, zero_block, model->desc.max_positions}; }

namespace {

size_t block_bytes(const pen_cache& cache, uint32_t dim, int block_size) {
  return sizeof(__half) * size_t(cache.heads) * dim * size_t(block_size);
}

// Chooses the block of zeros such that, in every array, no page holds parts of both it and a writable block.
uint32_t zero_block_of(const std::vector<pen_cache>& places, const Driver* driver, int num_blocks, int block_size) {
  size_t gap = 0;
  for (const pen_cache& cache : places) {
    for (const uint32_t dim : {cache.key_dim, cache.value_dim}) {
      if (driver && dim > 0) gap = std::max(gap, round_up(PAGE, block_bytes(cache, dim, block_size)) / block_bytes(cache, dim, block_size));
    }
  }
  return uint32_t(size_t(num_blocks) + gap);
}

}  // namespace

pen_kv::pen_kv(pen_model& m, uint32_t blocks, uint32_t size)
    : model(&m),
      places(places_of(m.caches.data(), m.caches.size())),
      driver(Driver::of(m.ctx.device.id)),
      zeros(m.ctx, driver),
      num_blocks(int(blocks)),
      block_size(int(size)),
      zero_block(zero_block_of(places, driver, num_blocks, block_size)) {
  const auto array = [&](const pen_cache& cache, uint32_t dim) {
    const size_t block = block_bytes(cache, dim, block_size);
    return Growing(m.ctx, driver, zeros, block * num_blocks, block * zero_block, block);
  };
  for (const pen_cache& cache : places) {
    keys.push_back(array(cache, cache.key_dim));
    values.push_back(cache.value_dim > 0 ? array(cache, cache.value_dim) : Growing());
  }
  if (!driver || places.empty()) backed = num_blocks;
}

void pen_kv::resize(uint32_t blocks) {
  if (!driver || places.empty()) return;
  // Memory is zeroed when it is mapped: kernels may read what no row has written yet, and it must not be a NaN.
  const auto each = [&](auto&& apply) {
    for (size_t i = 0; i < places.size(); i++) {
      apply(keys[i], block_bytes(places[i], places[i].key_dim, block_size));
      if (places[i].value_dim > 0) apply(values[i], block_bytes(places[i], places[i].value_dim, block_size));
    }
  };
  const uint32_t before = uint32_t(backed), wanted = std::min(blocks, uint32_t(num_blocks));
  const auto shrink = [&](uint32_t to) { each([&](Growing& array, size_t block) { array.shrink(block * to); }); };
  try {
    if (wanted > before) each([&](Growing& array, size_t block) { array.grow(block * wanted, model->stream.handle); });
  } catch (const StatusError&) {
    check(cudaStreamSynchronize(model->stream.handle), "zeroing the cache");
    shrink(before);
    throw;
  }
  if (wanted < before) {
    check(cudaStreamSynchronize(model->stream.handle), "giving back a part of the cache");
    shrink(wanted);
  }
  backed = num_blocks;
  each([&](Growing& array, size_t block) { backed = std::min(backed, int(array.backed() / block)); });
}

KvView pen_kv::layer(uint32_t cache) const {
  const pen_cache& c = model->caches[cache];
  __half* const k = keys[c.place].as<__half>();
  return {k, c.value_dim > 0 ? values[c.place].as<__half>() : k, num_blocks, block_size, int(c.heads), int(c.key_dim)};
}

CacheShape pen_kv::shape() const { return {model->groups, block_size, zero_block}; }
