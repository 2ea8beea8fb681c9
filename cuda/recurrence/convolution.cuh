// The kernel of causal convolutions.
#pragma once

#include "../device/kernel.cuh"
#include "../linear/epilogue.cuh"
#include "recurrence.h"

namespace pen {

constexpr int CONVOLUTION_THREADS = 128;
constexpr int CONVOLUTION_AHEAD = 8;  // rows whose loads are in flight at once
constexpr int CONVOLUTION_ROWS = 16;  // rows of a tile, in steps with prompts

// One channel of one sequence's rows.
struct ConvolutionColumn {
  const float* in;  // from the step's row 0
  float* out;
  float* state;  // the sequence's: [taps − 1], `channels` floats apart; only the block with its first row uses it
  bool zeros;    // the sequence starts in this step
};

// Number `t` of the taps − 1 rows before the sequence's first row in this step.
__device__ __forceinline__ float earlier_row(const Convolution& p, const ConvolutionColumn& column, int t) {
  const float x = column.state[size_t(t) * p.channels];  // read in any case, so that it need not wait for the row's position
  return column.zeros ? 0.0f : x;
}

// Computes rows `from` to `to` − 1 of a sequence that starts at `first`. TAPS 0: any number of taps, each read from memory.
template <int TAPS>
__device__ __forceinline__ void convolve_rows(const Convolution& p, const ConvolutionColumn& column, const float (&tap)[TAPS ? TAPS : 1],
                                              const float* kernel, float bias, int first, int from, int to) {
  const auto finish = [&](int row, float y) {
    if (p.bias) y = __fadd_rn(y, bias);
    column.out[size_t(row) * p.ld_out] = p.silu ? silu(y) : y;
  };
  if constexpr (TAPS == 0) {
    for (int row = from; row < to; row++) {
      float y = 0.0f;
      for (int j = 0; j < p.taps; j++) {
        const int source = row - (p.taps - 1) + j;
        const float x = source >= first ? column.in[size_t(source) * p.ld_in] : earlier_row(p, column, source - first + p.taps - 1);
        y = __fmaf_rn(kernel[j], x, y);
      }
      finish(row, y);
    }
  } else {
    float x[TAPS - 1 + CONVOLUTION_AHEAD];
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) {
      const int source = from - (TAPS - 1) + j;
      x[j] = source >= first ? column.in[size_t(source) * p.ld_in] : earlier_row(p, column, source - first + TAPS - 1);
    }
    for (int row = from; row < to; row += CONVOLUTION_AHEAD) {
#pragma unroll
      for (int i = 0; i < CONVOLUTION_AHEAD; i++) {
        x[TAPS - 1 + i] = row + i < to ? column.in[size_t(row + i) * p.ld_in] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < CONVOLUTION_AHEAD; i++) {
        float y = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) y = __fmaf_rn(tap[j], x[i + j], y);
        if (row + i < to) finish(row + i, y);
      }
#pragma unroll
      for (int j = 0; j < TAPS - 1; j++) x[j] = x[CONVOLUTION_AHEAD + j];
    }
  }
}

// Grid: (channels / CONVOLUTION_THREADS, num_tokens / rows), both rounded up. A thread has one channel of a tile of `rows` rows, which may
// belong to several sequences. The block with a sequence's first row also computes its first taps − 1 rows, wherever the tile ends. So this
// block alone reads the sequence's state, and may write it.
template <int TAPS>
__global__ void __launch_bounds__(CONVOLUTION_THREADS) convolve_kernel(const __grid_constant__ Convolution p,
                                                                       const __grid_constant__ StepView step, int rows) {
  let_next_start();
  const int channel = blockIdx.x * CONVOLUTION_THREADS + threadIdx.x;
  const float* kernel = p.kernel + size_t(channel) * p.taps;
  // Weights need not wait for the preceding kernels.
  float tap[TAPS ? TAPS : 1], bias = 0.0f;
  if (channel < p.channels) {
#pragma unroll
    for (int j = 0; j < TAPS; j++) tap[j] = held(kernel[j]);
    if (p.bias) bias = held(p.bias[channel]);
  }
  wait_for_previous();
  const int begin = blockIdx.y * rows, end = begin + rows;
  // Number of the sequence of the tile's first row, which equals the number of sequences that end before it.
  int sequence = begin;
  if (step.max_query > 1) {
    sequence = 0;
    for (int at = 0; at < step.num_seqs; at += CONVOLUTION_THREADS) {
      const int i = at + threadIdx.x;
      sequence += __syncthreads_count(i < step.num_seqs && int(step.cu_seqlens_q[i + 1]) <= begin);
    }
  }
  if (channel >= p.channels) return;
  const int before = p.taps - 1;
  for (; sequence < step.num_seqs; sequence++) {
    const int first = int(step.cu_seqlens_q[sequence]), last = int(step.cu_seqlens_q[sequence + 1]);
    if (first >= end) break;
    if (step.context_lens[sequence] == 0 || first == last) continue;
    const bool begins = first >= begin;
    const int from = begins ? first : max(begin, first + before), to = min(last, begins ? max(end, first + before) : end);
    float* state = begins ? p.states.data + size_t(p.states.slots[sequence]) * p.states.width + p.state_at + channel : nullptr;
    const ConvolutionColumn column{p.in + channel, p.out + channel, state, begins && step.context_lens[sequence] == uint32_t(last - first)};
    if (from < to) convolve_rows<TAPS>(p, column, tap, kernel, bias, first, from, to);
    if (!begins) continue;
    // Advances the state by the sequence's rows, in ascending order, so that every element is read before it is overwritten.
    for (int t = 0; t < before; t++) {
      const int source = last - before + t;
      state[size_t(t) * p.channels] =
          source >= first ? column.in[size_t(source) * p.ld_in] : earlier_row(p, column, source - first + before);
    }
  }
}

}  // namespace pen
