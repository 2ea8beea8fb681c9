// Attention: chooses between all kernels. Plain C++.
#include "choose.h"

#include <algorithm>

namespace pen {

namespace {

constexpr KernelRow<AttentionKernel> TABLE[ATTENTION_KERNELS] = {
    {AttentionKernel::CLUSTER, "cluster.cuh", "sm_90: up to 512 keys, or 1,024 of few sequences, and no more heads than multiprocessors",
     "one block per tile, so that a tile's copies start early and are spread over multiprocessors"},
    {AttentionKernel::PERSISTENT, "persistent.cuh", "sm_90: more heads than multiprocessors, and enough tiles to be worth a longer start",
     "a block starts once, and its copies run ahead from one sequence into the next"},
    {AttentionKernel::KV_SPLITS, "cluster.cuh by KV split", "sm_90: longer contexts, if two or three blocks per multiprocessor suffice",
     "one block per KV split would leave most multiprocessors idle"},
    {AttentionKernel::LONG, "long.cuh", "sm_90: all other contexts of more than 512 keys",
     "each reading warp has a ring of its own, and no warp waits for the whole block"},
    {AttentionKernel::TEAMS, "decode.cuh by four warps", "heads of 64, 128 and 256 where there are few blocks, or long contexts",
     "a tile's latency matters more than the number of warps"},
    {AttentionKernel::WARPS, "decode.cuh by one warp", "everything else of one row", "no warp waits for another one"},
    {AttentionKernel::WIDE, "prefill_hopper.cuh", "sm_90a: 128 rows and more of heads of up to 64, or of 97 to 128",
     "warpgroup products, with the softmax of the next tile beside them"},
    {AttentionKernel::BOXED, "prefill_boxed.cuh", "sm_90a: 128 rows and more of heads of 129 to 256",
     "a row of O and a tile's part of it do not fit into registers"},
    {AttentionKernel::TILES, "prefill.cuh", "everything else of several rows", "needs nothing but float16 tensor cores"},
};

// The most tiles that one row can see.
int most_tiles(int max_context, uint32_t window) {
  const int all = ceil_div(std::max(max_context, 1), KEYS);
  if (window == 0 || window >= static_cast<uint32_t>(max_context)) return all;
  return std::min(all, ceil_div(static_cast<int>(window) - 1, KEYS) + 1);
}
int most_tiles(const AttentionShape& shape) { return most_tiles(shape.max_context, shape.window); }

// The most KV splits that this many tiles touch.
int most_kv_splits(int tiles, bool window) {
  const int all = ceil_div(tiles, KV_SPLIT_TILES);
  return window ? std::max(all, ceil_div(tiles - 1, KV_SPLIT_TILES) + 1) : all;
}

size_t partial_bytes(int num_seqs, int num_heads, int head_dim, int kv_splits) {
  return static_cast<size_t>(num_seqs) * num_heads * kv_splits * (head_dim + 2) * FLOAT_BYTES;
}
// Whether the workspace holds the partial results of all KV splits.
bool holds_partials(const AttentionShape& shape, int kv_splits) {
  return partial_bytes(shape.num_seqs, shape.num_heads, shape.head_dim, kv_splits) <= shape.workspace_bytes;
}

// The number of blocks of a step if no sequence is split.
int unsplit_blocks(const AttentionShape& shape) { return shape.num_seqs * shape.num_kv_heads * ceil_div(shape.group(), ROWS); }

constexpr size_t MAX_WORKSPACE = 256u << 20;

// The most KV splits that a block takes of a long context. The bound keeps the block of a sequence longer than the others from running long
// after all others have ended.
constexpr int MOST_SHARED = 16;

// Chooses how many KV splits a block takes, if `blocks` blocks would take one whole sequence each.
int best_share(const DeviceShape& device, int blocks, int kv_splits, int head_dim) {
  // Microseconds: the time to read a KV split with a multiprocessor's share of the bandwidth, a block's start, and a merging kernel.
  const double split_us = 4.0 * KV_SPLIT * head_dim / 32e3, begin_us = 1.5, merge_us = 3.0;
  int best = kv_splits;
  double best_us = 0.0;
  for (int splits = 1; splits <= kv_splits; ++splits) {
    const int share = ceil_div(kv_splits, splits);
    if (ceil_div(kv_splits, share) != splits) continue;
    const long long waves = (static_cast<long long>(blocks) * splits + device.multiprocessors - 1) / device.multiprocessors;
    const double us = waves * (share * split_us + begin_us) + (splits > 1 ? merge_us : 0.0);
    if (splits == 1 || us < best_us || best > MOST_SHARED) best = share, best_us = us;
  }
  return best;
}

// Sets how many blocks share a context. `row_blocks`: blocks per K/V head.
void share_context(AttentionPlan& plan, const DeviceShape& device, const AttentionShape& shape, int row_blocks) {
  DecodePlan& decode = plan.decode;
  decode.share = decode.max_kv_splits = most_kv_splits(most_tiles(shape), shape.window != 0);
  if (holds_partials(shape, decode.max_kv_splits)) {
    const int blocks = shape.num_seqs * shape.num_kv_heads * row_blocks;
    decode.share = best_share(device, blocks, decode.max_kv_splits, shape.head_dim);
  }
  plan.grid[0] = ceil_div(decode.max_kv_splits, decode.share);
  plan.grid[1] = shape.num_kv_heads * row_blocks, plan.grid[2] = shape.num_seqs;
  plan.merges = plan.grid[0] > 1;
}

// Teams of TEAM warps, on any device.
template <int D, int TEAM>
AttentionPlan plan_teams(const DeviceShape& device, const AttentionShape& shape) {
  using Shared = DecodeShared<D>;
  AttentionPlan plan{TEAM > 1 ? AttentionKernel::TEAMS : AttentionKernel::WARPS};
  DecodePlan& decode = plan.decode;
  const int group = shape.group();
  decode.rows = std::min(group, ROWS);
  // If heads of 256 do not fit into the shared memory (64 KB on some devices), a block takes fewer rows.
  if (Shared::fixed(decode.rows) + Shared::per_team(1, decode.rows) > static_cast<size_t>(device.shared_block)) decode.rows = ROWS / 2;
  const int row_blocks = ceil_div(group, decode.rows), blocks = shape.num_seqs * shape.num_kv_heads * row_blocks;
  const size_t fixed = Shared::fixed(decode.rows), limit = device.shared_block, exchange = TEAM > 1 ? Shared::exchange : 0;
  const auto each = [&](int buffers) { return Shared::per_team(buffers, decode.rows) + exchange; };
  const auto fitting = [&](size_t shared, int buffers) { return shared < fixed ? 0 : static_cast<int>((shared - fixed) / each(buffers)); };
  decode.buffers = TEAM > 1 && fitting(limit, 4) >= 3 ? 4 : fitting(limit, 2) >= 1 ? 2 : 1;
  int teams = std::min({DECODE_TEAMS<D, TEAM>, fitting(limit, decode.buffers), most_tiles(shape)});
  // With many blocks, two per multiprocessor hide each other's ends.
  const size_t half = device.shared_multiprocessor / 2 - device.shared_reserved;
  if (TEAM == 1 && blocks >= 2 * device.multiprocessors && fitting(half, decode.buffers) >= 2) {
    teams = std::min(teams, fitting(half, decode.buffers));
  }
  share_context(plan, device, shape, row_blocks);
  plan.threads = WARP * TEAM * teams, plan.bytes = fixed + teams * each(decode.buffers);
  return plan;
}

// One warp per fresh head.
int cluster_warps(const DecodePlan& plan) { return std::clamp(plan.rows + 2, 2 * CLUSTER_TEAM, CLUSTER_WARPS); }

// Clusters of `blocks` blocks: one per sequence and K/V head, or as many as the plan has KV splits.
template <int D>
void set_clusters(AttentionPlan& plan, const AttentionShape& shape, int blocks) {
  const DecodePlan& decode = plan.decode;
  plan.cluster = blocks, plan.threads = WARP * cluster_warps(decode), plan.bytes = ClusterShared<D>::bytes(decode.rows, blocks);
  plan.grid[0] = std::max(decode.max_kv_splits, 1) * blocks;
  plan.grid[1] = shape.num_kv_heads * ceil_div(shape.group(), decode.rows), plan.grid[2] = shape.num_seqs;
}

// Short contexts of few sequences: one cluster per sequence and K/V head. Returns false if the step is of another kind.
template <int D>
bool plan_clusters(AttentionPlan& plan, const AttentionDevice& device, const AttentionShape& shape) {
  plan = {AttentionKernel::CLUSTER};
  plan.decode.rows = std::min(shape.group(), ROWS);
  // At least two blocks: a single block is not a cluster and cannot address its own shared memory as a cluster's blocks do.
  const int blocks = std::max(most_tiles(shape), 2), clusters = unsplit_blocks(shape);
  if (clusters > device.multiprocessors || (blocks > PORTABLE_TILES && clusters * blocks > 2 * device.multiprocessors)) return false;
  if (blocks > (device.wide_clusters ? CLUSTER_TILES : PORTABLE_TILES)) return false;
  set_clusters<D>(plan, shape, blocks);
  return plan.bytes <= static_cast<size_t>(device.shared_block);
}

// Longer contexts of few sequences, where one block per KV split would leave most multiprocessors idle: one cluster per KV split. Returns
// false if the step is of another kind.
template <int D>
bool plan_kv_splits(AttentionPlan& plan, const AttentionDevice& device, const AttentionShape& shape) {
  plan = {AttentionKernel::KV_SPLITS};
  DecodePlan& decode = plan.decode;
  decode.rows = std::min(shape.group(), ROWS), decode.share = 1;
  decode.max_kv_splits = most_kv_splits(most_tiles(shape), shape.window != 0);
  const int blocks = unsplit_blocks(shape) * decode.max_kv_splits * KV_SPLIT_TILES;
  // Measured on an H100: three blocks of eight warps per multiprocessor take less time than long.cuh, except for heads of 128.
  const int each = D == 128 || cluster_warps(decode) > 8 ? 2 : 3;
  if (most_tiles(shape) <= KV_SPLIT_TILES || blocks > each * device.multiprocessors) return false;
  if (!holds_partials(shape, decode.max_kv_splits)) return false;
  set_clusters<D>(plan, shape, KV_SPLIT_TILES);
  plan.merges = true;
  return plan.bytes <= static_cast<size_t>(device.shared_block);
}

// Long contexts. Returns false if the step is of another kind.
template <int D>
bool plan_long(AttentionPlan& plan, const AttentionDevice& device, const AttentionShape& shape) {
  using Shared = LongShared<D>;
  plan = {AttentionKernel::LONG};
  const int tiles = most_tiles(shape);
  if (tiles <= KV_SPLIT_TILES || !shape.boxed) return false;
  plan.decode.rows = std::min(shape.group(), ROWS);
  const size_t fixed = Shared::fixed(plan.decode.rows), each = Shared::per_reader(plan.decode.rows);
  const int readers = std::min({LONG_READERS<D>, tiles, static_cast<int>((device.shared_block - fixed) / each)});
  if (readers < 1) return false;
  share_context(plan, device, shape, ceil_div(shape.group(), plan.decode.rows));
  plan.threads = WARP * (readers + LONG_MERGERS), plan.bytes = fixed + readers * each;
  return true;
}

// Many sequences. Returns false if the step is of another kind.
template <int D>
bool plan_persistent(AttentionPlan& plan, const AttentionDevice& device, const AttentionShape& shape) {
  using Shared = PersistentShared<D>;
  plan = {AttentionKernel::PERSISTENT};
  const int items = unsplit_blocks(shape), tiles = most_tiles(shape), multiprocessors = device.multiprocessors;
  if (items <= multiprocessors || shape.num_seqs > LIST_SEQUENCES || !shape.boxed) return false;
  // Measured on an H200: with fewer tiles per multiprocessor, starting this kernel takes longer than the tiles.
  if (tiles <= KV_SPLIT_TILES && items * tiles <= (D == 64 ? 12 : 3) * multiprocessors) return false;
  DecodePlan& decode = plan.decode;
  decode.rows = std::min(shape.group(), ROWS);
  // With a padded head, reads run a little past the Q of its part, where an earlier part with more rows may have left a NaN.
  if (shape.head_dim != D && shape.group() % decode.rows != 0) return false;
  int readers = 0;
  for (int most = PERSISTENT_READERS<D>; most > PERSISTENT_READERS<D> / 2; --most) {
    const size_t fixed = Shared::fixed(shape.num_seqs) + most * Shared::per_reader(decode.rows), limit = device.shared_block;
    const int fitting = limit < fixed ? 0 : static_cast<int>((limit - fixed) / Shared::per_stage(decode.rows));
    const int stages = std::min(fitting, PERSISTENT_STAGES) / most * most;
    if (stages > decode.buffers) decode.buffers = stages, readers = most;
  }
  if (readers == 0) return false;
  decode.share = decode.max_kv_splits = most_kv_splits(tiles, shape.window != 0);
  // Splits sequences if a block's run of whole ones could take much longer than the others' runs.
  const int each = ceil_div(items * decode.max_kv_splits, multiprocessors);
  const bool cut = decode.max_kv_splits > MOST_SHARED || ceil_div(items, multiprocessors) * decode.max_kv_splits > each + each / 4 + 2;
  if (cut && holds_partials(shape, decode.max_kv_splits)) {
    decode.share = std::clamp(each / 2, 1, std::min(MOST_SHARED, decode.max_kv_splits));
  }
  // If a thread would finish many eighths of fresh heads one after the other, a separate kernel is faster.
  const int eighths = items * (decode.rows + 2) * shape.head_dim / 8, threads = (readers + LONG_MERGERS) * WARP;
  const bool within = shape.by_eighths && eighths <= PERSISTENT_TOGETHER<D> * threads * multiprocessors;
  plan.fresh_before = shape.fresh && !within;
  plan.grid[0] = multiprocessors, plan.threads = threads + PERSISTENT_COPIERS * WARP;
  plan.bytes = Shared::fixed(shape.num_seqs) + readers * Shared::per_reader(decode.rows) + decode.buffers * Shared::per_stage(decode.rows);
  plan.merges = decode.share < decode.max_kv_splits;
  return true;
}

template <int D>
AttentionPlan choose_decode(const AttentionDevice& device, const AttentionShape& shape) {
  if constexpr (D % 64 == 0) {
    AttentionPlan plan{};
    if (device.clusters && (plan_clusters<D>(plan, device, shape) || plan_persistent<D>(plan, device, shape) ||
                            plan_kv_splits<D>(plan, device, shape) || plan_long<D>(plan, device, shape))) {
      return plan;
    }
    // With few blocks, or in long contexts, four warps per tile shorten its time. Otherwise one warp per tile, which waits for no other
    // warp.
    if (unsplit_blocks(shape) <= device.multiprocessors || most_tiles(shape) > KV_SPLIT_TILES) return plan_teams<D, 4>(device, shape);
  }
  return plan_teams<D, 1>(device, shape);
}

template <int D>
AttentionPlan choose_prefill(const AttentionDevice& device, const AttentionShape& shape) {
  using Shared = PrefillShared<D>;
  AttentionPlan plan{AttentionKernel::TILES};
  const int rows = shape.max_query * shape.group(), row_blocks = ceil_div(rows, WIDE_BLOCK_ROWS), kv_heads = shape.num_kv_heads;
  // Measured on an H200: from one row block on, warpgroup products are faster even if most multiprocessors get none.
  if (rows >= WIDE_BLOCK_ROWS && device.warpgroups && shape.boxed) {
    // Contexts of several KV splits of long heads take workspace.
    const bool fits = shape.max_context <= KV_SPLIT || state_workspace(device) <= shape.workspace_bytes;
    if (D == 64 || D == 128) {
      plan.kernel = AttentionKernel::WIDE;
      plan.grid[0] = row_blocks, plan.grid[1] = kv_heads, plan.grid[2] = shape.num_seqs;
      return plan;
    }
    if (D == STATE_BOXES * BOX_DIM && fits) {
      plan.kernel = AttentionKernel::BOXED;
      plan.grid[0] = std::min(row_blocks * kv_heads * shape.num_seqs, device.multiprocessors);
      return plan;
    }
  }
  // Few rows take smaller blocks, so that more multiprocessors get one.
  const size_t limit = device.shared_block;
  int warps = PREFILL_WARPS;
  while (warps > 2 && ceil_div(rows, ROWS * warps) * kv_heads * shape.num_seqs < device.multiprocessors) warps /= 2;
  while (warps > 1 && Shared::bytes(warps, 2) > limit) warps /= 2;
  plan.prefill.buffers = PREFILL_BUFFERS;
  while (plan.prefill.buffers > 1 && Shared::bytes(warps, plan.prefill.buffers) > limit) --plan.prefill.buffers;
  plan.grid[0] = ceil_div(rows, ROWS * warps), plan.grid[1] = kv_heads, plan.grid[2] = shape.num_seqs;
  plan.threads = WARP * warps, plan.bytes = Shared::bytes(warps, plan.prefill.buffers);
  return plan;
}

}  // namespace

const KernelRow<AttentionKernel>& attention_row(AttentionKernel kernel) { return row_of(TABLE, kernel); }

AttentionPlan choose_decode(const AttentionDevice& device, const AttentionShape& shape) {
  return with_head_dim(shape.head_dim, [&](auto d) { return choose_decode<decltype(d)::value>(device, shape); });
}

AttentionPlan choose_prefill(const AttentionDevice& device, const AttentionShape& shape) {
  return with_head_dim(shape.head_dim, [&](auto d) { return choose_prefill<decltype(d)::value>(device, shape); });
}

size_t attention_workspace(const DeviceShape& device, int num_seqs, int num_heads, int num_kv_heads, int head_dim, int max_context) {
  const int kv_splits = most_kv_splits(most_tiles(max_context, 0), true);
  const size_t partials = kv_splits <= 2 ? 0 : std::min(partial_bytes(num_seqs, num_heads, head_dim, kv_splits), MAX_WORKSPACE);
  return head_dim > 128 && max_context > KV_SPLIT ? std::max(partials, state_workspace(device)) : partials;
}

}  // namespace pen
