// The tiles of a step's sequences as one list, of which each block takes a contiguous range, whatever the sequences' lengths.
#pragma once

#include "qkv_rows.cuh"
#include "split.cuh"

namespace pen {

// The list of a step's tiles, ordered by sequence, then by part of the heads, then by tile.
template <bool EXTRAS>
struct WorkList {
  const Attention& p;
  const DecodePlan& plan;
  int num_seqs, parts;  // parts of the heads: HeadRows
  // In shared memory.
  int* before;             // [num_seqs + 1] tiles of all earlier sequences
  int *contexts, *tokens;  // [num_seqs]
  int* sums;               // [LIST_SEQUENCES / WARP]

  // Fills the arrays, by the whole block.
  __device__ __forceinline__ void find(const StepView& step) const {
    const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    for (int first = warp * WARP; first < num_seqs; first += warps * WARP) {
      const int i = first + lane;
      int count = 0;
      if (i < num_seqs) {
        // Loads all three values at once. DecodeRange's loads would wait for each other.
        const int seq = step.sequence(i), context = step.context_lens[seq], token = step.cu_seqlens_q[seq];
        if (step.cu_seqlens_q[seq + 1] - token == 1 && context != 0) {
          const DecodeRange<EXTRAS> range(context, p);
          count = (range.end - range.begin) * parts;
        }
        contexts[i] = context, tokens[i] = token;
      }
      count = warp_scan(count);
      if (i < num_seqs) before[i + 1] = count;
      if (lane == WARP - 1) sums[first / WARP] = count;
    }
    __syncthreads();
    const int sum = warp_scan(lane < ceil_div(num_seqs, WARP) ? sums[lane] : 0);
    for (int first = warp * WARP; first < num_seqs; first += warps * WARP) {
      const int others = __shfl_sync(0xffffffffu, sum, max(first / WARP - 1, 0));
      if (first > 0 && first + lane < num_seqs) before[first + lane + 1] += others;
    }
    if (threadIdx.x == 0) before[0] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ int count() const { return before[num_seqs]; }
  // The sequence of a place in the list, and the place within it.
  __device__ __forceinline__ int sequence(int& place) const {
    int seq = 0, end = num_seqs;
    while (end - seq > 1) {
      const int middle = (seq + end) / 2;
      if (before[middle] <= place) seq = middle; else end = middle;
    }
    place -= before[seq];
    return seq;
  }
  // Where a block's range starts: at an equal share of the list, rounded up to the next place where a range may start. KV splits are not
  // cut, nor are sequences whose output their block writes.
  __device__ __forceinline__ int begin(int block, int blocks) const {
    const int all = count(), place = all / blocks * block + all % blocks * block / blocks;
    if (place >= all) return all;
    int within = place;
    const DecodeRange<EXTRAS> range(contexts[sequence(within)], p);
    const int count = range.end - range.begin, from = within % count, tile = range.begin + from;
    if (from == 0) return place;
    const bool whole = range.num_kv_splits() <= plan.share;
    return place + (whole ? range.end : min(range.end, ceil_div(tile, KV_SPLIT_TILES) * KV_SPLIT_TILES)) - tile;
  }

  // Finishes Q of a range's sequences and heads, and K and V if the range has the fresh row's tile, by threads [0, threads) of the block.
  // Waits for the step's products in between. TOGETHER: parts of heads that a thread loads at the same time.
  template <int TOGETHER>
  __device__ __forceinline__ void finish(const QkvFinish& fresh, const StepView& step, int first, int end, int threads) const {
    const int head_dim = p.kv.head_dim, each = (plan.rows + 2) * (head_dim / 8);
    // Items: sequence · parts + part of the heads.
    const auto item_at = [&](int place) {
      const int seq = sequence(place);
      const DecodeRange<EXTRAS> range(contexts[seq], p);
      return seq * parts + place / (range.end - range.begin);
    };
    const int first_item = first < end ? item_at(first) : 0, work = first < end ? (item_at(end - 1) + 1 - first_item) * each : 0;
    bool waited = false;
#pragma unroll 1
    for (int at = threadIdx.x; at < work || !waited; at += TOGETHER * threads) {
      FreshPart part[TOGETHER];
      __half* out[TOGETHER];
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        out[k] = nullptr;
        const int i = at + k * threads;
        if (i >= work) continue;
        const int item = first_item + i / each, head = i % each / (head_dim / 8), seq = item / parts, token = tokens[seq];
        const HeadRows heads(p, plan, item % parts);
        const DecodeRange<EXTRAS> range(contexts[seq], p);
        const int last = before[seq] + (item % parts + 1) * (range.end - range.begin) - 1;
        const bool sees = last >= first && last < end;
        if (before[seq] == before[seq + 1] || (head < plan.rows ? head >= heads.rows : !sees)) continue;
        const Head kind = head < plan.rows ? Head::Q : head == plan.rows ? Head::K : Head::V;
        const int index = kind == Head::Q ? heads.head + head : heads.kv_head;
        const uint32_t turns = fresh.by_position ? step.positions[token] : range.context - 1;
        part[k].prepare(fresh, kind, index, token, turns, i % (head_dim / 8));
        out[k] = kind == Head::Q ? fresh.q + (static_cast<size_t>(token) * p.num_heads + index) * head_dim
                                 : page_row(fresh.kv, kind == Head::K ? fresh.kv.k : fresh.kv.v, step.slot_mapping[token], index);
      }
      if (!waited) wait_for_previous();
      waited = true;
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        if (out[k] != nullptr) part[k].load();
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        if (out[k] != nullptr) part[k].put(out[k]);
      }
    }
  }
};

}  // namespace pen
