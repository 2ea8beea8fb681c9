// Launches attention among rows of a picture encoder's step.
#include "among.cuh"
#include "among_wide.cuh"

namespace pen {
namespace {

template <int D, int M, int WARPS>
void run(const Launch& launch, const Among& args, const AmongTiles& tiles, const AmongPlan& plan) {
  const auto kernel = among_kernel<D, M, WARPS>;
  set_up(launch.device, kernel);
  launch(kernel, dim3(tiles.count, args.num_heads), dim3(WARPS * WARP), size_t(plan.bytes), args, tiles.tiles);
}

template <int D>
void run_wide(const Launch& launch, const Among& args, const AmongTiles& tiles, const AmongPlan& plan, int rows, int key_rows) {
  constexpr int REST = WideTile<D>::REST * 2;
  AmongMaps maps{};
  const auto map = [&](int which, const __half* data, int rows, int ld, int heads, int stride, int dim) {
    const auto boxes = [&](CUtensorMap& to, int bytes) {
      return map_heads(to, data, rows, ld, heads, stride, dim, AMONG_KEYS, bytes);
    };
    return boxes(maps.first[which], 128) && (REST == 0 || boxes(maps.rest[which], REST > 0 ? REST : 32));
  };
  const bool mapped = map(0, args.q, rows, args.ld_q, args.num_heads, args.stride, args.dim) &&
                      map(1, args.k, key_rows, args.ld_k, args.num_kv_heads, args.stride, args.dim) &&
                      map(2, args.v, key_rows, args.ld_v, args.num_kv_heads, args.value_stride, args.value_dim);
  if (!mapped || tiles.block_rows != AMONG_WIDE_ROWS) throw CudaError(cudaErrorInvalidValue, "attention among rows: boxes");
  set_up(launch.device, among_wide_kernel<D>);
  const dim3 grid(tiles.count, args.num_heads), threads((AMONG_WIDE_GROUPS + 1) * 4 * WARP);
  launch(among_wide_kernel<D>, grid, threads, size_t(plan.bytes), args, tiles.tiles, maps);
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

void among(const Launch& launch, const Among& args, const AmongTiles& tiles, int rows, int key_rows) {
  if (tiles.count == 0) return;
  const AmongPlan plan = choose_among(args.dim > args.value_dim ? args.dim : args.value_dim, tiles.block_rows);
  if (plan.wide) {
    switch (plan.dim) {
      case 64: return run_wide<64>(launch, args, tiles, plan, rows, key_rows);
      case 80: return run_wide<80>(launch, args, tiles, plan, rows, key_rows);
      case 96: return run_wide<96>(launch, args, tiles, plan, rows, key_rows);
      case 128: return run_wide<128>(launch, args, tiles, plan, rows, key_rows);
    }
  }
  switch (plan.dim) {
    case 32: return with_dim<32>(launch, args, tiles, plan);
    case 64: return with_dim<64>(launch, args, tiles, plan);
    case 80: return with_dim<80>(launch, args, tiles, plan);
    case 96: return with_dim<96>(launch, args, tiles, plan);
    case 128: return with_dim<128>(launch, args, tiles, plan);
    default: throw CudaError(cudaErrorInvalidValue, "attention among rows: head size");
  }
}

bool has_among_wide(const Device& device, int dim) {
  if (dim <= 64) return device.has_sm90a(among_wide_kernel<64>);
  if (dim <= 80) return device.has_sm90a(among_wide_kernel<80>);
  return device.has_sm90a(dim <= 96 ? among_wide_kernel<96> : among_wide_kernel<128>);
}

}  // namespace pen
