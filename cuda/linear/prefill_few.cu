// Linear layers: hopper.cuh for blocks of 64 tokens.
#include "hopper.cuh"

namespace pen {

template bool run_hopper<64>(const Launch&, const Linear&, const HopperPlan&);

}  // namespace pen
