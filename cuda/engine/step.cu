// Runs steps: sends metadata up, launches kernels (as a captured graph for decode steps and lone prompts), and brings sampled ids down. A
// decode step sends only what has changed since its slots moved on. Up to two steps are in flight. Each has its own pinned buffers. They
// share the device's buffers, which is safe because the stream runs in order. A decode step whose masks arrive later has a separate graph
// without the sampling, which follows once the masks are here. Log-probabilities are a separate kernel after the graph, so that steps
// without them do not pay for them.
#include "step.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "program.h"
#include "graphs.h"
#include "loop.h"
#include "prompt.h"
#include "sampler.h"
#include "turns.h"

namespace pen {

namespace {

// The in-flight record of a step. The ring has one more than may be in flight, so that a step's results survive while two others run.
InFlight& flight_of(pen_model& m, uint64_t step) { return m.ring[step % NUM_FLIGHTS]; }

void check_changes(const pen_model& m, const pen_kv& kv, const pen_batch& b) {
  bool fits = b.rows && (b.tables || b.num_tables == 0) && (b.blocks || b.num_blocks == 0);
  for (uint32_t i = 0; fits && i < b.num_seqs; i++) {
    const pen_row& row = b.rows[i];
    fits = row.slot == b.slots[i] && row.length + 1 == b.context_lens[i] && uint64_t(row.first_table) + row.num_tables <= b.num_tables;
    fits = fits && row.room > row.length && uint64_t(row.room) <= uint64_t(m.desc.max_blocks) * kv.block_size;
    fits = fits && row.position == b.positions[i] && (row.position == row.length || (m.has_axes && row.position < row.length));
  }
  for (uint32_t i = 0; fits && i < b.num_tables; i++) {
    const pen_table& t = b.tables[i];
    fits = t.group < m.groups.size() && uint64_t(t.first) + t.count <= m.desc.max_blocks && uint64_t(t.at) + t.count <= b.num_blocks;
  }
  for (uint32_t i = 0; fits && i < b.num_blocks; i++) fits = b.blocks[i] < uint32_t(kv.backed);
  if (!fits) throw StatusError(PEN_INVALID_ARG, "the changes of the batch's rows are out of bounds");
}

// Checks what a program of some layers takes and gives.
void check_part(const pen_model& m, const pen_batch& b) {
  if (!m.has_head() && (b.num_sampled > 0 || b.num_scored > 0 || b.pools || b.sample_later || b.source != PEN_FROM_ARRAYS)) {
    throw StatusError(PEN_INVALID_ARG, "a program without a head gives rows of the residual stream alone, and takes arrays");
  }
  for (uint32_t i = 0; !m.inputs.empty() && i < b.num_tokens; i++) {
    if (b.inputs[i] > PEN_FIRST_EMBEDDING) throw StatusError(PEN_INVALID_ARG, "row " + std::to_string(i) + " is no embedding");
  }
}

// Checks that whole runs lie apart, each within a sequence.
void check_runs(const pen_batch& b) {
  for (uint32_t i = 0, seq = 0, end = 0; i < b.num_runs; i++) {
    const uint32_t first = b.runs[2 * i], rows = b.runs[2 * i + 1];
    while (seq + 1 < b.num_seqs && b.cu_seqlens_q[seq + 1] <= first) seq++;
    if (first < end || rows == 0 || uint64_t(first) + rows > b.cu_seqlens_q[seq + 1]) {
      throw StatusError(PEN_INVALID_ARG, "whole run " + std::to_string(i) + " of the batch is out of bounds");
    }
    end = first + rows;
  }
}

void check_batch(const pen_model& m, const pen_kv& kv, const pen_batch& b) {
  const pen_model_desc& d = m.desc;
  const bool fits = b.num_tokens <= d.max_batch_tokens && b.num_seqs <= d.max_slots && b.max_blocks <= d.max_blocks;
  if (b.num_tokens == 0 || b.num_seqs == 0 || !fits) throw StatusError(PEN_INVALID_ARG, "the batch is empty or exceeds the model's limits");
  for (uint32_t i = 0; i < b.num_seqs; i++) {
    const bool query = b.cu_seqlens_q[i + 1] > b.cu_seqlens_q[i] && b.cu_seqlens_q[i + 1] <= b.num_tokens;
    if (!query || b.slots[i] >= d.max_slots || uint64_t(b.context_lens[i]) > uint64_t(b.max_blocks) * kv.block_size) {
      throw StatusError(PEN_INVALID_ARG, "sequence " + std::to_string(i) + " of the batch is out of bounds");
    }
  }
  for (uint32_t k = 0; k < b.num_sampled; k++) {
    const bool row = b.sampled_rows[k] < b.num_tokens && (k == 0 || b.sampled_rows[k] > b.sampled_rows[k - 1]);
    if (row && (!b.num_logprobs || (b.num_logprobs[k] >= -1 && b.num_logprobs[k] <= MAX_LOGPROBS))) continue;
    throw StatusError(PEN_INVALID_ARG, "the sampled rows or log-probabilities of the batch are out of bounds");
  }
  check_prompts(m, kv, b);
  check_runs(b);
  check_part(m, b);
  if (b.source == PEN_FROM_CHANGES) check_changes(m, kv, b);
  if (b.grid_positions && !m.has_axes) throw StatusError(PEN_UNSUPPORTED, "the model rotates by one position");
  const bool is_known = b.source < PEN_FROM_SLOTS || (b.source == PEN_FROM_SLOTS && m.steps > 0 && m.advanced == m.steps);
  if (!is_known || (b.source != PEN_FROM_ARRAYS && b.num_tokens != b.num_seqs)) {
    throw StatusError(PEN_INVALID_ARG, "the slots do not hold the batch's rows");
  }
  if (!m.states.empty() && !b.state_slots) throw StatusError(PEN_INVALID_ARG, "the batch names no state slots");
  for (uint32_t i = 0; b.state_slots && i < b.num_seqs; i++) {
    if (b.state_slots[i] >= d.state_slots) throw StatusError(PEN_INVALID_ARG, "a state slot of the batch does not exist");
  }
  for (uint32_t i = 0; i < b.num_tokens; i++) {
    const bool input = b.inputs[i] >= 0                     ? uint32_t(b.inputs[i]) < d.vocab_size
                       : b.inputs[i] > PEN_FIRST_EMBEDDING ? uint32_t(-1 - b.inputs[i]) < d.max_slots
                                                           : uint32_t(PEN_FIRST_EMBEDDING - b.inputs[i]) < b.num_embeddings;
    bool places = true;
    for (size_t group = 0; group < m.groups.size(); group++) {
      places = places && b.slot_mapping[group * b.num_tokens + i] < uint32_t(kv.backed) * kv.block_size;
    }
    bool positions = b.positions[i] < d.max_positions;
    for (uint32_t k = 2 * i; b.grid_positions && k < 2 * i + 2; k++) positions = positions && b.grid_positions[k] < d.max_positions;
    if (!input || !places || !positions) {
      throw StatusError(PEN_INVALID_ARG, "row " + std::to_string(i) + " of the batch is out of bounds");
    }
  }
}

// How a batch becomes a step. A decode step, or the end of a lone prompt, takes the shape of a graph that has room for it, if one exists.
struct Shape {
  StepBounds bounds{1, 0};
  int tokens, seqs, rows, stride;
  bool has_grid, has_runs;
  Graph* graph = nullptr;

  // Also fills row_of.
  Shape(pen_model& m, const pen_kv& kv, const pen_batch& b, std::vector<int32_t>& row_of)
      : tokens(int(b.num_tokens)), seqs(int(b.num_seqs)), has_grid(b.grid_positions != nullptr), has_runs(b.num_runs > 0) {
    for (uint32_t i = 0; i < b.num_seqs; i++) {
      const int query = int(b.cu_seqlens_q[i + 1] - b.cu_seqlens_q[i]);
      int& context = query == 1 ? bounds.single_context : bounds.many_context;
      context = std::max(context, int(b.context_lens[i]));
      bounds.max_query = std::max(bounds.max_query, query), bounds.num_single += query == 1;
      // Positions fall behind and never catch up, so the last row tells.
      bounds.moved = bounds.moved || b.positions[b.cu_seqlens_q[i + 1] - 1] + 1 != b.context_lens[i];
    }
    bounds.moved = bounds.moved || has_grid;
    const bool decodes = bounds.max_query == 1;
    const int context = std::max(bounds.single_context, bounds.many_context), block_size = kv.block_size;
    stride = std::max(ceil_div(context, block_size), 1);
    const bool plain = !has_grid && !has_runs && !m.adapters.in_step();
    const bool may_have_graph = plain && (decodes ? b.source != PEN_FROM_ARRAYS : seqs == 1 && b.num_sampled == 1);
    if (may_have_graph) graph = find_graph(m, {!decodes, tokens, stride, b.sample_later == 0}, block_size);
    // Steps with adapters have graphs of their own, for one adapter per row.
    const bool is_adapted = m.adapters.in_step() && b.num_rounds == 1 && decodes && b.source != PEN_FROM_ARRAYS && !b.want_logits;
    if (is_adapted) graph = find_adapted_graph(m, kv, {false, tokens, stride, b.sample_later == 0}, m.adapters.covered());
    // In a decode step, each sequence has a row of logits, whether it samples or not.
    row_of.resize(b.num_sampled);
    for (uint32_t k = 0, seq = 0, end = 0; k < b.num_sampled; k++) {
      row_of[k] = decodes ? int(b.sampled_rows[k]) : int(k);
      while (b.cu_seqlens_q[seq + 1] <= b.sampled_rows[k]) seq++;
      bounds.shares_slots = bounds.shares_slots || (k > 0 && seq + 1 == end);
      end = seq + 1;
    }
    if (graph) {
      tokens = graph->shape.tokens, seqs = graph->shape.num_seqs(), stride = graph->shape.blocks;
      bounds = bounds_of(graph->shape, block_size);
    } else {
      bounds.max_context = stride * block_size;
    }
    rows = decodes ? seqs : int(b.num_sampled);
  }
  MetaLayout layout(int groups) const { return MetaLayout(tokens, seqs, rows, stride, groups, has_grid, has_runs); }
};

// Sends a step's metadata, all of it.
Step send_arrays(pen_model& m, const pen_kv& kv, const pen_batch& b, const Shape& shape, InFlight& f) {
  const MetaLayout layout = shape.layout(int(m.groups.size()));
  if (layout.size > f.meta.size()) throw StatusError(PEN_INTERNAL, "the step's metadata does not fit");
  fill_metadata(f.meta.as<uint8_t>(), layout, b, f.sampled.as<int32_t>(), f.row_of, kv.shape());
  uint8_t* const meta = m.scratch.meta.as<uint8_t>();
  check(cudaMemcpyAsync(meta, f.meta.as<uint8_t>(), layout.size, cudaMemcpyHostToDevice, m.stream.handle), "copying metadata");
  f.mask_of = layout.mask_of;
  return step_at(meta, layout, shape.bounds);
}

// Sends what has changed since the slots' rows moved on, if anything has.
// `num_rows`: with padding.
void send_changes(pen_model& m, const pen_kv& kv, const pen_batch& b, int num_rows, InFlight& f) {
  uint8_t* next = f.meta.as<uint8_t>();
  const auto put = [&](const auto* from, size_t count) {
    auto* const to = reinterpret_cast<std::remove_const_t<std::remove_pointer_t<decltype(from)>>*>(next);
    next += round_up(count * sizeof(*from), 16);
    if (next > f.meta.as<uint8_t>() + f.meta.size()) throw StatusError(PEN_INTERNAL, "the step's changes do not fit");
    std::copy_n(from, count, to);
    return to;
  };
  if (b.source == PEN_FROM_CHANGES) {
    const uint32_t turn = uint32_t((m.steps + 1) % NUM_FLIGHTS);
    const RowChanges changes{put(b.rows, b.num_seqs), put(b.tables, b.num_tables), put(b.blocks, b.num_blocks), int(b.num_seqs), turn};
    place_rows(m.launch(false), m.slots, changes, kv.paging());
  }
  f.mask_of = size_t(next - f.meta.as<uint8_t>());
  if (b.sample_later) std::fill_n(reinterpret_cast<int32_t*>(next), num_rows, -1);
  f.paging = kv.paging();
  m.advanced = m.steps + 1;
}

void check_loop(const pen_model& m, const pen_batch& b) {
  const bool is_plain = b.num_sampled == b.num_seqs && !b.num_logprobs && !b.want_logits && !b.sample_later && !b.pools;
  const bool has_prompts = b.num_rounds > 0 || b.num_copies > 0 || b.num_state_copies > 0 || b.num_scored > 0 || b.num_embeddings > 0;
  const bool fits = m.loop_turn > 0 && b.loop_steps <= PEN_MAX_LOOP_STEPS && b.loop_steps % uint32_t(m.loop_turn) == 0;
  if (fits && is_plain && !has_prompts && b.source != PEN_FROM_ARRAYS && b.num_seqs <= MAX_GRAPH_TOKENS) return;
  throw StatusError(PEN_INVALID_ARG, "the batch cannot run as a loop");
}

// Queues a loop.
void submit_loop(pen_model& m, pen_kv& kv, const pen_batch& b, InFlight& f) {
  check_loop(m, b);
  uint32_t context = 0;
  for (uint32_t i = 0; i < b.num_seqs; i++) context = std::max(context, b.context_lens[i] + b.loop_steps - 1);
  const int blocks = std::min(ceil_div(int(context), kv.block_size), int(b.max_blocks));
  const GraphShape shape{false, round_seqs(int(b.num_seqs)), round_blocks(blocks, kv.block_size), true};
  f.row_of.assign(b.sampled_rows, b.sampled_rows + b.num_sampled);
  f.logits.clear();
  f.wants_logits = false;
  f.num_logprobs.clear();
  f.pools.clear();
  f.num_scored = f.num_pools = f.num_pool_rows = 0;
  send_changes(m, kv, b, shape.tokens, f);
  f.loop_steps = b.loop_steps;
  f.loop_collected = 0;
  f.step = m.steps + 1;
  run_loop(m, kv, shape, f);
  check(cudaEventRecord(f.done.handle, m.stream.handle), "event");
  m.steps++;
  f.unsampled = false;
  f.pending = true;
}

// Returns the ids of a loop's next step, unless the loop has ended before it.
void collect_loop(pen_model& m, InFlight& f, pen_output& out) {
  const bool is_there = await_step(m, f);
  const int32_t* const ids = f.sampled.as<int32_t>() + size_t(f.loop_collected) * m.slots.max_rows;
  out.num_sampled = is_there ? out.num_sampled : 0;
  for (uint32_t k = 0; k < out.num_sampled; k++) out.sampled[k] = ids[f.row_of[k]];
  f.loop_collected += is_there;
  f.pending = is_there && f.loop_collected < f.loop_steps;
  out.goes_on = f.pending;
}

// Queues what follows the sampling, and records the event that says all results are there.
void finish(pen_model& m, InFlight& f) {
  finish_prompts(m, f);
  if (!m.has_head()) {
    const size_t bytes = size_t(f.device.view.num_tokens) * m.desc.hidden_dim * sizeof(float);
    if (f.stream.size() < bytes) f.stream = Pinned(bytes);
    const float* const rows = m.scratch.rows.at(m.desc.output).data.as<float>();
    check(cudaMemcpyAsync(f.stream.as<float>(), rows, bytes, cudaMemcpyDeviceToHost, m.stream.handle), "copying rows");
  }
  check(cudaEventRecord(f.done.handle, m.stream.handle), "event");
}

}  // namespace

uint64_t submit(pen_model& m, pen_kv& kv, const pen_batch& b) {
  check_batch(m, kv, b);
  InFlight& f = flight_of(m, m.steps + 1);
  if (flight_of(m, m.steps).unsampled) throw StatusError(PEN_INVALID_ARG, "the previous step was not sampled");
  if (f.pending) throw StatusError(PEN_INVALID_ARG, "two steps are in flight already");
  Turns::of(m.ctx.device.id).before_step(m.stream.handle);
  for (uint32_t i = 0; i < b.num_init; i++) init_slot(m, b.init[i]);
  if (b.loop_steps > 0) {
    submit_loop(m, kv, b, f);
    return f.step;
  }
  m.adapters.begin_step(m, b, b.num_tokens <= MAX_GRAPH_TOKENS ? round_seqs(int(b.num_tokens)) : 0, f);
  const Shape shape(m, kv, b, f.row_of);
  if (b.source != PEN_FROM_ARRAYS) send_changes(m, kv, b, shape.rows, f);
  const Step step = b.source == PEN_FROM_ARRAYS ? send_arrays(m, kv, b, shape, f) : step_of(m.slots, shape.rows, shape.bounds);
  f.loop_steps = 0;
  begin_prompts(m, kv, b, f);
  place_embeddings(m, b, f);
  const bool sampling = b.sample_later == 0;
  f.logits.clear();
  f.wants_logits = b.want_logits != 0;
  f.num_logprobs.clear();
  if (b.num_logprobs) f.num_logprobs.assign(b.num_logprobs, b.num_logprobs + b.num_sampled);
  if (shape.graph && !f.wants_logits) {
    run_graph(m, kv, step, *shape.graph);
    if (sampling && !f.num_logprobs.empty()) logprobs_step(m, step, f);
  } else {
    forward(m, kv, step);
    if (sampling && m.has_head()) sample_rows(m, step, f, nullptr);
  }
  f.device = step;
  if (sampling) finish(m, f);
  f.unsampled = !sampling;
  f.step = ++m.steps;
  f.pending = true;
  return f.step;
}

// The device still holds this step's metadata, because it is the last step submitted. If anything fails here, the step can no longer be
// sampled.
void sample_with_masks(pen_model& m, uint64_t number, const pen_masks& masks) {
  InFlight& f = flight_of(m, number);
  if (number != m.steps || !f.pending || !f.unsampled) throw StatusError(PEN_INVALID_ARG, "the step does not wait to be sampled");
  bool fits = masks.num_sampled == f.row_of.size() && masks.num_masks <= masks.num_sampled;
  for (uint32_t k = 0; fits && k < masks.num_sampled; k++) fits = masks.mask_of[k] >= -1 && masks.mask_of[k] < int32_t(masks.num_masks);
  if (!fits) throw StatusError(PEN_INVALID_ARG, "the masks are out of bounds");
  sample_rows(m, f.device, f, &masks);
  finish(m, f);
  f.unsampled = false;
}

void collect(pen_model& m, pen_output& out) {
  InFlight& f = flight_of(m, out.step);
  if (!f.pending || f.step != out.step) throw StatusError(PEN_INVALID_ARG, "step " + std::to_string(out.step) + " is not in flight");
  if (f.unsampled) {
    f.unsampled = f.pending = false;
    m.advanced = 0;
    check(cudaStreamSynchronize(m.stream.handle), "a step");
    throw StatusError(PEN_INVALID_ARG, "step " + std::to_string(out.step) + " was not sampled");
  }
  if (out.ends_loops) end_loops(m);
  out.goes_on = 0;
  if (out.num_sampled != f.row_of.size()) throw StatusError(PEN_INVALID_ARG, "the step has a different number of sampled rows");
  if (f.loop_steps > 0) return collect_loop(m, f, out);
  check(cudaEventSynchronize(f.done.handle), "a step");
  f.pending = false;
  constexpr size_t N = MAX_LOGPROBS;
  const size_t vocab = m.desc.vocab_size;
  for (uint32_t k = 0; k < out.num_sampled; k++) {
    const size_t row = size_t(f.row_of[k]);
    out.sampled[k] = f.sampled.as<int32_t>()[row];
    if (out.logits && !f.logits.empty()) std::copy_n(f.logits.data() + row * vocab, vocab, out.logits + k * vocab);
    if (!out.logprobs || !out.logprob_ids || f.num_logprobs.empty() || f.num_logprobs[k] < 0) continue;
    std::copy_n(f.logprobs.as<float>() + row * (1 + N), 1 + N, out.logprobs + k * (1 + N));
    std::copy_n(f.logprob_ids.as<int32_t>() + row * N, N, out.logprob_ids + k * N);
  }
  collect_prompts(m, f, out);
  if (out.stream && !m.has_head()) {
    std::copy_n(f.stream.as<float>(), size_t(f.device.view.num_tokens) * m.desc.hidden_dim, out.stream);
  }
}

}  // namespace pen
