// Linear layers on warpgroup products: 17 to 64 tokens.
#include "rows.cuh"

namespace pen {

template void run_rows<4>(const Launch&, const Linear&, const RowsPlan&);
template void run_rows<8>(const Launch&, const Linear&, const RowsPlan&);

}  // namespace pen
