// Launches the changes of products.
#include "adapters.cuh"

namespace pen {

void shrink(const Launch& launch, const Change& c) {
  const dim3 grid(ceil_div(c.num_rows, CHANGE_ROWS), c.max_rank, c.rows.rounds * c.num_matrices);
  launch(shrink_kernel, grid, dim3(CHANGE_THREADS), 0, c);
}

void expand(const Launch& launch, const Change& c) {
  int widest = 0;
  for (int i = 0; i < c.num_matrices; i++) widest = max(widest, c.num_outs[i]);
  const dim3 grid(ceil_div(widest, CHANGE_THREADS), ceil_div(c.num_rows, CHANGE_ROWS), c.num_matrices);
  launch(expand_kernel, grid, dim3(CHANGE_THREADS), 0, c);
}

void expand_gated(const Launch& launch, const GatedChange& c) {
  const dim3 grid(ceil_div(c.ffn, CHANGE_THREADS), ceil_div(c.change.num_rows, CHANGE_ROWS));
  launch(expand_gated_kernel, grid, dim3(CHANGE_THREADS), 0, c);
}

}  // namespace pen
