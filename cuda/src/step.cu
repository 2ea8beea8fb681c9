// Steps: metadata up, kernels (as a captured graph for decode steps), sampled ids down. Up to two are in flight: each has its own
// pinned buffers, and the device's are safe because the stream runs in order. A step whose masks come late has a graph of its own without the
// sampling, which follows once they are here; log-probabilities are a kernel of their own behind the graph, so that steps without them do
// not pay.
#include <algorithm>
#include <cstring>

#include "model.h"

namespace pen {

namespace {

constexpr size_t ATTENTION_WORKSPACE = size_t(128) << 20;
constexpr int MAX_GRAPH_SEQS = 256;
static_assert(MAX_LOGPROBS == PEN_MAX_LOGPROBS, "the header's rows are the kernel's");

// Sequences of a graph: few sizes, so that few graphs serve every batch.
int round_seqs(int n) {
  if (n <= 4) return n <= 2 ? n : 4;
  if (n <= 64) return ceil_div(n, 8) * 8;
  return ceil_div(n, 32) * 32;
}

// Blocks a sequence of a graph: powers of two from 256 tokens on.
int round_blocks(int blocks, int block_size) {
  int rounded = std::max(1, 256 / block_size);
  while (rounded < blocks) rounded *= 2;
  return rounded;
}

template <typename T>
void put(uint8_t* base, size_t offset, const T* from, size_t count) {
  if (count > 0) std::memcpy(base + offset, from, count * sizeof(T));
}

template <typename T>
T* at(uint8_t* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

Step device_step(pen_model& m, const MetaLayout& l, int max_query, int max_context) {
  uint8_t* base = m.meta.as<uint8_t>();
  Step step{};
  step.view = StepView{at<uint32_t>(base, l.positions), at<uint32_t>(base, l.slot_mapping), at<uint32_t>(base, l.cu_seqlens),
                       at<uint32_t>(base, l.context_lens), at<uint32_t>(base, l.block_tables), l.num_tokens, l.num_seqs, l.max_blocks,
                       max_query, max_context};
  step.results = at<int32_t*>(base, l.results);
  step.inputs = at<int32_t>(base, l.inputs);
  step.slots = at<int32_t>(base, l.slots);
  step.gather = max_query > 1 ? at<int32_t>(base, l.gather) : nullptr;
  step.mask_of = at<int32_t>(base, l.mask_of);
  step.num_logprobs = at<int32_t>(base, l.num_logprobs);
  step.num_rows = l.num_rows;
  step.has_prefill = max_query > 1;
  return step;
}

// The metadata of `batch` in a flight's pinned memory; rows and sequences past its own are padding that no kernel acts on.
void fill_meta(const InFlight& f, const MetaLayout& l, const pen_batch& b, const std::vector<int32_t>& row_of) {
  uint8_t* base = f.meta.as<uint8_t>();
  std::memset(base, 0, l.block_tables);
  // A copy behind the graph would hold the next step up, the more so as it changes engines; a kernel's writes do not.
  *at<int32_t*>(base, l.results) = f.sampled.as<int32_t>();
  put(base, l.inputs, b.inputs, b.num_tokens);
  put(base, l.positions, b.positions, b.num_tokens);
  put(base, l.slot_mapping, b.slot_mapping, b.num_tokens);
  for (int i = int(b.num_tokens); i < l.num_tokens; i++) at<uint32_t>(base, l.slot_mapping)[i] = NO_SLOT;
  put(base, l.cu_seqlens, b.cu_seqlens_q, b.num_seqs + 1);
  for (int i = int(b.num_seqs); i < l.num_seqs; i++) at<uint32_t>(base, l.cu_seqlens)[i + 1] = uint32_t(i + 1);
  put(base, l.context_lens, b.context_lens, b.num_seqs);
  int32_t* slots = at<int32_t>(base, l.slots);
  int32_t* mask_of = at<int32_t>(base, l.mask_of);
  int32_t* num_logprobs = at<int32_t>(base, l.num_logprobs);
  for (int32_t* array : {slots, mask_of, num_logprobs}) std::fill(array, array + l.num_rows, -1);
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    if (row_of[i] < 0) continue;
    slots[row_of[i]] = int32_t(b.slots[i]);
    if (b.num_logprobs) num_logprobs[row_of[i]] = b.num_logprobs[i];
    at<int32_t>(base, l.gather)[row_of[i]] = int32_t(b.cu_seqlens_q[i + 1]) - 1;
  }
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    const size_t stride = std::min<size_t>(b.max_blocks, l.max_blocks);
    put(base, l.block_tables + size_t(i) * l.max_blocks * 4, b.block_tables + size_t(i) * b.max_blocks, stride);
  }
}

void init_slot(pen_model& m, const pen_slot_init& init) {
  if (init.slot >= m.desc.max_slots) throw StatusError(PEN_INVALID_ARG, "a new slot does not exist");
  if (init.num_biases > MAX_BIASES) throw StatusError(PEN_UNSUPPORTED, "more than " + std::to_string(MAX_BIASES) + " logit biases");
  if (init.num_suppressed > MAX_SUPPRESSED) throw StatusError(PEN_UNSUPPORTED, "more than " + std::to_string(MAX_SUPPRESSED) + " suppressed ids");
  const SlotParams params{init.temperature, init.top_p, init.min_p, init.presence_penalty, init.frequency_penalty, init.repetition_penalty,
                          init.top_k, init.min_tokens, init.num_biases, init.num_suppressed, init.num_generated, init.seed};
  const bool repetition = init.repetition_penalty != 1.0f;
  const bool penalties = repetition || init.presence_penalty != 0 || init.frequency_penalty != 0;
  const uint32_t num_prompt = repetition ? init.num_prompt : 0, num_generated = penalties ? init.num_generated : 0;
  uint32_t* lists = m.init_lists.as<uint32_t>();
  size_t used = 0;
  const auto upload = [&](const void* from, uint32_t count) {
    uint32_t* place = lists + used;
    if (used + count > m.init_lists.size() / 4) throw StatusError(PEN_INVALID_ARG, "a slot's lists are longer than the context");
    // From pageable memory: staged before the call returns.
    if (count) check(cudaMemcpyAsync(place, from, count * 4, cudaMemcpyHostToDevice, m.stream.handle), "copying a slot's lists");
    used += count;
    return place;
  };
  const uint32_t* prompt = upload(init.prompt, num_prompt);
  const uint32_t* generated = upload(init.generated, num_generated);
  const uint32_t* ids = upload(init.bias_ids, init.num_biases);
  const uint32_t* biases = upload(init.biases, init.num_biases);
  const uint32_t* suppressed = upload(init.suppressed, init.num_suppressed);
  sampler_reset(Launch{m.stream.handle}, m.sampler, init.slot, params, prompt, num_prompt, generated, num_generated, ids,
                reinterpret_cast<const float*>(biases), suppressed);
}

void capture(pen_model& m, const pen_kv& kv, const Step& step, bool sampling, Graph& graph) {
  cudaGraph_t captured = nullptr;
  const std::lock_guard alone(device_wide());
  check(cudaStreamBeginCapture(m.stream.handle, cudaStreamCaptureModeRelaxed), "graph capture");
  try {
    forward(m, kv, step);
    if (sampling) sample_step(m, step, true);
  } catch (...) {
    cudaStreamEndCapture(m.stream.handle, &captured);
    if (captured) cudaGraphDestroy(captured);
    throw;
  }
  check(cudaStreamEndCapture(m.stream.handle, &captured), "graph capture");
  const cudaError_t made = cudaGraphInstantiate(&graph.exec, captured, 0);
  cudaGraphDestroy(captured);
  if (made != cudaSuccess) graph.exec = nullptr;
  check(made, "graph instantiation");
}

// Pages can be written twice, but slots that half a sampling has moved on cannot be taken back: its errors count as the loss of the
// device, those of the forward pass as what they are.
void sample_or_lose(pen_model& m, const Step& step, bool overlap) {
  try {
    sample_step(m, step, overlap);
  } catch (const CudaError& error) {
    throw StatusError(PEN_CUDA, error.what());
  }
}

// The kernels one by one.
void run(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  forward(m, kv, step);
  if (sampling) sample_or_lose(m, step, true);
}

// Graphs are all that a step allocates, beside kernels that warm-up did not load. Where there is no memory for one the step does without it, as do all of its shape.
void run_graph(pen_model& m, const pen_kv& kv, const Step& step, bool sampling) {
  Graph& graph = m.graphs[{step.view.num_seqs, step.view.max_blocks, sampling}];
  cudaError_t failed = cudaSuccess;
  if (!graph.exec && !graph.refused) {
    try {
      capture(m, kv, step, sampling, graph);
    } catch (const CudaError& error) {
      failed = error.code;
    }
  }
  if (graph.exec) failed = cudaGraphLaunch(graph.exec, m.stream.handle);
  if (failed == cudaSuccess && graph.exec) return;
  if (failed != cudaErrorMemoryAllocation) check(failed, "graph");
  cudaGetLastError();
  graph.drop();
  run(m, kv, step, sampling);
}

void check_batch(const pen_model& m, const pen_kv& kv, const pen_batch& b) {
  const pen_model_desc& d = m.desc;
  if (b.num_tokens == 0 || b.num_seqs == 0 || b.num_tokens > d.max_batch_tokens || b.num_seqs > d.max_slots || b.max_blocks > d.max_blocks) {
    throw StatusError(PEN_INVALID_ARG, "the batch is empty or larger than announced");
  }
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    const bool query = b.cu_seqlens_q[i + 1] > b.cu_seqlens_q[i] && b.cu_seqlens_q[i + 1] <= b.num_tokens;
    if (!query || b.slots[i] >= d.max_slots || uint64_t(b.context_lens[i]) > uint64_t(b.max_blocks) * kv.block_size) {
      throw StatusError(PEN_INVALID_ARG, "sequence " + std::to_string(i) + " of the batch is out of bounds");
    }
  }
  for (uint32_t i = 0; b.num_logprobs && i < b.num_seqs; i++) {
    if (b.num_logprobs[i] >= -1 && b.num_logprobs[i] <= MAX_LOGPROBS) continue;
    throw StatusError(PEN_INVALID_ARG, "the log-probabilities of the batch are out of bounds");
  }
  check_prompt(m, kv, b);
  for (uint32_t i = 0; i < b.num_tokens; i++) {
    const bool input = b.inputs[i] >= 0 ? uint32_t(b.inputs[i]) < d.vocab_size : uint32_t(-1 - b.inputs[i]) < d.max_slots;
    if (!input || b.positions[i] >= d.max_positions || b.slot_mapping[i] >= uint32_t(kv.num_blocks) * kv.block_size) {
      throw StatusError(PEN_INVALID_ARG, "row " + std::to_string(i) + " of the batch is out of bounds");
    }
  }
}

// What follows a step's sampling; the event says when all results are there.
void finish(pen_model& m, const Step& step, InFlight& f) {
  // Sampling leaves the logits as they are, so that this may follow a graph which knows nothing of it.
  if (step.num_rows > 0 && !f.num_logprobs.empty()) logprobs_step(m, step, f);
  finish_prompts(m, f);
  check(cudaEventRecord(f.done.handle, m.stream.handle), "event");
}

}  // namespace

MetaLayout::MetaLayout(int tokens, int seqs, int rows, int blocks)
    : num_tokens(tokens), num_seqs(seqs), num_rows(rows), max_blocks(blocks) {
  size_t next = 0;
  const auto take = [&](size_t count) {
    const size_t place = next;
    next += round_up(count * 4, 16);
    return place;
  };
  results = take(2);  // an address
  inputs = take(tokens);
  positions = take(tokens);
  slot_mapping = take(tokens);
  cu_seqlens = take(seqs + 1);
  context_lens = take(seqs);
  slots = take(rows);
  gather = take(rows);
  mask_of = take(rows);
  num_logprobs = take(rows);
  block_tables = take(size_t(seqs) * blocks);
  size = next;
}

namespace {

struct Sizes {
  size_t rows, x, branch, qkv, gate_up, h, q, attn, ffn, last, logits, sampler, meta, lists, counts, masks;
  int ld_hidden, ld_attn, ld_ffn;
  explicit Sizes(const pen_model_desc& d) {
    // A graph's rows are rounded up, and padding is computed, too.
    const size_t s = round_seqs(int(d.max_slots)), t = std::max<size_t>(d.max_batch_tokens, s);
    const size_t heads = size_t(d.num_heads) * d.head_dim, kv = size_t(d.num_kv_heads) * d.head_dim;
    ld_hidden = int(round_up(d.hidden_dim, CHUNK));
    ld_attn = int(round_up(heads, CHUNK));
    ld_ffn = int(round_up(d.ffn_dim, CHUNK));
    rows = t;
    x = t * d.hidden_dim * 4;
    branch = x;
    qkv = t * (heads + 2 * kv) * 4;
    gate_up = t * 2 * d.ffn_dim * 4;
    h = t * ld_hidden * 2;
    q = t * heads * 2;
    attn = t * ld_attn * 2;
    ffn = t * ld_ffn * 2;
    last = s * ld_hidden * 2;
    logits = s * d.vocab_size * 4;
    sampler = sampler_workspace(int(s), int(d.vocab_size));
    meta = MetaLayout(int(t), int(s), int(s), 2 * int(d.max_blocks) + 256).size;
    lists = (2 * size_t(d.max_positions) + 2 * MAX_BIASES + MAX_SUPPRESSED) * 4;
    counts = s * (size_t(d.vocab_size) + 2 * MAX_BIASES) * 4 + s * sizeof(SlotParams);
    masks = s * ceil_div(int(d.vocab_size), 32) * 4;
  }
};

}  // namespace

size_t scratch_bytes(const pen_model_desc& d) {
  const Sizes z(d);
  bool separate = false;
  for (uint32_t i = 0; i < d.num_layers; i++) separate |= !d.layers[i].fused_glu || !d.layers[i].fused_shared_glu;
  return 2 * z.x + z.branch + z.qkv + (separate ? z.gate_up : 0) + z.h + z.q + z.attn + z.ffn + z.last + z.logits + z.sampler + z.meta +
         z.lists + z.counts + z.masks + PromptSizes(d).total() + ATTENTION_WORKSPACE + MAX_SHARED_TILES * 4 +
         expert_scratch_bytes(d, z.rows);
}

void make_scratch(pen_model& m) {
  const pen_model_desc& d = m.desc;
  const Sizes z(d);
  Scratch& s = m.scratch;
  const bool separate = std::any_of(m.layers.begin(), m.layers.end(), [](const Layer& l) { return !l.ffn.fused || !l.shared.fused; });
  s.x = Buffer(m.ctx, z.x, true);
  s.x_other = Buffer(m.ctx, z.x, true);
  s.branch = Buffer(m.ctx, z.branch, true);
  s.qkv = Buffer(m.ctx, z.qkv, true);
  s.gate_up = Buffer(m.ctx, separate ? z.gate_up : 0, true);
  s.h = Buffer(m.ctx, z.h, true);
  s.q = Buffer(m.ctx, z.q, true);
  s.attn = Buffer(m.ctx, z.attn, true);
  s.ffn = Buffer(m.ctx, z.ffn, true);
  s.last = Buffer(m.ctx, z.last, true);
  s.logits = Buffer(m.ctx, z.logits, true);
  s.attention = Buffer(m.ctx, ATTENTION_WORKSPACE);
  s.arrivals = Buffer(m.ctx, MAX_SHARED_TILES * 4, true);
  s.sampler = Buffer(m.ctx, z.sampler, true);
  make_expert_scratch(m, z.rows);
  s.ld_hidden = z.ld_hidden;
  s.ld_attn = z.ld_attn;
  s.ld_ffn = z.ld_ffn;
  const auto state = [&](size_t bytes) {
    m.sampler_buffers.emplace_back(m.ctx, bytes, true);
    return m.sampler_buffers.back().as<void>();
  };
  const size_t slots = d.max_slots;
  m.sampler.params = static_cast<SlotParams*>(state(slots * sizeof(SlotParams)));
  m.sampler.counts = static_cast<uint32_t*>(state(slots * d.vocab_size * 4));
  m.sampler.bias_ids = static_cast<uint32_t*>(state(slots * MAX_BIASES * 4));
  m.sampler.biases = static_cast<float*>(state(slots * MAX_BIASES * 4));
  m.sampler.last = static_cast<int32_t*>(state(slots * 4));
  m.sampler.max_slots = int(slots);
  m.sampler.vocab = int(d.vocab_size);
  m.init_lists = Buffer(m.ctx, z.lists);
  m.meta = Buffer(m.ctx, z.meta, true);
  m.sampled = Buffer(m.ctx, round_seqs(int(slots)) * 4, true);
  m.masks = Buffer(m.ctx, z.masks, true);
  for (InFlight& f : m.ring) {
    f.meta = Pinned(z.meta);
    f.sampled = Pinned(round_seqs(int(slots)) * 4);
    f.masks = Pinned(z.masks);
    f.logprobs = Pinned(slots * (1 + MAX_LOGPROBS) * 4);
    f.logprob_ids = Pinned(slots * MAX_LOGPROBS * 4);
  }
  make_prompt_scratch(m);
}

uint64_t submit(pen_model& m, pen_kv& kv, const pen_batch& b) {
  check_batch(m, kv, b);
  InFlight& f = m.ring[(m.steps + 1) % 3];
  if (m.ring[m.steps % 3].unsampled) throw StatusError(PEN_INVALID_ARG, "the step before was not sampled");
  if (f.pending) throw StatusError(PEN_INVALID_ARG, "two steps are in flight already");
  for (uint32_t i = 0; i < b.num_init; i++) init_slot(m, b.init[i]);
  int max_query = 1, blocks = 1, rows = 0;
  f.row_of.assign(b.num_seqs, -1);
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    max_query = std::max(max_query, int(b.cu_seqlens_q[i + 1] - b.cu_seqlens_q[i]));
    blocks = std::max(blocks, ceil_div(int(b.context_lens[i]), kv.block_size));
  }
  const bool decode = max_query == 1 && int(b.num_seqs) <= MAX_GRAPH_SEQS;
  // In a decode step every sequence is a row of its own, whether it samples or not.
  for (uint32_t i = 0; i < b.num_seqs; i++) f.row_of[i] = b.sample[i] ? (max_query == 1 ? int(i) : rows++) : -1;
  const int seqs = decode ? round_seqs(int(b.num_seqs)) : int(b.num_seqs);
  if (max_query == 1) rows = seqs;
  const int stride = decode ? round_blocks(blocks, kv.block_size) : blocks;
  const MetaLayout layout(decode ? seqs : int(b.num_tokens), seqs, rows, stride);
  if (layout.size > f.meta.size()) throw StatusError(PEN_INTERNAL, "the step's metadata does not fit");
  fill_meta(f, layout, b, f.row_of);
  check(cudaMemcpyAsync(m.meta.as<uint8_t>(), f.meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle), "copying metadata");
  begin_prompts(m, kv, b, f);
  const Step step = device_step(m, layout, max_query, stride * kv.block_size);
  const bool sampling = b.sample_later == 0;
  f.logits.clear();
  if (b.want_logits) {
    forward(m, kv, step);
    f.logits.resize(size_t(rows) * m.desc.vocab_size);
    if (rows) {
      check(cudaMemcpyAsync(f.logits.data(), m.scratch.logits.as<float>(), f.logits.size() * 4, cudaMemcpyDeviceToHost, m.stream.handle),
            "copying logits");
    }
    if (sampling) sample_or_lose(m, step, false);
  } else if (decode) {
    run_graph(m, kv, step, sampling);
  } else {
    run(m, kv, step, sampling);
  }
  f.num_logprobs.clear();
  if (b.num_logprobs) f.num_logprobs.assign(b.num_logprobs, b.num_logprobs + b.num_seqs);
  if (sampling) finish(m, step, f);
  f.unsampled = !sampling;
  f.device = step;
  f.mask_of = layout.mask_of;
  f.step = ++m.steps;
  f.pending = true;
  return f.step;
}

// The device's metadata is still that of this step, which is the last one. Whatever fails here leaves a step that cannot be sampled any more.
void sample_with_masks(pen_model& m, uint64_t number, const pen_masks& masks) {
  InFlight& f = m.ring[number % 3];
  if (number != m.steps || !f.pending || !f.unsampled) throw StatusError(PEN_INVALID_ARG, "the step does not wait to be sampled");
  bool fits = masks.num_seqs == f.row_of.size() && masks.num_masks <= m.desc.max_slots;
  for (uint32_t i = 0; fits && i < masks.num_seqs; i++) fits = masks.mask_of[i] >= -1 && masks.mask_of[i] < int32_t(masks.num_masks);
  if (!fits) throw StatusError(PEN_INVALID_ARG, "the masks are out of bounds");
  int32_t* mask_of = at<int32_t>(f.meta.as<uint8_t>(), f.mask_of);
  for (uint32_t i = 0; i < masks.num_seqs; i++) {
    if (f.row_of[i] >= 0) mask_of[f.row_of[i]] = masks.mask_of[i];
  }
  if (f.device.num_rows > 0) {
    check(cudaMemcpyAsync(m.meta.as<uint8_t>() + f.mask_of, mask_of, f.device.num_rows * 4, cudaMemcpyHostToDevice, m.stream.handle),
          "copying masks");
  }
  if (masks.num_masks) {
    const size_t words = size_t(masks.num_masks) * ceil_div(int(m.desc.vocab_size), 32);
    put(f.masks.as<uint8_t>(), 0, masks.masks, words);
    check(cudaMemcpyAsync(m.masks.as<uint32_t>(), f.masks.as<uint32_t>(), words * 4, cudaMemcpyHostToDevice, m.stream.handle), "copying masks");
  }
  sample_or_lose(m, f.device, false);
  finish(m, f.device, f);
  f.unsampled = false;
}

void collect(pen_model& m, pen_output& out) {
  InFlight& f = m.ring[out.step % 3];
  if (!f.pending || f.step != out.step) throw StatusError(PEN_INVALID_ARG, "step " + std::to_string(out.step) + " is not in flight");
  if (f.unsampled) {
    f.unsampled = f.pending = false;
    check(cudaStreamSynchronize(m.stream.handle), "a step");
    throw StatusError(PEN_INVALID_ARG, "step " + std::to_string(out.step) + " was not sampled");
  }
  if (out.num_seqs != f.row_of.size()) throw StatusError(PEN_INVALID_ARG, "the step had another number of sequences");
  check(cudaEventSynchronize(f.done.handle), "a step");
  f.pending = false;
  const size_t vocab = m.desc.vocab_size;
  for (uint32_t i = 0; i < out.num_seqs; i++) {
    const int row = f.row_of[i];
    out.sampled[i] = row < 0 ? PEN_SAMPLED_NONE : f.sampled.as<int32_t>()[row];
    if (row >= 0 && out.logits && !f.logits.empty()) std::memcpy(out.logits + i * vocab, f.logits.data() + size_t(row) * vocab, vocab * 4);
    if (row < 0 || !out.logprobs || !out.logprob_ids || f.num_logprobs.empty() || f.num_logprobs[i] < 0) continue;
    constexpr size_t N = MAX_LOGPROBS;
    std::memcpy(out.logprobs + i * (1 + N), f.logprobs.as<float>() + size_t(row) * (1 + N), (1 + N) * 4);
    std::memcpy(out.logprob_ids + i * N, f.logprob_ids.as<int32_t>() + size_t(row) * N, N * 4);
  }
  collect_prompts(m, f, out);
}

void warmup(pen_model& m, pen_kv& kv) {
  const int stride = round_blocks(1, kv.block_size);
  pen_batch nothing{};
  const uint32_t none = 0;
  nothing.cu_seqlens_q = &none;
  const auto upload = [&](const MetaLayout& layout) {
    fill_meta(m.ring[0], layout, nothing, {});
    check(cudaMemcpyAsync(m.meta.as<uint8_t>(), m.ring[0].meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle), "copying metadata");
  };
  // Kernels are loaded when they are first used: the first prompt must not wait for that, nor find no memory for it.
  for (int tokens = 2; tokens <= int(m.desc.max_batch_tokens); tokens *= 2) {
    const MetaLayout layout(tokens, 1, 1, stride);
    upload(layout);
    run(m, kv, device_step(m, layout, tokens, stride * kv.block_size), true);
    check(cudaStreamSynchronize(m.stream.handle), "warming up");
  }
  for (int n = 1; n <= std::min(int(m.desc.max_slots), MAX_GRAPH_SEQS); n++) {
    const int seqs = round_seqs(n);
    Graph& graph = m.graphs[{seqs, stride, true}];
    if (graph.exec) continue;
    const MetaLayout layout(seqs, seqs, seqs, stride);
    upload(layout);
    const Step step = device_step(m, layout, 1, stride * kv.block_size);
    // Once by hand, so that every kernel is loaded before it is captured.
    run(m, kv, step, true);
    check(cudaStreamSynchronize(m.stream.handle), "warming up");
    capture(m, kv, step, true, graph);
  }
}

}  // namespace pen

pen::KvView pen_kv::layer(int index) const {
  const pen_model_desc& d = model->desc;
  const size_t each = size_t(num_blocks) * block_size * d.num_kv_heads * d.head_dim;
  return {k.as<__half>() + index * each, v.as<__half>() + index * each, num_blocks, block_size, int(d.num_kv_heads), int(d.head_dim)};
}
