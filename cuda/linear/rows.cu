// Linear layers on warpgroup products: up to 16 tokens.
#include "rows.cuh"

namespace pen {

template void run_rows<1>(const Launch&, const Linear&, const RowsPlan&);
template void run_rows<2>(const Launch&, const Linear&, const RowsPlan&);

void linear_rows(const Launch& launch, const Linear& args, const RowsPlan& plan) {
  switch (column_tiles(args.num_tokens)) {
    case 1: return run_rows<1>(launch, args, plan);
    case 2: return run_rows<2>(launch, args, plan);
    case 4: return run_rows<4>(launch, args, plan);
    default: return run_rows<8>(launch, args, plan);
  }
}

}  // namespace pen
