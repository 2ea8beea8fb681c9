// Decides how rows are sampled: a pure function, compiled by a host's compiler, too. No decision changes an id.
//
//   kernels                                        when                            why
//   largest, weigh and draw_kernel<false>          each row has a slot of its own  the row's id goes straight to its slot
//   largest, weigh and draw_kernel<true>, accept   rows share slots (drafts)       all rows are drawn at once, and accepted in order
#pragma once

#include "../device/numbers.h"

namespace pen {

constexpr int PASS_IDS = 4096;  // ids per block of the two passes over all rows
constexpr int SUM_BLOCK = 256, SUM_LANES = 16;  // the CPU's blocks and lanes of sums, which determine the rounding of a row's total
constexpr int EXPONENTS = 128;   // bucket b: weights with exponent -b; weights of e^-87 or more need 0..126
constexpr int DRAFT_THREADS = 128;  // threads of a block that accepts
constexpr int MOST_VOCAB = 1 << 19;  // ids: the histograms' 32-bit sums hold no more

struct SamplePlan {
  bool drafts;
  int vocab_tiles, sum_blocks;  // parts of a row: blocks of the passes, and blocks of sums
  int accept_blocks;            // 0: rows are not accepted
  size_t keys, sums, masses, counts, bytes;  // where the parts' results begin in the workspace, and its size
};
inline SamplePlan choose_sampling(int num_rows, int vocab, bool drafts) {
  SamplePlan plan{drafts, ceil_div(vocab, PASS_IDS), ceil_div(vocab, SUM_BLOCK), drafts ? ceil_div(num_rows, DRAFT_THREADS) : 0};
  const auto take = [&](size_t each, int parts) {
    const size_t begin = plan.bytes;
    plan.bytes += round_up(each * num_rows * parts, 256);
    return begin;
  };
  plan.keys = take(sizeof(uint64_t), plan.vocab_tiles);
  plan.sums = take(sizeof(double), plan.sum_blocks);
  plan.masses = take(sizeof(uint64_t), EXPONENTS);
  plan.counts = take(sizeof(uint32_t), EXPONENTS);
  return plan;
}

}  // namespace pen
