// Launches the kernel of exchange.h.
#include "exchange.cuh"

namespace pen {

void exchange(const Launch& launch, const Exchange& args, int rows) {
  launch(exchange_kernel, dim3(ceil_div(args.width, EXCHANGE_THREADS), rows), dim3(EXCHANGE_THREADS), 0, args);
}

}  // namespace pen
