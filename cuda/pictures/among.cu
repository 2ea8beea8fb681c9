// Launches attention among rows of a picture encoder's step.
#include "among.cuh"

namespace pen {
namespace {

template <int D, int M, int WARPS>
void run(const Launch& launch, const Among& args, const AmongTiles& tiles, const AmongPlan& plan) {
  const auto kernel = among_kernel<D, M, WARPS>;
  set_up(launch.device, kernel);
  launch(kernel, dim3(tiles.count, args.num_heads), dim3(WARPS * WARP), size_t(plan.bytes), args, tiles.tiles);
}

template <int D>
void with_dim(const Launch& launch, const Among& args, const AmongTiles& tiles, const AmongPlan& plan) {
  if constexpr (D <= 96) {
    if (plan.row_tiles == 2) return run<D, 2, 4>(launch, args, tiles, plan);
  } else {
    if (plan.warps == 8) return run<D, 1, 8>(launch, args, tiles, plan);
  }
  run<D, 1, 4>(launch, args, tiles, plan);
}

}  // namespace

void among(const Launch& launch, const Among& args, const AmongTiles& tiles) {
  if (tiles.count == 0) return;
  const AmongPlan plan = choose_among(args.dim > args.value_dim ? args.dim : args.value_dim, tiles.block_rows);
  switch (plan.dim) {
    case 32: return with_dim<32>(launch, args, tiles, plan);
    case 64: return with_dim<64>(launch, args, tiles, plan);
    case 80: return with_dim<80>(launch, args, tiles, plan);
    case 96: return with_dim<96>(launch, args, tiles, plan);
    case 128: return with_dim<128>(launch, args, tiles, plan);
    default: throw CudaError(cudaErrorInvalidValue, "attention among rows: head size");
  }
}

}  // namespace pen
