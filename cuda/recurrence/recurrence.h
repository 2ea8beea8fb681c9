// Mixers with a state of fixed size per sequence: causal convolutions, selective scans and linear attention (Mamba 1 and 2, PLaMo 2,
// Lightning), and the gated delta rule (Qwen3-Next, Kimi Linear).
//
// Computed row by row in the order of a sequence's rows, each line rounded as written. fma(a, b, c) rounds once:
//   convolve    y = 0, y = fma(kernel[j], in[row − (taps − 1) + j], y) for j = 0 .. taps − 1, y += bias, out = silu(y) or y.
//   scan        u = step · x, S = fma(b, u, decay · S), out = Σ S · c over the keys. Mamba 1: decay = 2^(step · (a · log2 e)) by the
//               GPU's approximation (2 units in the last place) and u = x · step of the channel.
//   delta_rule  one decay per head:  m = decay · Σ S · k,    S = fma(k, beta · (v − m), decay · S), out = Σ S · q
//               one decay per key:   m = Σ S · (decay · k),  S and out as above
// Order of the sums over keys: 4, 8, 16 or 32 lanes hold the keys, four neighbours each, then the next four, and so on. Each lane adds its
// own by fused multiply-adds in two chains (even and odd fours, each in ascending order), then the chains are added, then the lanes by a
// tree of distances 1, 2, 4 and so on. The number of lanes depends on the number of keys alone (recurrence.cu). So a row's bits depend on
// the sequence's rows up to this one, and neither on how a prompt is cut into steps nor on the batch or the grid.
//
// Why lanes share a column (a channel of the values), instead of a thread per column: rows are sequential, so the latency of one row
// counts. A thread per column of 128 keys would issue over 500 instructions per row and read 256 broadcast floats of b and c, and a head of
// 128 × 128 would fill four warps. With 8 lanes and two columns per thread, a head of 128 × 128 fills 16 warps, and the state (32 registers
// per thread) stays in registers while the rows of a step pass. The sums cost three shuffles. Those of `out` wait until the next row, so
// their latency overlaps with the next row's work. Keys and values of the next rows come through a ring in shared memory (cp.async).
// Counted in the machine code for sm_90, per row of 128 keys and warp: scan 138 instructions, by channel 202, delta rule 188, by key 206.
// Estimated from that on an H100 (1.75 GHz) with one warp per scheduler: scan 80 ns per row; delta rule 140 ns, of which some 60 cycles
// wait for the shuffles of m. Decode reads the state once and writes it once, in lines of 128 bytes (from 32 keys on), with 4 KiB per warp
// in flight (128 keys).
//
// State of a layer and sequence, `width` floats: a convolution keeps its earlier rows [taps − 1][channels], and a recurrence keeps
// [heads][values][keys]. Both start at `state_at`.
#pragma once

#include <stdint.h>

#include "../device/launch.h"
#include "../device/step.h"

namespace pen {

// The states of one layer. A sequence whose first row is at position 0 starts from zeros, whatever its slot holds. After the step, the slot
// holds the state after the sequence's last row. Padding sequences touch nothing. No two sequences of a step share a slot.
struct States {
  float* data;  // [num_slots, width]
  int width;
  const uint32_t* slots;  // [num_seqs]
};

struct Convolution {
  const float* in;  // [num_tokens, ld_in]
  int ld_in;
  float* out;  // [num_tokens, ld_out]; must not overlap `in`
  int ld_out;
  const float* kernel;  // [channels, taps], the oldest row's tap first
  const float* bias;    // [channels], or null
  int channels, taps;
  bool silu;
  States states;
  int state_at;
};

void convolve(const Launch& launch, const Convolution& convolution, const StepView& step);

// A part that heads read of each row. Head `h` starts at start + row · ld + h · per_head.
struct View {
  const float* start;
  int ld;  // 0: all rows are the same
  int per_head;
};

constexpr int MAX_KEYS = 1024;  // of a scan and of the delta rule; more throw std::invalid_argument

// Arguments that scans and the delta rule have in common.
struct HeadStates {
  int heads, keys, values;
  States states;
  int state_at;
  float* out;  // [num_tokens, ld_out], of which heads · values are written; must not overlap an input
  int ld_out;
};

struct Scan : HeadStates {
  View x;           // [heads, values]
  View b, c;        // [heads / group, keys]
  int group;        // neighbouring heads that share b and c
  View factors;     // [heads] the decay, unless by_channel
  View steps;       // [heads], or [heads, values] if by_channel; a null start: all 1
  bool by_channel;  // Mamba 1
  const float* a;   // [heads · values, keys] if by_channel
};

void scan(const Launch& launch, const Scan& scan, const StepView& step);

struct Delta : HeadStates {
  View q, k;   // [num_key_heads, keys]
  View v;      // [heads, values]
  View decay;  // [heads], or [heads, keys] if by_key
  View beta;   // [heads]
  bool by_key;
  int num_key_heads;
  bool tiled;  // head h has key head h % num_key_heads; otherwise h / (heads / num_key_heads)
};

void delta_rule(const Launch& launch, const Delta& delta, const StepView& step);

// Copies whole slots. pairs: [n, 2] from, to, on the device. Every `to` occurs once and is no `from`, so the order of the copies does not
// matter.
void copy_states(const Launch& launch, float* data, size_t width, const uint32_t* pairs, int n);

}  // namespace pen
