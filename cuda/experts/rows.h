// Launches rows.cuh.
#pragma once

#include "experts.h"

namespace pen {

void expert_linear_rows(const Launch& launch, const ExpertLinear& args, int num_groups);

template <int NT>
void run_expert_rows(const Launch& launch, const ExpertLinear& args, int num_groups);
// In separate files, because they take long to compile.
extern template void run_expert_rows<2>(const Launch&, const ExpertLinear&, int);
extern template void run_expert_rows<4>(const Launch&, const ExpertLinear&, int);
extern template void run_expert_rows<8>(const Launch&, const ExpertLinear&, int);
extern template void run_expert_rows<16>(const Launch&, const ExpertLinear&, int);

}  // namespace pen
