// Launches norms of parts of rows.
#include "group.cuh"

namespace pen {

void group_norm(const Launch& launch, const GroupNorm& args, int rows) {
  constexpr int EACH = GROUP_NORM_THREADS / WARP;
  if (args.dim <= 256) {
    launch(group_norm_kernel<WARP>, dim3(ceil_div(args.heads, EACH), rows), dim3(GROUP_NORM_THREADS), 0, args);
  } else {
    launch(group_norm_kernel<GROUP_NORM_THREADS>, dim3(args.heads, rows), dim3(GROUP_NORM_THREADS), 0, args);
  }
}

}  // namespace pen
