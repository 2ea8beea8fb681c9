// Groups that depend only on the number of rows: the kernel and its launch.
#include "stack.h"

#include "../device/kernel.cuh"

namespace pen {

namespace {

constexpr int STACK_THREADS = 256;

// Grid: (ceil(places / STACK_THREADS)), one thread per place of a group.
__global__ void __launch_bounds__(STACK_THREADS) group_heads_kernel(const __grid_constant__ HeadGroups p) {
  let_next_start();
  const int place = blockIdx.x * STACK_THREADS + threadIdx.x, group = place / p.group, head = group % p.heads;
  const int row = group / p.heads * p.group + place % p.group;
  wait_for_previous();
  if (group >= p.count()) return;
  p.order[place] = row < p.num_rows ? row * p.heads + head : -1;
  if (place % p.group == 0) p.expert_of[group] = head;
  if (place == 0) *p.num_groups = p.count();
}

}  // namespace

void group_heads(const Launch& launch, const HeadGroups& args) {
  launch(group_heads_kernel, dim3(ceil_div(args.count() * args.group, STACK_THREADS)), dim3(STACK_THREADS), 0, args);
}

}  // namespace pen
