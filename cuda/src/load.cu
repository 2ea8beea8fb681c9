// Tensors on their way to the device: copied into pinned memory by the caller's threads, on by the copy engine, repacked there.
#include <algorithm>
#include <cstring>

#include "model.h"

namespace pen {

namespace {

constexpr size_t STAGE_BYTES = 8 << 20;
constexpr int NUM_STAGES = 16;

const char* SLOT_NAMES[PEN_NUM_SLOTS] = {
    "token_embd.weight", "position_embd.weight", "output_norm.weight", "output_norm.bias", "output.weight", "rope_freqs.weight",
    "rope_factors_long.weight", "rope_factors_short.weight", "attn_norm.weight", "attn_norm.bias", "attn_q.weight", "attn_k.weight",
    "attn_v.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight",
    "attn_output.bias", "post_attention_norm.weight", "ffn_norm.weight", "ffn_norm.bias", "ffn_gate.weight", "ffn_up.weight",
    "ffn_down.weight", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "ffn_gate_inp.weight", "ffn_gate_exps.weight",
    "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_inp_shexp.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight",
    "ffn_down_shexp.weight", "post_ffw_norm.weight",
};

// A staging slot for the time of one piece.
class Lease {
 public:
  explicit Lease(Staging& pool) : pool_(pool) {
    std::unique_lock lock(pool.mutex);
    pool.available.wait(lock, [&] { return !pool.free.empty(); });
    slot = pool.free.back();
    pool.free.pop_back();
  }
  ~Lease() {
    {
      std::lock_guard lock(pool_.mutex);
      pool_.free.insert(pool_.free.begin(), slot);  // the longest unused one is at the back
    }
    pool_.available.notify_one();
  }
  Staging::Slot* slot;

 private:
  Staging& pool_;
};

struct Target {
  Matrix* matrix = nullptr;
  const float** vector = nullptr;
  uint64_t rows = 0, cols = 0;
  Placement placement = Placement::WHOLE;
  uint64_t count = 1;  // matrices of this shape, one after another
};

// Gate and up in one matrix, or each in its own.
Target gate_of(FeedForward& f, uint64_t ffn, uint64_t hidden, uint64_t count = 1) {
  return f.fused ? Target{&f.gate_up, nullptr, ffn, hidden, Placement::UPPER_HALF, count} : Target{&f.gate, nullptr, ffn, hidden, Placement::WHOLE, count};
}
Target up_of(FeedForward& f, uint64_t ffn, uint64_t hidden, uint64_t count = 1) {
  return f.fused ? Target{&f.gate_up, nullptr, ffn, hidden, Placement::LOWER_HALF, count} : Target{&f.up, nullptr, ffn, hidden, Placement::WHOLE, count};
}

Target target_of(pen_model& model, uint32_t slot, uint32_t index) {
  const pen_model_desc& d = model.desc;
  const uint64_t hidden = d.hidden_dim, heads = uint64_t(d.num_heads) * d.head_dim, kv = uint64_t(d.num_kv_heads) * d.head_dim;
  Layer& l = model.layers[index];
  switch (slot) {
    case PEN_TOKEN_EMBD: return {&model.token_embd, nullptr, d.vocab_size, hidden};
    case PEN_POSITION_EMBD: return {&model.position_embd, nullptr, d.num_positions, hidden};
    case PEN_OUTPUT: return {&model.output, nullptr, d.vocab_size, hidden};
    case PEN_OUTPUT_NORM: return {nullptr, &model.output_norm, 1, hidden};
    case PEN_OUTPUT_NORM_BIAS: return {nullptr, &model.output_norm_bias, 1, hidden};
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

uint8_t* allocate(pen_model& model, size_t bytes) {
  std::lock_guard lock(model.arena_mutex);
  bytes = round_up(bytes, 256);
  if (model.arena_used + bytes > model.arena.size()) throw StatusError(PEN_INVALID_ARG, "more tensors than weight_bytes announced");
  uint8_t* place = model.arena.as<uint8_t>() + model.arena_used;
  model.arena_used += bytes;
  return place;
}

// A vector of floats: converted here, since it is short.
void add_vector(pen_model& model, const float** vector, uint32_t type, uint64_t cols, const uint8_t* data) {
  std::vector<float> values(cols);
  for (uint64_t i = 0; i < cols; i++) {
    uint16_t half;
    std::memcpy(&half, data + i * (type == 0 ? 4 : 2), 2);
    if (type == 0) std::memcpy(&values[i], data + i * 4, 4);
    if (type == 1) values[i] = __half2float(__ushort_as_half(half));
    if (type == 30) {
      const uint32_t bits = uint32_t(half) << 16;
      std::memcpy(&values[i], &bits, 4);
    }
  }
  auto* place = reinterpret_cast<float*>(allocate(model, cols * sizeof(float)));
  const std::lock_guard alone(device_wide());
  check(cudaMemcpy(place, values.data(), cols * sizeof(float), cudaMemcpyHostToDevice), "copying a vector");
  *vector = place;
}

}  // namespace

}  // namespace pen

using namespace pen;

pen_model::pen_model(pen_ctx& context, const pen_model_desc& d) : ctx(context), desc(d) {
  layers.resize(d.num_layers);
  for (uint32_t i = 0; i < d.num_layers; i++) {
    layers[i].window = d.layers[i].window;
    layers[i].rope = d.layers[i].rope;
    layers[i].ffn.fused = d.layers[i].fused_glu != 0;
    layers[i].shared.fused = d.layers[i].fused_shared_glu != 0;
  }
  const size_t table = size_t(d.max_positions) * d.rope_dim * d.num_ropes * sizeof(float);
  size_t free_bytes = 0, total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "device memory");
  const size_t need = d.weight_bytes + table + scratch_bytes(d) + NUM_STAGES * STAGE_BYTES;
  if (need > free_bytes) {
    throw StatusError(PEN_OUT_OF_MEMORY, "the model needs " + std::to_string(need >> 20) + " MiB of device memory, " +
                                             std::to_string(free_bytes >> 20) + " MiB are free");
  }
  arena = Buffer(ctx, d.weight_bytes, true);
  overflow = Buffer(ctx, sizeof(int), true);
  ropes = Buffer(ctx, table);
  check(cudaMemcpy(ropes.as<float>(), d.rope_tables, table, cudaMemcpyHostToDevice), "copying rotation tables");
  desc.rope_tables = nullptr;
  desc.layers = nullptr;
  staging = std::make_unique<Staging>();
  for (int i = 0; i < NUM_STAGES; i++) {
    auto slot = std::make_unique<Staging::Slot>();
    slot->pinned = Pinned(STAGE_BYTES);
    slot->device = Buffer(ctx, STAGE_BYTES);
    staging->free.push_back(slot.get());
    staging->slots.push_back(std::move(slot));
  }
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx.device), "compute capability");
  overlap = major >= 9;
  make_scratch(*this);
  check(cudaDeviceSynchronize(), "preparing device memory");
}

void pen_model::add_tensor(uint32_t slot, uint32_t layer, uint32_t type, uint64_t rows, uint64_t cols, const uint8_t* data, uint64_t nbytes) {
  const QuantRow* quant = quant_row(type);
  if (slot >= PEN_NUM_SLOTS || layer >= desc.num_layers) throw StatusError(PEN_INVALID_ARG, "no such slot or layer");
  const std::string name = std::string(SLOT_NAMES[slot]) + " of layer " + std::to_string(layer);
  const Target target = target_of(*this, slot, layer);
  if (!target.matrix && !target.vector) return;  // factors of rotations are in their tables already
  if (!quant) throw StatusError(PEN_UNSUPPORTED, name + ": type " + std::to_string(type));
  if (rows != target.rows * target.count || cols != target.cols || cols % quant->block_size != 0) throw StatusError(PEN_INVALID_ARG, name + ": wrong shape");
  const size_t row_bytes = cols / quant->block_size * quant->block_bytes;
  if (nbytes != rows * row_bytes) throw StatusError(PEN_INVALID_ARG, name + ": wrong size");
  if (target.vector) {
    if (quant->block_size != 1) throw StatusError(PEN_UNSUPPORTED, name + ": a vector of a quantised type");
    return add_vector(*this, target.vector, type, cols, data);
  }
  rows = target.rows;
  Matrix matrix;
  {
    // Gate and up meet in one matrix, whichever comes first.
    const bool shared = target.placement != Placement::WHOLE;
    static std::mutex meeting;
    std::lock_guard lock(meeting);
    Matrix& m = *target.matrix;
    if (!m.data) {
      m = Matrix{nullptr, int(shared ? 2 * rows : rows), int(cols), quant->format, quant->record_bytes};
      m.data = allocate(*this, m.bytes() * target.count);
    } else if (!shared || m.format != quant->format) {
      throw StatusError(PEN_INVALID_ARG, name + ": it came before, or as another type");
    }
    matrix = m;
  }
  const uint64_t tile = target.placement == Placement::WHOLE ? TILE_ROWS : 8;
  const uint64_t piece = STAGE_BYTES / row_bytes / tile * tile;
  if (piece == 0) throw StatusError(PEN_UNSUPPORTED, name + ": rows of " + std::to_string(row_bytes) + " bytes");
  for (uint64_t i = 0; i < target.count; i++) {
    auto* records = const_cast<uint8_t*>(matrix.data) + i * matrix.bytes();
    for (uint64_t first = 0; first < rows; first += piece) {
      const uint64_t count = std::min(piece, rows - first);
      Lease lease(*staging);
      Staging::Slot& stage = *lease.slot;
      if (stage.used) check(cudaEventSynchronize(stage.done.handle), "loading");
      stage.used = true;
      std::memcpy(stage.pinned.as<uint8_t>(), data + (i * rows + first) * row_bytes, count * row_bytes);
      const Launch launch{stage.stream.handle};
      check(cudaMemcpyAsync(stage.device.as<uint8_t>(), stage.pinned.as<uint8_t>(), count * row_bytes, cudaMemcpyHostToDevice, launch.stream),
            "copying a tensor");
      repack(launch, type, Repack{stage.device.as<uint8_t>(), records, int(first), int(count), int(rows), int(cols), target.placement,
                                  overflow.as<int>()});
      check(cudaEventRecord(stage.done.handle, launch.stream), "loading");
    }
  }
}

void pen_model::finish() {
  for (auto& slot : staging->slots) check(cudaStreamSynchronize(slot->stream.handle), "loading");
  staging.reset();
  int overflowed = 0;
  check(cudaMemcpy(&overflowed, overflow.as<int>(), sizeof(int), cudaMemcpyDeviceToHost), "loading");
  if (overflowed) throw StatusError(PEN_UNSUPPORTED, "a weight lies outside of float16's range");
  if (!desc.has_output) output = token_embd;
  const auto require = [](bool there, const char* what) {
    if (!there) throw StatusError(PEN_MISSING_TENSOR, std::string(what) + " is missing");
  };
  require(token_embd.data && output.data && output_norm, "the embedding, the head or its norm");
  require(desc.num_positions == 0 || position_embd.data, "the positions' embedding");
  const auto complete = [&](const FeedForward& f) {
    return f.down.data && (f.fused ? f.gate_up.data : f.up.data) && (f.fused || !desc.has_gate || f.gate.data);
  };
  for (const Layer& l : layers) {
    require(l.q.data && l.k.data && l.v.data && l.attn_output.data, "a layer's matrix");
    require(complete(l.ffn), "a layer's gate, up or down");
    require(desc.num_experts == 0 || l.router.data, "a layer's router");
    require(desc.num_experts == 0 || desc.ffn_dim == 0 || (l.shared_router && complete(l.shared)), "a layer's shared expert");
    require(l.attn_norm && l.ffn_norm, "a layer's norm");
  }
}
