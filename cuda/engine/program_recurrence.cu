// Compiles and runs the ops of mixers with a recurrent state.
#include "../recurrence/recurrence.h"
#include "program.h"

namespace pen {

namespace {

States states_of(const Resolver& find, const pen_state& state, uint64_t floats) {
  if (state.layer >= find.m.states.size() || state.first + floats > find.m.state_widths[state.layer]) {
    throw StatusError(PEN_INVALID_ARG, "an op exceeds a layer's state");
  }
  return States{find.m.states[state.layer].as<float>(), int(find.m.state_widths[state.layer]), nullptr};
}

View view_of(const Resolver& find, const pen_part& part, uint32_t heads, uint32_t dim) {
  const Operand found = find.operand(part, heads, dim);
  if (part.buffer != PEN_NONE && !found.x) throw StatusError(PEN_INVALID_ARG, "a recurrence reads float32 only");
  return View{found.x, int(found.ld), found.stride};
}

// Fills the arguments that all ops with heads have in common.
template <class Desc>
HeadStates heads_of(const Resolver& find, const Desc& op) {
  const Rows& out = find.buffer(op.out, PEN_F32);
  if (uint64_t(op.heads) * op.values > uint64_t(out.ld)) throw StatusError(PEN_INVALID_ARG, "a recurrence's output exceeds its buffer");
  const States states = states_of(find, op.state, uint64_t(op.heads) * op.values * op.keys);
  return {int(op.heads), int(op.keys), int(op.values), states, int(op.state.first), out.data.as<float>(), out.ld};
}

// Calls `queue` with the step's state slots.
template <class Args>
void run_with_states(const Instruction& instruction, const Pass& pass, void (*queue)(const Launch&, const Args&, const StepView&)) {
  Args now = instruction.as<Args>();
  now.states.slots = pass.step.state_slots;
  queue(pass.launch, now, pass.step.view);
}

}  // namespace

Instruction compile_convolve(const Resolver& find, const pen_convolve& op) {
  const Operand in = find.operand(op.in, 1, op.channels), out = find.operand(op.out, 1, op.channels);
  if (!in.x || !out.x || op.taps == 0) throw StatusError(PEN_INVALID_ARG, "a convolution has no input, output or taps");
  const Convolution args{in.x, int(in.ld), out.x, int(out.ld), find.vector(op.kernel, uint64_t(op.channels) * op.taps),
                         find.vector(op.bias, op.channels), int(op.channels), int(op.taps), op.silu != 0,
                         states_of(find, op.state, uint64_t(op.taps - 1) * op.channels), int(op.state.first)};
  return {Kind::CONVOLVE, args};
}

void run_convolve(const Instruction& instruction, const Pass& pass) { run_with_states<Convolution>(instruction, pass, convolve); }

Instruction compile_scan(const Resolver& find, const pen_scan& op) {
  Scan args{heads_of(find, op)};
  const uint32_t pairs = op.heads / std::max(op.group, 1u);
  args.x = view_of(find, op.x, op.heads, op.values);
  args.b = view_of(find, op.b, pairs, op.keys);
  args.c = view_of(find, op.c, pairs, op.keys);
  args.group = int(op.group);
  args.by_channel = op.by_channel != 0;
  args.factors = op.constant_factors == PEN_NONE ? view_of(find, op.factors, op.heads, 1)
                                                 : View{find.vector(op.constant_factors, op.heads), 0, 1};
  args.steps = view_of(find, op.steps, op.heads, op.by_channel ? op.values : 1);
  args.a = find.vector(op.a, uint64_t(op.heads) * op.values * op.keys);
  return {Kind::SCAN, args};
}

void run_scan(const Instruction& instruction, const Pass& pass) { run_with_states<Scan>(instruction, pass, scan); }

Instruction compile_delta(const Resolver& find, const pen_delta& op) {
  Delta args{heads_of(find, op)};
  args.q = view_of(find, op.q, op.key_heads, op.keys);
  args.k = view_of(find, op.k, op.key_heads, op.keys);
  args.v = view_of(find, op.v, op.heads, op.values);
  args.decay = view_of(find, op.decay, op.heads, op.by_key ? op.keys : 1);
  args.beta = view_of(find, op.beta, op.heads, 1);
  args.by_key = op.by_key != 0;
  args.num_key_heads = int(op.key_heads);
  args.tiled = op.tiled != 0;
  return {Kind::DELTA, args};
}

void run_delta(const Instruction& instruction, const Pass& pass) { run_with_states<Delta>(instruction, pass, delta_rule); }

}  // namespace pen
