// The experts of a step of few rows, as each block of decode.cuh lists them for itself in shared memory.
#pragma once

#include "decode.h"
#include "route.cuh"

namespace pen {

// Group g is an expert with its choices. A shared expert is the last group, of all rows; row r's choice of it is number choices + r.
struct Lists {
  int32_t chosen[DECODE_CHOICES];
  float weights[DECODE_CHOICES];
  int32_t expert_of[DECODE_CHOICES + 1];  // -1: the shared expert
  int16_t order[DECODE_CHOICES + 1][DECODE_ROWS];  // choices from the front, then -1
  uint8_t rows[DECODE_CHOICES + 1][DECODE_ROWS];   // of the choices, then any
  uint32_t leaders[DECODE_CHOICES / WARP];  // a bit for the first choice of each expert

  // By a whole block of 256 threads; returns the number of groups.
  __device__ __forceinline__ int make(const Routing& p, bool shared) {
    static_assert(DECODE_CHOICES <= 256 && DECODE_ROWS <= 8, "a thread for each choice, a warp for each row");
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, choices = p.num_rows * p.used, c = threadIdx.x;
    if (warp < p.num_rows) {
      int32_t* const own = chosen + warp * p.used;
      const float* const scores = p.scores + size_t(warp) * p.num_experts;
      if (__ldcg(p.slot_mapping + warp) == NO_SLOT) {
        for (int i = lane; i < p.used; i += WARP) own[i] = -1;
      } else if (p.num_experts <= 4 * WARP) {
        route_row<4>(p, scores, lane, own, weights + warp * p.used);
      } else {
        route_row<DECODE_EXPERTS / WARP>(p, scores, lane, own, weights + warp * p.used);
      }
    }
    for (int i = threadIdx.x; i < (choices + 1) * DECODE_ROWS; i += blockDim.x) {
      order[i / DECODE_ROWS][i % DECODE_ROWS] = -1, rows[i / DECODE_ROWS][i % DECODE_ROWS] = 0;
    }
    __syncthreads();
    const int expert = c < choices ? chosen[c] : -1;
    int before = 0, first = c;  // choices of the same expert
    for (int k = 0; expert >= 0 && k < c; k++) {
      if (chosen[k] != expert) continue;
      if (before++ == 0) first = k;
    }
    if (c < DECODE_CHOICES) {
      const uint32_t bits = __ballot_sync(ALL_LANES, expert >= 0 && before == 0);
      if (lane == 0) leaders[warp] = bits;
    }
    __syncthreads();
    int group = 0, groups = 0;
#pragma unroll
    for (int w = 0; w < DECODE_CHOICES / WARP; w++) {
      const uint32_t bits = leaders[w];
      groups += __popc(bits);
      group += __popc(w < first / WARP ? bits : w == first / WARP ? bits & ((1u << first % WARP) - 1) : 0);
    }
    if (expert >= 0) {
      order[group][before] = int16_t(c), rows[group][before] = uint8_t(c / p.used);
      if (before == 0) expert_of[group] = expert;
    }
    if (shared && c < p.num_rows) {
      order[groups][c] = int16_t(choices + c), rows[groups][c] = uint8_t(c);
      if (c == 0) expert_of[groups] = -1;
    }
    __syncthreads();
    return groups + (shared ? 1 : 0);
  }
};

}  // namespace pen
