// Launches attention and the kernels before it, and decides how a step is spread over blocks. None of these decisions changes a bit of the
// result.
#include <algorithm>
#include <type_traits>

#include "../device/boxes.h"
#include "cluster.cuh"
#include "persistent.cuh"
#include "prefill_boxed.cuh"

namespace pen {
namespace {

// Whether this device runs the kernel of cluster.cuh: clusters need sm_90 and code compiled for it.
bool has_clusters(const Device& device) {
  return device.major >= 9 && device.compiled(attention_cluster_kernel<64, false>).ptxVersion >= 90;
}

// Whether an attention needs the kernels with sinks and chunked windows.
bool wants_extras(const Attention& args) { return args.sinks != nullptr || args.chunked; }

bool fits(int head_dim) { return head_dim >= 8 && head_dim <= 256 && head_dim % 8 == 0; }

// Calls f(std::integral_constant<int, D>) with the padded head size.
template <class F>
void with_head_dim(int head_dim, F f) {
  if (!fits(head_dim)) throw CudaError(cudaErrorInvalidValue, "attention: head size");
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 80) return f(std::integral_constant<int, 80>{});
  if (head_dim <= 96) return f(std::integral_constant<int, 96>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

// Whether D is a padded head size of models with sinks or chunked windows: gpt-oss, Llama 4.
template <int D>
constexpr bool has_extras = D == 64 || D == 128;

// Calls f with the padded head size and with whether the attention has extras.
template <class F>
void with_shape(const Attention& args, F f) {
  with_head_dim(args.kv.head_dim, [&](auto d) {
    if (!wants_extras(args)) return f(d, std::false_type{});
    if constexpr (has_extras<decltype(d)::value>) return f(d, std::true_type{});
    throw CudaError(cudaErrorInvalidValue, "attention: sinks or chunked windows of this head size");
  });
}

// The most tiles that one row can see.
int most_tiles(int max_context, uint32_t window) {
  const int all = ceil_div(std::max(max_context, 1), KEYS);
  if (window == 0 || window >= static_cast<uint32_t>(max_context)) return all;
  return std::min(all, ceil_div(static_cast<int>(window) - 1, KEYS) + 1);
}

// The most KV splits that this many tiles touch.
int most_kv_splits(int tiles, bool window) {
  const int all = ceil_div(tiles, KV_SPLIT_TILES);
  return window ? std::max(all, ceil_div(tiles - 1, KV_SPLIT_TILES) + 1) : all;
}

size_t partial_bytes(int num_seqs, int num_heads, int head_dim, int kv_splits) {
  return static_cast<size_t>(num_seqs) * num_heads * kv_splits * (head_dim + 2) * sizeof(float);
}

// The number of blocks of a step if no sequence is split.
int unsplit_blocks(int num_seqs, int num_heads, int num_kv_heads) {
  return num_seqs * num_kv_heads * ceil_div(num_heads / num_kv_heads, ROWS);
}

constexpr size_t MAX_WORKSPACE = 256u << 20;

void check_shape(const Attention& args) {
  const int page = args.kv.block_size;
  if (args.kv.num_kv_heads < 1 || args.num_heads % args.kv.num_kv_heads != 0) throw CudaError(cudaErrorInvalidValue, "attention: heads");
  if (page < PAGE_UNIT || page % PAGE_UNIT != 0) throw CudaError(cudaErrorInvalidValue, "attention: block size");
  if (!(args.scale > 0.0f)) throw CudaError(cudaErrorInvalidValue, "attention: scale");
  if (args.out_stride % 2 != 0) throw CudaError(cudaErrorInvalidValue, "attention: stride of the output");
}

// `early`: the next kernel may start before this one's wait, because until its own wait it reads only what earlier steps wrote.
void launch_qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step, bool early) {
  if (takes_qkv_rows(args)) {
    const int eighths = (args.num_heads + 2 * args.kv.num_kv_heads) * args.kv.head_dim / 8;
    return launch(qkv_rows_kernel, dim3(step.num_tokens, ceil_div(eighths, QKV_ROW_THREADS)), QKV_ROW_THREADS, 0, args, step, early);
  }
  const long long items = static_cast<long long>(step.num_tokens) * (args.num_heads + 2 * args.kv.num_kv_heads);
  launch(qkv_finish_kernel, static_cast<unsigned>((items + QKV_WARPS - 1) / QKV_WARPS), WARP * QKV_WARPS, 0, args, step, early);
}

void check_heads(const QkvFinish& args) {
  const int head_dim = args.kv.head_dim;
  if (head_dim % 2 != 0 || head_dim > 2 * WARP * QKV_PAIRS || args.rope_dim % 2 != 0 || args.rope_dim > head_dim) {
    throw CudaError(cudaErrorInvalidValue, "qkv_finish: head size");
  }
}

// The most KV splits that a block takes of a long context. The bound keeps the block of a sequence longer than the others from running long
// after all others have ended.
constexpr int MOST_SHARED = 16;

// Chooses how many KV splits a block takes, if `blocks` blocks would take one whole sequence each.
int best_share(const Device& device, int blocks, int kv_splits, int head_dim) {
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

template <bool EXTRAS>
void merge_kv_splits(const Launch& launch, const Attention& args, const StepView& step, const DecodePlan& plan) {
  launch(attention_merge_kernel<EXTRAS>, dim3(step.num_seqs, args.num_heads), merge_threads(args.kv.head_dim), 0, args, step, plan);
}

template <int D, int TEAM, bool EXTRAS>
void decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  using Shared = DecodeShared<D>;
  const Device& device = launch.device;
  const int group = args.num_heads / args.kv.num_kv_heads;
  DecodePlan plan{};
  plan.rows = std::min(group, ROWS);
  // If heads of 256 do not fit into the shared memory (64 KB on some devices), a block takes fewer rows.
  if (Shared::fixed(plan.rows) + Shared::per_team(1, plan.rows) > static_cast<size_t>(device.shared_block)) plan.rows = ROWS / 2;
  const int row_blocks = ceil_div(group, plan.rows), blocks = step.num_seqs * args.kv.num_kv_heads * row_blocks;
  const int tiles = most_tiles(step.max_context, args.window);
  const size_t fixed = Shared::fixed(plan.rows), limit = device.shared_block, exchange = TEAM > 1 ? Shared::exchange : 0;
  const auto each = [&](int buffers) { return Shared::per_team(buffers, plan.rows) + exchange; };
  const auto fitting = [&](size_t shared, int buffers) { return shared < fixed ? 0 : static_cast<int>((shared - fixed) / each(buffers)); };
  plan.buffers = TEAM > 1 && fitting(limit, 4) >= 3 ? 4 : fitting(limit, 2) >= 1 ? 2 : 1;
  int teams = std::min({DECODE_TEAMS<D, TEAM>, fitting(limit, plan.buffers), tiles});
  // With many blocks, two per multiprocessor hide each other's ends.
  const size_t half = device.shared_multiprocessor / 2 - device.shared_reserved;
  if (TEAM == 1 && blocks >= 2 * device.multiprocessors && fitting(half, plan.buffers) >= 2) {
    teams = std::min(teams, fitting(half, plan.buffers));
  }

  plan.share = plan.max_kv_splits = most_kv_splits(tiles, args.window != 0);
  if (partial_bytes(step.num_seqs, args.num_heads, args.kv.head_dim, plan.max_kv_splits) <= args.workspace_bytes) {
    plan.share = best_share(device, blocks, plan.max_kv_splits, args.kv.head_dim);
  }
  const int splits = ceil_div(plan.max_kv_splits, plan.share);
  const auto kernel = attention_decode_kernel<D, TEAM, EXTRAS>;
  set_up(device, kernel);
  launch(kernel, dim3(splits, args.kv.num_kv_heads * row_blocks, step.num_seqs), WARP * TEAM * teams, fixed + teams * each(plan.buffers),
         args, step, plan, fresh ? *fresh : QkvFinish{});
  if (splits > 1) merge_kv_splits<EXTRAS>(launch, args, step, plan);
}

// The most blocks of a cluster beyond the size that every device allows: 0 or CLUSTER_TILES.
template <int D, class Kernel>
int largest_cluster(const Device& device, Kernel kernel) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) return cudaGetLastError(), 0;
  const size_t shared = std::min<size_t>(ClusterShared<D>::bytes(ROWS, CLUSTER_TILES), device.shared_block);
  int clusters = 0;
  const cudaError_t status = active_clusters(clusters, kernel, CLUSTER_TILES, CLUSTER_TILES, WARP * CLUSTER_WARPS, shared);
  if (status != cudaSuccess) return cudaGetLastError(), 0;
  return clusters > 0 ? CLUSTER_TILES : 0;
}

// One warp per fresh head.
int cluster_warps(const DecodePlan& plan) { return std::clamp(plan.rows + 2, 2 * CLUSTER_TEAM, CLUSTER_WARPS); }

// Launches clusters of `blocks` blocks: one per sequence and K/V head, or as many as the plan has KV splits.
template <int D, bool EXTRAS>
void start_clusters(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh, const DecodePlan& plan,
                    int blocks) {
  Launch clustered = launch;
  clustered.cluster = blocks;
  const int row_blocks = ceil_div(args.num_heads / args.kv.num_kv_heads, plan.rows);
  const dim3 grid(std::max(plan.max_kv_splits, 1) * blocks, args.kv.num_kv_heads * row_blocks, step.num_seqs);
  clustered(attention_cluster_kernel<D, EXTRAS>, grid, WARP * cluster_warps(plan), ClusterShared<D>::bytes(plan.rows, blocks), args, step,
            plan, fresh ? *fresh : QkvFinish{});
}

// Short contexts of few sequences: one cluster per sequence and K/V head. Returns false if the step is of another kind.
template <int D, bool EXTRAS>
bool decode_cluster(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  const Device& device = launch.device;
  DecodePlan plan{};
  const int group = args.num_heads / args.kv.num_kv_heads;
  plan.rows = std::min(group, ROWS);
  // At least two blocks: a single block is not a cluster and cannot address its own shared memory as a cluster's blocks do.
  const int blocks = std::max(most_tiles(step.max_context, args.window), 2);
  const size_t bytes = ClusterShared<D>::bytes(plan.rows, blocks);
  const int clusters = unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads);
  if (clusters > device.multiprocessors || (blocks > PORTABLE_TILES && clusters * blocks > 2 * device.multiprocessors)) return false;
  if (!has_clusters(device) || blocks > CLUSTER_TILES || bytes > static_cast<size_t>(device.shared_block)) return false;
  const auto kernel = attention_cluster_kernel<D, EXTRAS>;
  set_up(device, kernel);
  if (blocks > PORTABLE_TILES && blocks > device.known(kernel, [&] { return largest_cluster<D>(device, kernel); })) return false;
  start_clusters<D, EXTRAS>(launch, args, step, fresh, plan, blocks);
  return true;
}

// Longer contexts of few sequences, where one block per KV split would leave most multiprocessors idle: one cluster per KV split. Returns
// false if the step is of another kind.
template <int D, bool EXTRAS>
bool decode_kv_splits(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  const Device& device = launch.device;
  const int tiles = most_tiles(step.max_context, args.window);
  DecodePlan plan{};
  plan.rows = std::min(args.num_heads / args.kv.num_kv_heads, ROWS);
  plan.share = 1;
  plan.max_kv_splits = most_kv_splits(tiles, args.window != 0);
  const int blocks = unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads) * plan.max_kv_splits * KV_SPLIT_TILES;
  const size_t bytes = ClusterShared<D>::bytes(plan.rows, KV_SPLIT_TILES);
  // Measured on an H100: three blocks of eight warps per multiprocessor take less time than long.cuh, except for heads of 128.
  const int each = D == 128 || cluster_warps(plan) > 8 ? 2 : 3;
  if (tiles <= KV_SPLIT_TILES || blocks > each * device.multiprocessors || !has_clusters(device)) return false;
  const bool fits = partial_bytes(step.num_seqs, args.num_heads, args.kv.head_dim, plan.max_kv_splits) <= args.workspace_bytes;
  if (!fits || bytes > static_cast<size_t>(device.shared_block)) return false;
  set_up(device, attention_cluster_kernel<D, EXTRAS>);
  start_clusters<D, EXTRAS>(launch, args, step, fresh, plan, KV_SPLIT_TILES);
  merge_kv_splits<EXTRAS>(launch, args, step, plan);
  return true;
}

bool map_both(CUtensorMap& keys, CUtensorMap& values, const KvView& kv) {
  return map_pages(keys, kv.k, kv, kv.head_dim) && map_pages(values, kv.v, kv, kv.head_dim);
}

// Long contexts on sm_90. Returns false if the step is of another kind.
template <int D, bool EXTRAS>
bool decode_long(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  using Shared = LongShared<D>;
  const Device& device = launch.device;
  const int tiles = most_tiles(step.max_context, args.window), group = args.num_heads / args.kv.num_kv_heads;
  if (tiles <= KV_SPLIT_TILES || !has_clusters(device)) return false;
  DecodePlan plan{};
  plan.rows = std::min(group, ROWS);
  const size_t limit = device.shared_block;
  const auto fitting = [&](size_t shared) { return static_cast<int>((shared - Shared::fixed(plan.rows)) / Shared::per_reader(plan.rows)); };
  const int readers = std::min({LONG_READERS<D>, tiles, fitting(limit)});
  CUtensorMap keys, values;
  if (readers < 1 || !map_both(keys, values, args.kv)) return false;
  const int row_blocks = ceil_div(group, plan.rows), blocks = step.num_seqs * args.kv.num_kv_heads * row_blocks;
  plan.share = plan.max_kv_splits = most_kv_splits(tiles, args.window != 0);
  if (partial_bytes(step.num_seqs, args.num_heads, args.kv.head_dim, plan.max_kv_splits) <= args.workspace_bytes) {
    plan.share = best_share(device, blocks, plan.max_kv_splits, args.kv.head_dim);
  }
  const int splits = ceil_div(plan.max_kv_splits, plan.share);
  const auto kernel = attention_long_kernel<D, EXTRAS>;
  set_up(device, kernel);
  launch(kernel, dim3(splits, args.kv.num_kv_heads * row_blocks, step.num_seqs), WARP * (readers + LONG_MERGERS),
         Shared::fixed(plan.rows) + readers * Shared::per_reader(plan.rows), args, step, plan, fresh ? *fresh : QkvFinish{}, keys, values);
  if (splits > 1) merge_kv_splits<EXTRAS>(launch, args, step, plan);
  return true;
}

// Many sequences on sm_90. Returns false if the step is of another kind.
template <int D, bool EXTRAS>
bool decode_persistent(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  using Shared = PersistentShared<D>;
  const Device& device = launch.device;
  const int items = unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads), tiles = most_tiles(step.max_context, args.window);
  if (items <= device.multiprocessors || step.num_seqs > LIST_SEQUENCES || !has_clusters(device)) return false;
  // Measured on an H200: with fewer tiles per multiprocessor, starting this kernel takes longer than the tiles.
  if (tiles <= KV_SPLIT_TILES && items * tiles <= (D == 64 ? 12 : 3) * device.multiprocessors) return false;
  DecodePlan plan{};
  const int group = args.num_heads / args.kv.num_kv_heads;
  plan.rows = std::min(group, ROWS);
  // With a padded head, reads run a little past the Q of its part, where an earlier part with more rows may have left a NaN.
  if (args.kv.head_dim != D && group % plan.rows != 0) return false;
  int readers = 0;
  for (int most = PERSISTENT_READERS<D>; most > PERSISTENT_READERS<D> / 2; --most) {
    const size_t fixed = Shared::fixed(step.num_seqs) + most * Shared::per_reader(plan.rows), limit = device.shared_block;
    const int fitting = limit < fixed ? 0 : static_cast<int>((limit - fixed) / Shared::per_stage(plan.rows));
    const int stages = std::min(fitting, PERSISTENT_STAGES) / most * most;
    if (stages > plan.buffers) plan.buffers = stages, readers = most;
  }
  CUtensorMap keys, values;
  if (readers == 0 || !map_both(keys, values, args.kv)) return false;
  plan.share = plan.max_kv_splits = most_kv_splits(tiles, args.window != 0);
  // Splits sequences if a block's run of whole ones could take much longer than the others' runs.
  const int each = ceil_div(items * plan.max_kv_splits, device.multiprocessors);
  const bool cut = plan.max_kv_splits > MOST_SHARED || ceil_div(items, device.multiprocessors) * plan.max_kv_splits > each + each / 4 + 2;
  if (cut && partial_bytes(step.num_seqs, args.num_heads, args.kv.head_dim, plan.max_kv_splits) <= args.workspace_bytes) {
    plan.share = std::clamp(each / 2, 1, std::min(MOST_SHARED, plan.max_kv_splits));
  }
  // If a thread would finish many eighths of fresh heads one after the other, a separate kernel is faster.
  const int eighths = items * (plan.rows + 2) * args.kv.head_dim / 8, threads = (readers + LONG_MERGERS) * WARP;
  const bool within = fresh && takes_qkv_rows(*fresh) && eighths <= PERSISTENT_TOGETHER<D> * threads * device.multiprocessors;
  if (fresh && !within) launch_qkv_finish(launch, *fresh, step, true);
  const auto kernel = attention_persistent_kernel<D, EXTRAS>;
  set_up(device, kernel);
  const size_t each_reader = Shared::per_reader(plan.rows), each_stage = Shared::per_stage(plan.rows);
  const size_t shared = Shared::fixed(step.num_seqs) + readers * each_reader + plan.buffers * each_stage;
  launch(kernel, device.multiprocessors, WARP * (readers + LONG_MERGERS + PERSISTENT_COPIERS), shared, args, step, plan,
         within ? *fresh : QkvFinish{}, keys, values);
  if (plan.share < plan.max_kv_splits) merge_kv_splits<EXTRAS>(launch, args, step, plan);
  return true;
}

// Prompts with enough rows to fill sm_90a. Returns false if the step is of another kind.
template <int D, bool EXTRAS>
bool prefill_wide(const Launch& launch, const Attention& args, const StepView& step) {
  const auto kernel = attention_wide_kernel<D, EXTRAS>;
  const Device& device = launch.device;
  const int rows = step.max_query * (args.num_heads / args.kv.num_kv_heads), row_blocks = ceil_div(rows, WIDE_BLOCK_ROWS);
  // Measured on an H200: from one row block on, this is faster even if most multiprocessors get none.
  if (rows < WIDE_BLOCK_ROWS || !device.has_sm90a(kernel)) return false;
  CUtensorMap keys, values;
  if (!map_both(keys, values, args.kv)) return false;
  set_up(device, kernel);
  launch(kernel, dim3(row_blocks, args.kv.num_kv_heads, step.num_seqs), WIDE_THREADS, WideShared<D>::bytes, args, step, keys, values);
  return true;
}

// The same kind of step for longer heads. Contexts of several KV splits take workspace.
bool prefill_boxed(const Launch& launch, const Attention& args, const StepView& step) {
  const auto kernel = attention_boxed_kernel;
  const Device& device = launch.device;
  const int rows = step.max_query * (args.num_heads / args.kv.num_kv_heads), row_blocks = ceil_div(rows, WIDE_BLOCK_ROWS);
  if (rows < WIDE_BLOCK_ROWS || !device.has_sm90a(kernel) || BoxedShared::bytes > static_cast<size_t>(device.shared_block)) return false;
  CUtensorMap keys, values;
  if (step.max_context > KV_SPLIT && state_workspace(device) > args.workspace_bytes) return false;
  if (!map_both(keys, values, args.kv)) return false;
  set_up(device, kernel);
  const int blocks = std::min(row_blocks * args.kv.num_kv_heads * step.num_seqs, device.multiprocessors);
  launch(kernel, blocks, WIDE_THREADS, BoxedShared::bytes, args, step, row_blocks, keys, values);
  return true;
}

template <int D, bool EXTRAS>
void prefill(const Launch& launch, const Attention& args, const StepView& step) {
  if constexpr (D == 64 || D == 128) {
    if (prefill_wide<D, EXTRAS>(launch, args, step)) return;
  } else if constexpr (D == BOXED_DIM) {
    if (prefill_boxed(launch, args, step)) return;
  }
  using Shared = PrefillShared<D>;
  const Device& device = launch.device;
  const int rows = step.max_query * (args.num_heads / args.kv.num_kv_heads), limit = device.shared_block;
  // Few rows take smaller blocks, so that more multiprocessors get one.
  int warps = PREFILL_WARPS;
  while (warps > 2 && ceil_div(rows, ROWS * warps) * args.kv.num_kv_heads * step.num_seqs < device.multiprocessors) warps /= 2;
  while (warps > 1 && Shared::bytes(warps, 2) > static_cast<size_t>(limit)) warps /= 2;
  PrefillPlan plan{PREFILL_BUFFERS};
  while (plan.buffers > 1 && Shared::bytes(warps, plan.buffers) > static_cast<size_t>(limit)) --plan.buffers;
  const auto kernel = attention_prefill_kernel<D, EXTRAS>;
  set_up(device, kernel);
  launch(kernel, dim3(ceil_div(rows, ROWS * warps), args.kv.num_kv_heads, step.num_seqs), WARP * warps,
         Shared::bytes(warps, plan.buffers), args, step, plan);
}

}  // namespace

void qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step) {
  if (step.num_tokens == 0) return;
  check_heads(args);
  launch_qkv_finish(launch, args, step, false);
}

bool attention_extras(int head_dim) {
  bool has = false;
  if (fits(head_dim)) with_head_dim(head_dim, [&](auto d) { has = has_extras<decltype(d)::value>; });
  return has;
}

size_t attention_workspace(const Device& device, int num_seqs, int num_heads, int num_kv_heads, int head_dim, int max_context) {
  const int kv_splits = most_kv_splits(most_tiles(max_context, 0), true);
  const size_t partials = kv_splits <= 2 ? 0 : std::min(partial_bytes(num_seqs, num_heads, head_dim, kv_splits), MAX_WORKSPACE);
  return head_dim > 128 && max_context > KV_SPLIT ? std::max(partials, state_workspace(device)) : partials;
}

void attention_decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  if (step.num_seqs == 0) return;
  check_shape(args);
  if (fresh) check_heads(*fresh);
  if (fresh && (fresh->q != args.q || fresh->kv.k != args.kv.k || fresh->kv.v != args.kv.v)) {
    throw CudaError(cudaErrorInvalidValue, "attention: fresh rows go to other arrays");
  }
  with_shape(args, [&](auto d, auto extras) {
    constexpr int D = decltype(d)::value;
    constexpr bool EXTRAS = decltype(extras)::value;
    if constexpr (D % 64 == 0) {
      if (decode_cluster<D, EXTRAS>(launch, args, step, fresh) || decode_persistent<D, EXTRAS>(launch, args, step, fresh)) return;
      if (decode_kv_splits<D, EXTRAS>(launch, args, step, fresh) || decode_long<D, EXTRAS>(launch, args, step, fresh)) return;
      // With few blocks, or in long contexts, four warps per tile shorten its time. Otherwise one warp per tile, which waits for no other
      // warp.
      if (unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads) <= launch.device.multiprocessors ||
          most_tiles(step.max_context, args.window) > KV_SPLIT_TILES) {
        return decode<D, 4, EXTRAS>(launch, args, step, fresh);
      }
    }
    decode<D, 1, EXTRAS>(launch, args, step, fresh);
  });
}

void attention_prefill(const Launch& launch, const Attention& args, const StepView& step) {
  if (step.num_seqs == 0 || step.max_query <= 1) return;
  check_shape(args);
  with_shape(args, [&](auto d, auto extras) { prefill<decltype(d)::value, decltype(extras)::value>(launch, args, step); });
}

}  // namespace pen
