// Feed-forward layers of which each row computes with a few experts (Shazeer et al. 2017): routing, grouping, products, sums.
//
// The numeric definition:
//   routing    A row's experts are those with the highest scores, in descending order; of equal scores the lower number comes first.
//   weights    exp(score − highest) over the sum of that of all experts (lane l of a warp adds experts l, l + 32 …, then the lanes add
//              up by a tree); with `normalise`, over that of the row's experts, in their order.
//   share      The shared expert's weight: 1 / (1 + exp(−h · shared_router)), the product by lanes and their tree.
//   products   An expert's output is that of a linear layer (linear.h), whose bits do not depend on the rows beside it.
//   sums       A row adds its experts in their order, then the shared one; each product is rounded.
// So nothing depends on how rows are grouped.
//
// A *choice* is a row's use of one expert: choice c is use number c % used of row c / used. Choices of the same expert form groups of
// as many as a block multiplies at once; a group may be short.
#pragma once

#include "../device/step.h"
#include "../linear/linear.h"

namespace pen {

constexpr int MAX_EXPERTS = 4096;  // two counters each must fit into shared memory

struct Routing {
  const float* scores;           // [num_rows, num_experts]
  const uint32_t* slot_mapping;  // [num_rows] NO_SLOT: padding, which chooses nothing
  const __half* h;               // [num_rows, ldh] the layer's input
  const float* shared_router;    // [hidden] or null
  int num_rows, num_experts, used, ldh, hidden;
  bool normalise;
  int32_t* chosen;  // [num_rows, used] out: experts, or -1
  float* weights;   // [num_rows, used] out
  float* share;     // [num_rows] out: the shared expert's weight
};

void route(const Launch& launch, const Routing& args);

// The most groups that so many choices can make.
__host__ __device__ constexpr int most_groups(int choices, int experts, int group) {
  const int padded = int((int64_t(choices) + int64_t(experts) * (group - 1)) / group);
  return choices < padded ? choices : padded;
}

// How the choices of a step are grouped: many choices make large groups. The size does not change a bit.
struct Groups {
  int size, most;
  Groups(int choices, int experts) {
    const int each = choices / experts;
    size = each <= 8 ? 8 : each <= 32 ? 32 : 64;
    most = most_groups(choices, experts, size);
  }
};

struct Grouping {
  const int32_t* chosen;  // [num_choices]
  int num_choices, num_experts;
  int group, max_groups;  // of Groups: size, most
  int32_t* expert_of;  // [max_groups] out: a group's expert, or -1
  int32_t* order;      // [max_groups, group] out: choices, or -1
};

void group_choices(const Launch& launch, const Grouping& args);

// Products of groups with their experts' matrices.
struct ExpertLinear {
  // One expert's matrices that read the same x; `data` is that of a stack of them.
  Matrix w[2];
  int out_offset[2];
  int num_segments;
  const int32_t* expert_of;  // [groups]
  const int32_t* order;      // [groups, 8 NT]
  const __half* x;           // [rows, ldx], columns past the matrix's are zero up to a multiple of 64
  int ldx;
  int share;  // choice c reads row c / share of x
  float* out;      // [choices, ldo]
  __half* out16;   // [choices, ldo]
  int ldo;
  Epilogue epilogue;  // STORE, SILU_MUL or GELU_MUL
};
// `group`: 8, 32 or 64 choices.
void expert_linear(const Launch& launch, const ExpertLinear& args, int group, int num_groups);

struct Combine {
  const float* outputs;  // [num_rows, used, hidden] of the experts
  const float* weights;  // [num_rows, used]
  const float* shared;   // [num_rows, hidden] of the shared expert, or null
  const float* share;    // [num_rows]
  const uint32_t* slot_mapping;  // [num_rows]
  float* out;            // [num_rows, hidden]
  int hidden, used;
  bool add;  // to what `out` holds
};
void combine(const Launch& launch, const Combine& args, int num_rows);

}  // namespace pen
