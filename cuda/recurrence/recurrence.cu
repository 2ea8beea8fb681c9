// Launches scans and the delta rule.
#include "recurrence.cuh"

#include <stdexcept>
#include <string>

namespace pen {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Whether fours of keys of every head and row start at multiples of 16 bytes.
bool is_wide(const View& view) { return aligned(view.start) && view.ld % 4 == 0 && view.per_head % 4 == 0; }

template <Rule RULE, class Shape>
void start(const Launch& launch, Recurrence p, const StepView& step) {
  using Stage = Ring<RULE, Shape>;
  const bool whole = step.max_query <= Stage::rows();
  p.stage_rows = whole ? (step.max_query < 1 ? 1 : step.max_query) : Stage::rows();
  p.stages = whole ? 1 : 2;
  p.wide_inputs = p.keys % 4 == 0;
  for (int i = 0; i < Stage::KEYED; i++) p.wide_inputs &= is_wide(p.keyed[i]);
  p.wide_state = p.keys % 4 == 0 && aligned(p.states.data) && p.states.width % 4 == 0 && p.state_at % 4 == 0 && aligned(p.a);
  const dim3 grid(p.heads * ceil_div(p.values, Shape::COLUMNS), step.num_seqs);
  const size_t shared = size_t(p.stages) * p.stage_rows * Stage::ROW * sizeof(float);
  launch(recurrence_kernel<RULE, Shape>, grid, dim3(RECURRENCE_THREADS), shared, p, step);
}

template <Rule RULE>
void start(const Launch& launch, const Recurrence& p, const StepView& step) {
  if (p.keys > MAX_KEYS) {
    throw std::invalid_argument("a recurrence has " + std::to_string(p.keys) + " keys, expected at most " + std::to_string(MAX_KEYS));
  }
  if (step.num_seqs == 0) return;
  if (p.keys <= 16) return start<RULE, KeyShape<4, 1>>(launch, p, step);
  if (p.keys <= 64) return start<RULE, KeyShape<8, 2>>(launch, p, step);
  if (p.keys <= 128) return start<RULE, KeyShape<8, 4>>(launch, p, step);
  if (p.keys <= 256) return start<RULE, KeyShape<16, 4>>(launch, p, step);
  start<RULE, KeyShape<32, 8>>(launch, p, step);
}

Recurrence of(const HeadStates& heads) {
  Recurrence p{};
  p.heads = heads.heads, p.keys = heads.keys, p.values = heads.values;
  p.states = heads.states, p.state_at = heads.state_at;
  p.out = heads.out, p.ld_out = heads.ld_out;
  return p;
}

}  // namespace

void scan(const Launch& launch, const Scan& scan, const StepView& step) {
  Recurrence p = of(scan);
  p.keyed[0] = scan.b, p.keyed[1] = scan.c;
  p.vectors[0] = scan.x;
  p.group = scan.group, p.key_heads = 1;
  if (scan.by_channel) {
    p.vectors[1] = scan.steps, p.a = scan.a;
    return start<Rule::SCAN_CHANNELS>(launch, p, step);
  }
  p.scalars[0] = scan.factors, p.scalars[1] = scan.steps;
  start<Rule::SCAN>(launch, p, step);
}

void delta_rule(const Launch& launch, const Delta& delta, const StepView& step) {
  Recurrence p = of(delta);
  p.keyed[0] = delta.k, p.keyed[1] = delta.q;
  p.vectors[0] = delta.v, p.scalars[1] = delta.beta;
  p.group = delta.heads / delta.num_key_heads, p.key_heads = delta.num_key_heads, p.tiled = delta.tiled;
  if (delta.by_key) {
    p.keyed[2] = delta.decay;
    return start<Rule::DELTA_KEYS>(launch, p, step);
  }
  p.scalars[0] = delta.decay;
  start<Rule::DELTA>(launch, p, step);
}

}  // namespace pen
