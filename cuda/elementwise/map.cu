// Launches elementwise ops.
#include "map.cuh"

namespace pen {

namespace {

dim3 grid(int cols, int rows) { return dim3(ceil_div(cols, MAP_THREADS), rows); }

}  // namespace

void map(const Launch& launch, const Map& args, int rows) {
  const bool fours = args.dim % 4 == 0 && in_fours(args.in) && in_fours(args.out) && (!args.has_by || in_fours(args.by)) &&
                     in_fours(args.bias, sizeof(float));
  const int cols = args.heads * args.dim;
  if (fours) return launch(map_kernel<4>, grid(cols / 4, rows), dim3(MAP_THREADS), 0, args);
  launch(map_kernel<1>, grid(cols, rows), dim3(MAP_THREADS), 0, args);
}

void keep_largest(const Launch& launch, float* x, size_t ld, int dim, float cutoff, int rows) {
  launch(keep_largest_kernel, dim3(rows), dim3(MAP_THREADS), 0, x, ld, dim, cutoff);
}

void predict(const Launch& launch, float* streams, const float* router, const float* coefficients, int hidden, int rows) {
  launch(predict_kernel, grid(hidden, rows), dim3(MAP_THREADS), 0, streams, router, coefficients, hidden);
}

void correct(const Launch& launch, float* streams, const float* x, const float* router, const float* coefficients, int hidden, int rows) {
  launch(correct_kernel, grid(hidden, rows), dim3(MAP_THREADS), 0, streams, x, router, coefficients, hidden);
}

void match_length(const Launch& launch, const Operand& in, const Operand& like, const Operand& out, int dim, bool add, int rows) {
  launch(match_kernel, dim3(rows), dim3(MAP_THREADS), 0, in, like, out, dim, add);
}

}  // namespace pen
