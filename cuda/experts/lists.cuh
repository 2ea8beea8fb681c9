// Lists the experts of a step with few rows, in the order in which decode.cuh reads them.
#pragma once

#include "decode.h"
#include "route.cuh"

namespace pen {

// Group g is an expert and its choices. A shared expert is the last group and has all rows. Row r's choice of the shared expert is number
// choices + r.
struct alignas(16) Lists {
  static constexpr int ALL = DECODE_CHOICES + DECODE_ROWS;
  alignas(16) int32_t chosen[DECODE_CHOICES];
  float weights[DECODE_CHOICES];
  alignas(16) uint8_t first[DECODE_CHOICES];  // the first choice of the same expert, or NONE
  int32_t expert_of[DECODE_CHOICES + 1];      // -1: the shared expert
  int16_t start[DECODE_CHOICES + 2];          // first place of each group in `sorted`, and the end
  int16_t sorted[ALL];                        // choices, ordered by group
  uint8_t row_of[ALL];                        // rows of the sorted choices
  uint32_t leaders[DECODE_CHOICES / WARP];    // a bit for the first choice of each expert
  int32_t groups;                             // including the shared expert's
  static constexpr uint8_t NONE = 255;

  __device__ __forceinline__ int count(int group) const { return start[group + 1] - start[group]; }

  // Fills the lists, by a whole block of 256 threads. `keys`: route_words() of shared memory per row.
  __device__ __forceinline__ void make(const Routing& p, bool shared, uint32_t* keys) {
    static_assert(DECODE_CHOICES <= NONE && DECODE_ROWS <= 8, "a thread for each choice, a warp for each row");
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, choices = p.num_rows * p.used, c = threadIdx.x;
    if (warp < p.num_rows) {
      int32_t* const own = chosen + warp * p.used;
      float* const own_weights = weights + warp * p.used;
      const float* const scores = p.scores + size_t(warp) * p.num_experts;
      const uint32_t slot = __ldcg(p.slot_mapping + warp);
      route_row(p, slot, scores, lane, keys + warp * route_words(p.num_experts, p.groups), own, own_weights);
    }
    __syncthreads();
    const int expert = c < choices ? chosen[c] : -1;
    if (p.num_rows == 1) {  // one group per choice
      if (c == 0) groups = (chosen[0] >= 0 ? choices : 0) + (shared ? 1 : 0);
      if (c <= choices) expert_of[c] = expert, start[c] = sorted[c] = int16_t(c), row_of[c] = 0;
      if (c == choices) start[c + 1] = int16_t(c + 1);
      __syncthreads();
      return;
    }
    int before = 0, leader = c;  // earlier choices of the same expert
    // A row chooses an expert only once, so its own other choices are not searched.
    for (int k = 0; expert >= 0 && k < c / p.used * p.used; k++) {
      if (chosen[k] != expert) continue;
      if (before++ == 0) leader = k;
    }
    if (c < DECODE_CHOICES) {
      first[c] = expert >= 0 ? uint8_t(leader) : NONE;
      const uint32_t bits = __ballot_sync(ALL_LANES, expert >= 0 && before == 0);
      if (lane == 0) leaders[warp] = bits;
    }
    __syncthreads();
    int group = 0, own = 0;
#pragma unroll
    for (int w = 0; w < DECODE_CHOICES / WARP; w++) {
      const uint32_t bits = leaders[w];
      own += __popc(bits);
      group += __popc(w < leader / WARP ? bits : w == leader / WARP ? bits & ((1u << leader % WARP) - 1) : 0);
    }
    // Choices whose group number is less than `below`, four per word.
    const auto choices_before = [&](int below) {
      int n = 0;
      for (int i = 0; i < choices; i += 4) {
        n += __popc(__vcmpltu4(*reinterpret_cast<const uint32_t*>(first + i), uint32_t(below) * 0x01010101u)) / 8;
      }
      return n;
    };
    if (expert >= 0) {
      const int at = choices_before(leader);
      sorted[at + before] = int16_t(c), row_of[at + before] = uint8_t(c / p.used);
      if (before == 0) expert_of[group] = expert, start[group] = int16_t(at);
    }
    if (c == DECODE_THREADS - 1 || (shared && c < p.num_rows)) {
      const int at = choices_before(NONE);
      if (c == DECODE_THREADS - 1) {
        start[own] = int16_t(at), start[own + 1] = int16_t(at + (shared ? p.num_rows : 0)), expert_of[own] = -1;
        groups = own + (shared ? 1 : 0);
      }
      if (shared && c < p.num_rows) sorted[at + c] = int16_t(choices + c), row_of[at + c] = uint8_t(c);
    }
    __syncthreads();
  }
};
// Words that threads of a block copy, one per thread.
constexpr int LIST_PIECES = sizeof(Lists) / sizeof(uint4);
static_assert(LIST_PIECES <= DECODE_THREADS && sizeof(Lists) % sizeof(uint4) == 0, "copied at once");

}  // namespace pen
