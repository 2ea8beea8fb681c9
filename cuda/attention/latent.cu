// Launches general attention by warpgroup products, and decides how a step is spread over blocks. None of these decisions changes a bit of
// the result.
#include <algorithm>

#include "latent.cuh"
#include "latent_cluster.cuh"

namespace pen {
namespace {

bool is_latent(const GeneralAttention& p) {
  const GeneralKv& kv = p.kv;
  const bool shape = p.head_dim == LATENT_DIM && p.value_dim == LATENT_VALUE && kv.k_dim == LATENT_DIM && kv.v_dim == LATENT_DIM;
  return shape && kv.k == kv.v && kv.num_kv_heads == 1 && p.ld_q == p.num_heads * LATENT_DIM;
}
bool is_long(const GeneralAttention& p) {
  const GeneralKv& kv = p.kv;
  const bool shape = p.head_dim == LATENT_VALUE && p.value_dim == LATENT_VALUE && kv.k_dim == LATENT_VALUE && kv.v_dim == LATENT_VALUE;
  return shape && p.ld_q % 8 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
}
bool is_plain(const GeneralAttention& p) {
  const bool even_out = p.ld_out % 2 == 0 && reinterpret_cast<uintptr_t>(p.out) % 4 == 0;
  return even_out && p.window == 0 && !p.bidirectional && p.soft_cap == 0.0f && p.alibi == 0.0f && p.sinks == nullptr;
}

// Chooses how many units share a context, given `units` units of rows, of which `at_once` run at the same time.
int best_splits(int at_once, int units, int row_blocks, int kv_splits) {
  int best = 1;
  double best_us = 0.0;
  for (int splits = 1; splits <= kv_splits; ++splits) {
    const int share = ceil_div(kv_splits, splits);
    if (ceil_div(kv_splits, share) != splits) continue;
    // Microseconds, measured on an H100: a KV split alone or at a unit's share of the bandwidth, whichever is longer, a unit's start, and
    // the merging kernel. Row blocks of a sequence read the same keys.
    const int all = units * splits, waves = ceil_div(all, at_once);
    const double split_us = std::max(17.0, 0.2 * std::min(all, at_once) / std::min(row_blocks, 4));
    const double us = waves * (share * split_us + 3.0) + (splits > 1 ? 4.0 : 0.0);
    if (splits == 1 || us < best_us) best = splits, best_us = us;
  }
  return best;
}

bool map_queries(CUtensorMap& map, const GeneralAttention& args, const StepView& step, int box_rows) {
  return map_boxes(map, args.q, static_cast<size_t>(step.num_tokens) * args.num_heads, LATENT_DIM, LATENT_DIM, box_rows);
}

// The number of latent_cluster.cuh's clusters that run at the same time.
template <class... Params>
int clusters_at_once(const Device& device, void (*kernel)(Params...), size_t shared) {
  return device.known(kernel, [&] {
    int clusters = 0;
    const cudaError_t status = active_clusters(clusters, kernel, KV_SPLIT_TILES, KV_SPLIT_TILES, LATENT_CLUSTER_THREADS, shared);
    return status == cudaSuccess ? clusters : (cudaGetLastError(), 0);
  });
}

// Steps with few rows, where one block per KV split would leave most multiprocessors idle. Returns false if the step is of another kind.
template <int ROW_TILES>
bool run_clusters(const Launch& launch, const GeneralAttention& args, const StepView& step, GeneralPlan plan, const CUtensorMap& keys) {
  using Shared = LatentClusterShared<ROW_TILES>;
  const Device& device = launch.device;
  plan.rows = Shared::ALL_ROWS, plan.row_blocks = ceil_div(step.max_query * args.num_heads, plan.rows), plan.splits = plan.max_parts;
  const long long clusters = static_cast<long long>(plan.row_blocks) * plan.max_parts * step.num_seqs;
  // Measured on an H100: with sixteen rows, up to three waves of clusters take no more time than latent.cuh. With more rows, only one wave
  // does.
  constexpr int WAVES = ROW_TILES == 1 ? 3 : 1;
  const bool fits = Shared::bytes <= static_cast<size_t>(device.shared_block);
  if (clusters * KV_SPLIT_TILES > (WAVES + 1) * device.multiprocessors || !fits) return false;
  if (plan.splits > 1 && general_partial_bytes(plan, args) > args.workspace_bytes) return false;
  const auto kernel = attention_latent_cluster_kernel<ROW_TILES>;
  set_up(device, kernel);
  CUtensorMap queries;
  if (clusters > WAVES * clusters_at_once(device, kernel, Shared::bytes) || !map_queries(queries, args, step, plan.rows)) return false;
  Launch clustered = launch;
  clustered.cluster = KV_SPLIT_TILES;
  clustered(kernel, dim3(KV_SPLIT_TILES * plan.max_parts, plan.row_blocks, step.num_seqs), LATENT_CLUSTER_THREADS, Shared::bytes, args,
            step, plan, queries, keys);
  if (plan.splits > 1) merge_general(launch, args, step, plan);
  return true;
}

template <class Shape>
bool run(const Launch& launch, const GeneralAttention& args, const StepView& step, GeneralPlan plan, const CUtensorMap& keys,
         const CUtensorMap& values) {
  using Shared = LatentShared<Shape>;
  const Device& device = launch.device;
  const int group = args.num_heads / args.kv.num_kv_heads;
  plan.rows = LATENT_ROWS, plan.row_blocks = ceil_div(step.max_query * group, plan.rows), plan.splits = 1;
  const int units = plan.row_blocks * step.num_seqs * args.kv.num_kv_heads;
  if (general_partial_bytes(plan, args) <= args.workspace_bytes) {
    plan.splits = best_splits(device.multiprocessors, units, plan.row_blocks, plan.max_parts);
  }
  if (plan.splits == 1 && plan.max_parts > 1 && state_workspace(device) > args.workspace_bytes) return false;
  CUtensorMap queries{};
  if (Shared::bytes > static_cast<size_t>(device.shared_block)) return false;
  if (!Shape::SEPARATE && !map_queries(queries, args, step, LATENT_ROWS)) return false;
  const auto kernel = attention_latent_kernel<Shape>;
  set_up(device, kernel);
  launch(kernel, std::min(units * plan.splits, device.multiprocessors), LATENT_THREADS, Shared::bytes, args, step, plan, queries, keys,
         values);
  if (plan.splits > 1) merge_general(launch, args, step, plan);
  return true;
}

}  // namespace

bool attention_latent(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  const Device& device = launch.device;
  const bool latent = is_latent(args);
  if ((!latent && !is_long(args)) || !is_plain(args) || !device.has_sm90a(attention_latent_kernel<LatentKeys>)) return false;
  GeneralPlan plan{};
  plan.slices = 1, plan.max_parts = ceil_div(std::max(step.max_context, 1), KV_SPLIT);
  plan.by_sequence = step.max_query == 1;
  if (!plan.by_sequence && step.num_seqs > LATENT_SEQUENCES) return false;
  plan.partial_rows = plan.by_sequence ? step.num_seqs : step.num_tokens;
  CUtensorMap keys, values;
  const int rows = step.max_query * (args.num_heads / args.kv.num_kv_heads);
  if (!latent) {
    // Fewer rows and KV splits are faster if blocks share contexts tile by tile.
    const long long kv_splits = static_cast<long long>(step.num_seqs) * args.kv.num_kv_heads * plan.max_parts;
    if (rows < LATENT_ROWS && 2 * kv_splits <= device.multiprocessors) return false;
    if (!map_pages(keys, args.kv.k, args.kv, args.head_dim) || !map_pages(values, args.kv.v, args.kv, args.value_dim)) return false;
    return run<LongHeads>(launch, args, step, plan, keys, values);
  }
  if (!map_pages(keys, args.kv.k, args.kv, args.head_dim)) return false;
  if (rows <= ROWS ? run_clusters<1>(launch, args, step, plan, keys) : run_clusters<2>(launch, args, step, plan, keys)) return true;
  return run<LatentKeys>(launch, args, step, plan, keys, keys);
}

}  // namespace pen
