// General attention: chooses between all kernels. Plain C++.
#include "general_choose.h"

#include <algorithm>

namespace pen {

namespace {

constexpr KernelRow<GeneralKernel> TABLE[GENERAL_KERNELS] = {
    {GeneralKernel::CLUSTER, "latent_cluster.cuh", "sm_90a: latent keys, and few rows: up to three waves of clusters of 16 rows, one of 32",
     "one block per KV split would leave most multiprocessors idle"},
    {GeneralKernel::LATENT, "latent.cuh", "sm_90a: latent keys of 576 elements, with more rows", "warpgroup products that read keys once"},
    {GeneralKernel::LONG, "latent.cuh by long heads", "sm_90a: heads of 512, unless both rows and KV splits are few",
     "warpgroup products, for rows of O that do not fit into one warpgroup's registers"},
    {GeneralKernel::ANY, "general.cuh", "everything else", "any size of keys and values, window and bias, on any device"},
};

constexpr size_t MAX_WORKSPACE = 256u << 20;
// The most partial results of a row if they are per tile. Measured on an H100: merging more takes longer than it saves.
constexpr int MOST_TILES = 256;

int padded_values(int value_dim) { return ceil_div(value_dim, 4) * 4; }
size_t partial_bytes(int rows, int num_heads, int value_dim, int parts) {
  return static_cast<size_t>(rows) * num_heads * parts * (padded_values(value_dim) + 2) * FLOAT_BYTES;
}
bool holds_partials(const GeneralShape& shape, const GeneralPlan& plan) {
  return partial_bytes(plan.partial_rows, shape.num_heads, shape.value_dim, plan.max_parts) <= shape.workspace_bytes;
}

// The most parts of `keys` keys that one row can see.
int most_parts(int keys, const GeneralShape& shape) {
  const int all = ceil_div(std::max(shape.max_context, 1), keys);
  if (shape.window == 0 || shape.has_runs || (shape.bidirectional && shape.window_kind != Window::SYMMETRIC)) return all;
  const long long seen = shape.window_kind == Window::SYMMETRIC ? shape.window / 2 * 2ll + 1 : shape.window;
  return static_cast<int>(std::min<long long>(all, (seen - 1 + keys - 1) / keys + 1));
}

// Sizes the ring: whole tiles if two or more fit, otherwise smaller parts of tiles. Values can be read from the tiles of the keys only if
// the tiles are whole.
void plan_ring(GeneralPlan& plan, const GeneralShape& shape, int room) {
  const int values = std::min(shape.value_dim, GENERAL_VALUES), keys = ceil_div(shape.head_dim, PIECE);
  const bool values_in_keys = shape.one_cache && shape.k_dim == shape.v_dim && shape.value_dim <= shape.head_dim;
  const auto buffers = [&](int width) { return std::min(GENERAL_BUFFERS, room / (width * PIECE_BYTES)); };
  plan.shared_values = values_in_keys && buffers(keys) >= 1;
  plan.width = plan.shared_values ? keys : std::max(keys, ceil_div(values, PIECE));
  while (!plan.shared_values && plan.width > 1 && buffers(plan.width) < 2) plan.width = (plan.width + 1) / 2;
  plan.buffers = buffers(plan.width);
}

// Shared memory of a block of `teams` teams, apart from the ring [bytes].
int fixed_bytes(int teams, int head_dim) { return teams * (ceil_div(head_dim, PIECE) * QUERY_PIECE_BYTES + EXCHANGE_BYTES); }

// Decides how many blocks share a context, and whether they do so tile by tile, which takes more memory. `blocks`: the number without
// sharing. `wanted`: the number that fills the device.
void share_context(GeneralPlan& plan, const GeneralShape& shape, long long blocks, long long wanted) {
  constexpr int FEW_TILES = 4;  // tiles per block; measured on an H100: with more, whole KV splits are as fast
  const int tiles = most_parts(KEYS, shape), kv_splits = most_parts(KV_SPLIT, shape);
  // Whether the workspace holds such parts. If it does not, no context is shared.
  const auto split = [&](bool by_tile, int parts, int splits) {
    plan.by_tile = by_tile, plan.max_parts = parts, plan.splits = splits;
    if (!holds_partials(shape, plan)) plan.splits = 1;
    return plan.splits > 1;
  };
  plan.by_tile = false, plan.max_parts = kv_splits, plan.splits = 1;
  if (2 * blocks > wanted) return;
  const int share = static_cast<int>((tiles * blocks + wanted - 1) / wanted);
  if (share <= FEW_TILES && tiles <= MOST_TILES && split(true, tiles, ceil_div(tiles, share))) return;
  split(false, kv_splits, static_cast<int>(std::min<long long>(kv_splits, (wanted + blocks - 1) / blocks)));
}

GeneralChoice plan_any(const DeviceShape& device, const GeneralShape& shape) {
  GeneralChoice choice{GeneralKernel::ANY};
  GeneralPlan& plan = choice.plan;
  const bool many = shape.max_query * shape.group() > ROWS;
  // A small shared memory cannot hold the queries of thirty-two long rows.
  choice.row_tiles = many && fixed_bytes(2, shape.head_dim) + 2 * PIECE_BYTES <= device.shared_block ? 2 : 1;
  const int pieces = ceil_div(std::min(shape.value_dim, GENERAL_VALUES), PIECE);
  choice.value_pieces = pieces <= 1 ? 1 : pieces <= 2 ? 2 : pieces <= 4 ? 4 : 8;
  plan.rows = ROWS * choice.row_tiles, plan.row_blocks = ceil_div(shape.max_query * shape.group(), plan.rows);
  plan.slices = ceil_div(shape.value_dim, GENERAL_VALUES), plan.splits = 1;
  plan.wide_query = shape.wide_query, plan.even_out = shape.even_out;
  const int fixed = fixed_bytes(choice.row_tiles, shape.head_dim);
  // Two blocks per multiprocessor hide each other's waits, if whole tiles still fit.
  const int half = device.shared_multiprocessor / 2 - device.shared_reserved, all = device.shared_block;
  const int widest = std::max(ceil_div(shape.head_dim, PIECE), pieces);
  const bool two = half - fixed >= 2 * widest * PIECE_BYTES;
  plan_ring(plan, shape, (two ? std::min(half, all) : all) - fixed);
  plan.by_sequence = shape.max_query == 1, plan.partial_rows = plan.by_sequence ? shape.num_seqs : shape.num_tokens;
  const long long blocks = static_cast<long long>(plan.row_blocks) * shape.num_kv_heads * plan.slices * shape.num_seqs;
  share_context(plan, shape, blocks, device.multiprocessors * (two ? 2ll : 1ll));
  choice.grid[0] = plan.row_blocks * plan.splits, choice.grid[1] = shape.num_kv_heads * plan.slices, choice.grid[2] = shape.num_seqs;
  choice.threads = GENERAL_TEAM * WARP * choice.row_tiles;
  choice.bytes = static_cast<size_t>(fixed) + static_cast<size_t>(plan.buffers) * plan.width * PIECE_BYTES;
  return choice;
}

bool is_latent(const GeneralShape& p) {
  const bool shape = p.head_dim == LATENT_DIM && p.value_dim == LATENT_VALUE && p.k_dim == LATENT_DIM && p.v_dim == LATENT_DIM;
  return shape && p.one_cache && p.num_kv_heads == 1 && p.packed_query;
}
bool is_long(const GeneralShape& p) {
  const bool shape = p.head_dim == LATENT_VALUE && p.value_dim == LATENT_VALUE && p.k_dim == LATENT_VALUE && p.v_dim == LATENT_VALUE;
  return shape && p.wide_query;
}
bool is_plain(const GeneralShape& p) { return p.even_out && p.window == 0 && !p.bidirectional && !p.has_runs && !p.biased; }

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

GeneralPlan latent_plan(const GeneralShape& shape, int rows) {
  GeneralPlan plan{};
  plan.slices = 1, plan.max_parts = ceil_div(std::max(shape.max_context, 1), KV_SPLIT);
  plan.by_sequence = shape.max_query == 1;
  plan.partial_rows = plan.by_sequence ? shape.num_seqs : shape.num_tokens;
  plan.rows = rows, plan.row_blocks = ceil_div(shape.max_query * shape.group(), rows);
  return plan;
}

// Latent keys and few rows, where one block per KV split would leave most multiprocessors idle. Returns false if the step is of another
// kind.
template <int ROW_TILES>
bool plan_clusters(GeneralChoice& choice, const GeneralDevice& device, const GeneralShape& shape) {
  using Shared = LatentClusterShared<ROW_TILES>;
  choice = {GeneralKernel::CLUSTER};
  GeneralPlan& plan = choice.plan;
  plan = latent_plan(shape, Shared::ALL_ROWS), plan.splits = plan.max_parts;
  const long long clusters = static_cast<long long>(plan.row_blocks) * plan.max_parts * shape.num_seqs;
  // Measured on an H100: with sixteen rows, up to three waves of clusters take no more time than latent.cuh. With more rows, only one wave
  // does.
  constexpr int WAVES = ROW_TILES == 1 ? 3 : 1;
  const bool fits = Shared::bytes <= static_cast<size_t>(device.shared_block);
  if (clusters * KV_SPLIT_TILES > (WAVES + 1) * device.multiprocessors || clusters > WAVES * device.clusters || !fits) return false;
  if (plan.splits > 1 && !holds_partials(shape, plan)) return false;
  choice.row_tiles = ROW_TILES;
  choice.grid[0] = KV_SPLIT_TILES * plan.max_parts, choice.grid[1] = plan.row_blocks, choice.grid[2] = shape.num_seqs;
  choice.threads = LATENT_CLUSTER_THREADS, choice.bytes = Shared::bytes;
  return true;
}

template <class Shape>
bool plan_units(GeneralChoice& choice, const DeviceShape& device, const GeneralShape& shape) {
  using Shared = LatentShared<Shape>;
  choice = {Shape::SEPARATE ? GeneralKernel::LONG : GeneralKernel::LATENT};
  GeneralPlan& plan = choice.plan;
  plan = latent_plan(shape, LATENT_ROWS), plan.splits = 1;
  const int units = plan.row_blocks * shape.num_seqs * shape.num_kv_heads;
  if (holds_partials(shape, plan)) plan.splits = best_splits(device.multiprocessors, units, plan.row_blocks, plan.max_parts);
  if (plan.splits == 1 && plan.max_parts > 1 && state_workspace(device) > shape.workspace_bytes) return false;
  choice.grid[0] = std::min(units * plan.splits, device.multiprocessors);
  choice.threads = LATENT_THREADS, choice.bytes = Shared::bytes;
  return choice.bytes <= static_cast<size_t>(device.shared_block);
}

// Warpgroup products. Returns false if shape or step do not fit.
bool plan_latent(GeneralChoice& choice, const GeneralDevice& device, const GeneralShape& shape) {
  const bool latent = is_latent(shape), has_rows = shape.max_query > 1;
  if ((!latent && !is_long(shape)) || !is_plain(shape) || !device.warpgroups || !shape.boxed) return false;
  if (has_rows && shape.num_seqs > LATENT_SEQUENCES) return false;
  const int rows = shape.max_query * shape.group();
  if (!latent) {
    // Fewer rows and KV splits are faster if blocks share contexts tile by tile.
    const int parts = ceil_div(std::max(shape.max_context, 1), KV_SPLIT);
    const long long kv_splits = static_cast<long long>(shape.num_seqs) * shape.num_kv_heads * parts;
    if (rows < LATENT_ROWS && 2 * kv_splits <= device.multiprocessors) return false;
    return plan_units<LongHeads>(choice, device, shape);
  }
  if (rows <= ROWS ? plan_clusters<1>(choice, device, shape) : plan_clusters<2>(choice, device, shape)) return true;
  return plan_units<LatentKeys>(choice, device, shape);
}

}  // namespace

const KernelRow<GeneralKernel>& general_row(GeneralKernel kernel) { return row_of(TABLE, kernel); }

GeneralChoice choose_general(const GeneralDevice& device, const GeneralShape& shape) {
  GeneralChoice choice{};
  if (!plan_latent(choice, device, shape)) choice = plan_any(device, shape);
  if (choice.plan.splits == 1) return choice;
  // Measured on an H100: with many blocks, registers for more reads in flight cost more than the reads' latencies.
  const long long blocks = static_cast<long long>(shape.max_query) * shape.num_heads * shape.num_seqs;
  choice.merge_batch = blocks <= 4ll * device.multiprocessors ? 16 : 8;
  return choice;
}

size_t attention_general_workspace(const DeviceShape& device, int num_tokens, int num_heads, int num_kv_heads, int value_dim,
                                   int max_context) {
  // Only steps with few blocks are split. Steps with more blocks, on other kernels, need less workspace.
  const int keys = std::max(max_context, 1), tiles = ceil_div(keys, KEYS), group = std::max(num_heads / std::max(num_kv_heads, 1), 1);
  const int most = ceil_div(device.multiprocessors, std::max(num_kv_heads, 1)) * 2 * ROWS / group + 1;
  if (tiles <= 1) return 0;
  const int parts = std::max(std::min(tiles, MOST_TILES), ceil_div(keys, KV_SPLIT));
  const size_t partials = std::min(partial_bytes(std::min(num_tokens, most), num_heads, value_dim, parts), MAX_WORKSPACE);
  return value_dim == LATENT_VALUE ? std::max(partials, state_workspace(device)) : partials;
}

}  // namespace pen
