// Launches experts on warpgroup products for groups of 16 and 32 choices.
#include <algorithm>

#include "rows.cuh"

namespace pen {

template void run_expert_rows<2>(const Launch&, const ExpertLinear&, int);
template void run_expert_rows<4>(const Launch&, const ExpertLinear&, int);

void expert_linear_rows(const Launch& launch, const ExpertLinear& args, int num_groups) {
  // Multiplies one matrix after the other.
  for (int i = 0; i < args.num_segments; i++) {
    ExpertLinear one = args;
    one.w[0] = args.w[i], one.out_offset[0] = args.out_offset[i], one.num_segments = 1;
    switch (args.group) {
      case 16: run_expert_rows<2>(launch, one, num_groups); break;
      case 32: run_expert_rows<4>(launch, one, num_groups); break;
      case 64: run_expert_rows<8>(launch, one, num_groups); break;
      default: run_expert_rows<16>(launch, one, num_groups);
    }
  }
}

}  // namespace pen
