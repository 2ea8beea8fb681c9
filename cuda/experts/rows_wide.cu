// Launches experts on warpgroup products for groups of 64 and 128 choices.
#include <algorithm>

#include "rows.cuh"

namespace pen {

template void run_expert_rows<8>(const Launch&, const ExpertLinear&, int);
template void run_expert_rows<16>(const Launch&, const ExpertLinear&, int);

}  // namespace pen
