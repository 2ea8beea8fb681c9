// Launches general attention by warpgroup products.
#include "latent.cuh"
#include "latent_cluster.cuh"

namespace pen {
namespace {

bool map_queries(CUtensorMap& map, const GeneralAttention& args, const StepView& step, int box_rows) {
  return map_boxes(map, args.q, static_cast<size_t>(step.num_tokens) * args.num_heads, LATENT_DIM, LATENT_DIM, box_rows);
}

template <int ROW_TILES>
int clusters_at_once(const Device& device) {
  const auto kernel = attention_latent_cluster_kernel<ROW_TILES>;
  set_up(device, kernel);
  return device.known(kernel, [&] {
    int clusters = 0;
    const size_t shared = LatentClusterShared<ROW_TILES>::bytes;
    const cudaError_t status = active_clusters(clusters, kernel, KV_SPLIT_TILES, KV_SPLIT_TILES, LATENT_CLUSTER_THREADS, shared);
    return status == cudaSuccess ? clusters : (cudaGetLastError(), 0);
  });
}

}  // namespace

bool has_latent(const Device& device) { return device.has_sm90a(attention_latent_kernel<LatentKeys>); }

int latent_clusters(const Device& device, int row_tiles) {
  return row_tiles == 1 ? clusters_at_once<1>(device) : clusters_at_once<2>(device);
}

bool launch_latent(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralChoice& choice) {
  const bool separate = choice.kernel == GeneralKernel::LONG;
  CUtensorMap queries{}, keys{}, values{};
  if (!map_pages(keys, args.kv.k, args.kv, args.head_dim)) return false;
  if (separate ? !map_pages(values, args.kv.v, args.kv, args.value_dim) : !map_queries(queries, args, step, choice.plan.rows)) return false;
  Launch clustered = launch;
  const auto start = [&](auto kernel, const auto&... maps) {
    set_up(launch.device, kernel);
    clustered(kernel, dim3(choice.grid[0], choice.grid[1], choice.grid[2]), choice.threads, choice.bytes, args, step, choice.plan, queries,
              keys, maps...);
  };
  if (separate) return start(attention_latent_kernel<LongHeads>, values), true;
  if (choice.kernel == GeneralKernel::LATENT) return start(attention_latent_kernel<LatentKeys>, keys), true;
  clustered.cluster = KV_SPLIT_TILES;
  choice.row_tiles == 1 ? start(attention_latent_cluster_kernel<1>) : start(attention_latent_cluster_kernel<2>);
  return true;
}

}  // namespace pen
