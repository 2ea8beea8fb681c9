// Groups that depend only on the number of rows: in latent attention each head has its own matrix, which all rows use.
#pragma once

#include "../device/launch.h"

namespace pen {

// Choice `row · heads + head` for each row and head, in groups of `group` rows of one head. The arrays are those of Grouping (experts.h).
struct HeadGroups {
  int num_rows, heads, group;
  int32_t* expert_of;   // [count()] out: heads
  int32_t* order;       // [count(), group] out: choices, or -1
  int32_t* num_groups;  // out: count()
  __host__ __device__ int count() const { return (num_rows + group - 1) / group * heads; }
};
void group_heads(const Launch& launch, const HeadGroups& args);

}  // namespace pen
