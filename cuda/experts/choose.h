// Decides which kernels compute a layer with experts: pure functions of its shape and of the device, compiled by a host's compiler, too.
// The table of the kernels is in choose.cu. No decision changes a bit of the result.
#pragma once

#include "../linear/choose.h"

namespace pen {

constexpr int MIN_GROUP = 8, MIN_WIDE_GROUP = 16, MAX_GROUP = 128;  // places per group
// The most groups that this many choices can form.
PEN_ANYWHERE constexpr int most_groups(int choices, int experts, int group) {
  const int padded = int((int64_t(choices) + int64_t(experts) * (group - 1)) / group);
  return choices < padded ? choices : padded;
}

// The smallest group size for products with such matrices: MIN_GROUP, or MIN_WIDE_GROUP if wide groups take less time.
int least_group(const ProductDevice& device, const Matrix& w);

// Chooses the group size of a step. `each`: upper bound on an expert's choices. It is the number of rows, unless a row may choose an expert
// more than once (adjugates). If an expert's choices fit into one group, they share one, so that a step reads the expert once. But with
// wide groups, the size follows the mean: later groups find the expert's matrix in L2, and blocks multiply empty places, too. `least`: from
// least_group().
struct Groups {
  int size, most;
  Groups(int choices, int experts, int each, int least) {
    const int mean = choices / experts;
    if (each <= 32) size = each <= least ? least : each <= 16 ? 16 : 32;
    else if (least == MIN_GROUP) size = 64;
    else size = mean <= 16 ? 32 : mean < 192 ? 64 : MAX_GROUP;
    most = most_groups(choices, experts, size);
  }
};

enum class ExpertKernel : int { FEW, ROWS, BATCH };
constexpr int EXPERT_KERNELS = 3;
const KernelRow<ExpertKernel>& expert_row(ExpertKernel kernel);

// The kernel of a product of groups: ROWS or BATCH.
ExpertKernel choose_groups(const ProductDevice& device, const Matrix& w, int group, int num_groups);
// Consuming warpgroups of a block of rows.cuh for groups of 8 `nt` choices.
PEN_ANYWHERE constexpr int expert_warpgroups(int nt) { return nt > 8 ? 3 : 4; }

// Heads that have a matrix each: one product of the whole stack, or groups of `group` rows of one head.
struct StackPlan {
  bool whole;
  int group;
};
// `w`: the matrix of one head. `rows`: those of each head.
StackPlan choose_stack(const ProductDevice& device, const Matrix& w, int rows, int heads);

// A layer of few rows (decode.h).
constexpr int DECODE_ROWS = 8;
constexpr int DECODE_CHOICES = 128;
constexpr int DECODE_EXPERTS = 512;
constexpr int DECODE_THREADS = SLICES * 32;
constexpr int MAX_UP_COLUMNS = 48;          // most columns of products whose sums the first kernel adds up together
constexpr int UP_EACH = 3, DOWN_EACH = 2;   // blocks per multiprocessor
constexpr size_t LISTS_BYTES = 2368;        // shared memory of the lists of a step's experts

struct ExpertShape {
  Matrix gate_up, down;  // of one expert
  int num_rows = 0, num_experts = 0, used = 0;
  bool shared = false;  // a shared expert of the same shape
  bool adjugates = false;
};

// A kernel's shared memory: partial sums for `columns` columns of products, and each warp's columns of rows of x.
struct ExpertPlan {
  int columns;
  int x_at, x_rows, x_stride;  // the stride is in bytes
  size_t bytes;
};
struct FewExpertsPlan {
  int up_blocks, down_blocks;
  ExpertPlan up, down;
};
constexpr size_t FEW_STATIC = round_up(LISTS_BYTES + MAX_UP_COLUMNS * 8, 128);  // shared memory besides a plan's
FewExpertsPlan plan_few(const DeviceShape& device, const ExpertShape& shape);
// Whether the kernels for few rows can compute the layer.
bool can_few(const DeviceShape& device, const ExpertShape& shape);
// The kernel of a whole layer: FEW if it is faster, otherwise that of its first product.
ExpertKernel choose_experts(const ProductDevice& device, const ExpertShape& shape);

}  // namespace pen
