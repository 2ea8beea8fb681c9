// Attention and what precedes it: the launches, which decide how a step is spread over blocks. Nothing decided here changes a bit.
#include <algorithm>
#include <type_traits>

#include "cluster.cuh"
#include "prefill.cuh"
#include "qkv.cuh"

namespace pen {
namespace {

// Whether this device runs the kernel of cluster.cuh: blocks that share memory need sm_90, and code compiled for it.
bool has_clusters(const Device& device) {
  return device.major >= 9 && device.compiled(attention_cluster_kernel<64, false>).ptxVersion >= 90;
}

// Lets a kernel have all the shared memory that the device gives.
template <class... Params>
void set_up(const Device& device, void (*kernel)(Params...)) {
  device.first_use(kernel, [&] { allow_shared(kernel, device.shared_block), prefer_shared(kernel); });
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

// The padded head sizes of models with sinks or chunked windows: gpt-oss, Llama 4.
template <int D>
constexpr bool has_extras = D == 64 || D == 128;

// Calls f with the padded head size, too, and with whether the attention has extras.
template <class F>
void with_shape(const Attention& args, F f) {
  with_head_dim(args.kv.head_dim, [&](auto d) {
    if (!wants_extras(args)) return f(d, std::false_type{});
    if constexpr (has_extras<decltype(d)::value>) return f(d, std::true_type{});
    throw CudaError(cudaErrorInvalidValue, "attention: sinks or chunked windows of this head size");
  });
}

// The number of tiles that one row can see.
int most_tiles(int max_context, uint32_t window) {
  const int all = ceil_div(std::max(max_context, 1), KEYS);
  if (window == 0 || window >= static_cast<uint32_t>(max_context)) return all;
  return std::min(all, ceil_div(static_cast<int>(window) - 1, KEYS) + 1);
}

size_t partial_bytes(int num_seqs, int num_heads, int head_dim, int tiles) {
  return static_cast<size_t>(num_seqs) * num_heads * tiles * (head_dim + 2) * sizeof(float);
}

// The number of blocks of a step that splits no sequence.
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

void check_heads(const QkvFinish& args) {
  const int head_dim = args.kv.head_dim;
  if (head_dim % 2 != 0 || head_dim > 2 * WARP * QKV_PAIRS || args.rope_dim % 2 != 0 || args.rope_dim > head_dim) {
    throw CudaError(cudaErrorInvalidValue, "qkv_finish: head size");
  }
}

template <int D, int TEAM, bool EXTRAS>
void decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  using Shared = DecodeShared<D>;
  const Device& device = launch.device;
  const int group = args.num_heads / args.kv.num_kv_heads;
  DecodePlan plan{};
  plan.rows = std::min(group, ROWS);
  // Heads of 256 in 64 KB of shared memory: fewer rows per block.
  if (Shared::fixed(plan.rows) + Shared::per_team(1, plan.rows) > static_cast<size_t>(device.shared_block)) plan.rows = ROWS / 2;
  const int row_blocks = ceil_div(group, plan.rows), blocks = step.num_seqs * args.kv.num_kv_heads * row_blocks;
  plan.max_tiles = most_tiles(step.max_context, args.window);
  const size_t fixed = Shared::fixed(plan.rows), limit = device.shared_block, exchange = TEAM > 1 ? Shared::exchange : 0;
  plan.buffers = fixed + Shared::per_team(2, plan.rows) + exchange <= limit ? 2 : 1;
  const size_t each = Shared::per_team(plan.buffers, plan.rows) + exchange;
  int teams = std::min<int>({TEAM == 1 ? DECODE_WARPS : DECODE_TEAMS, static_cast<int>((limit - fixed) / each), plan.max_tiles});
  // With many blocks, two on a multiprocessor hide each other's ends.
  const size_t half = device.shared_multiprocessor / 2 - device.shared_reserved;
  if (blocks >= 2 * device.multiprocessors && half >= fixed + 2 * each) {
    teams = std::min<int>(teams, static_cast<int>((half - fixed) / each));
  }

  plan.direct_tiles = plan.split_tiles = plan.max_tiles;
  int splits = 1;
  if (blocks < device.multiprocessors && plan.max_tiles > 2 * teams &&
      partial_bytes(step.num_seqs, args.num_heads, args.kv.head_dim, plan.max_tiles) <= args.workspace_bytes) {
    const int wanted = ceil_div(device.multiprocessors, blocks);
    plan.split_tiles = ceil_div(ceil_div(plan.max_tiles, wanted), teams) * teams;
    plan.direct_tiles = std::max(2 * teams, plan.split_tiles);
    splits = ceil_div(plan.max_tiles, plan.split_tiles);
  }
  const auto kernel = attention_decode_kernel<D, TEAM, EXTRAS>;
  set_up(device, kernel);
  launch(kernel, dim3(splits, args.kv.num_kv_heads * row_blocks, step.num_seqs), WARP * TEAM * teams, fixed + teams * each,
         args, step, plan, fresh ? *fresh : QkvFinish{});
  if (plan.max_tiles > plan.direct_tiles) {
    const dim3 threads(static_cast<unsigned>(round_up(args.kv.head_dim / 2, WARP)));
    launch(attention_merge_kernel<EXTRAS>, dim3(step.num_seqs, args.num_heads), threads, 0, args, step, plan);
  }
}

// Short contexts of few sequences: a cluster of blocks for each sequence and K/V head. Returns false if the step is no such case.
template <int D, bool EXTRAS>
bool decode_cluster(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  const Device& device = launch.device;
  DecodePlan plan{};
  plan.max_tiles = most_tiles(step.max_context, args.window);
  const int group = args.num_heads / args.kv.num_kv_heads;
  plan.rows = std::min(group, ROWS);
  // Two at least: a single block is not a cluster, and could not reach its own shared memory as blocks of a cluster do.
  const int blocks = std::max(plan.max_tiles, 2);
  const size_t bytes = ClusterShared<D>::bytes(plan.rows, blocks);
  if (unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads) > device.multiprocessors) return false;
  if (!has_clusters(device) || blocks > CLUSTER_TILES || bytes > static_cast<size_t>(device.shared_block)) return false;
  const auto kernel = attention_cluster_kernel<D, EXTRAS>;
  set_up(device, kernel);
  Launch clustered = launch;
  clustered.cluster = blocks;
  const dim3 grid(blocks, args.kv.num_kv_heads * ceil_div(group, plan.rows), step.num_seqs);
  const int warps = std::clamp(plan.rows + 2, 2 * CLUSTER_TEAM, CLUSTER_WARPS);  // one fresh head per warp
  clustered(kernel, grid, WARP * warps, bytes, args, step, plan, fresh ? *fresh : QkvFinish{});
  return true;
}

template <int D, bool EXTRAS>
void prefill(const Launch& launch, const Attention& args, const StepView& step) {
  using Shared = PrefillShared<D>;
  const Device& device = launch.device;
  const int rows = step.max_query * (args.num_heads / args.kv.num_kv_heads), limit = device.shared_block;
  // For few rows, smaller blocks, so that more multiprocessors have one.
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
  const long long items = static_cast<long long>(step.num_tokens) * (args.num_heads + 2 * args.kv.num_kv_heads);
  launch(qkv_finish_kernel, static_cast<unsigned>((items + QKV_WARPS - 1) / QKV_WARPS), WARP * QKV_WARPS, 0, args, step);
}

bool attention_extras(int head_dim) {
  bool has = false;
  if (fits(head_dim)) with_head_dim(head_dim, [&](auto d) { has = has_extras<decltype(d)::value>; });
  return has;
}

size_t attention_workspace(const Device& device, int num_seqs, int num_heads, int num_kv_heads, int head_dim, int max_context) {
  // No less than fewer sequences need, since only steps with few blocks split their sequences.
  const int num_sms = device.multiprocessors;
  int seqs = num_seqs;
  while (seqs > 1 && unsplit_blocks(seqs, num_heads, num_kv_heads) >= num_sms) --seqs;
  if (unsplit_blocks(seqs, num_heads, num_kv_heads) >= num_sms) return 0;
  const int tiles = most_tiles(max_context, 0);
  return tiles <= 2 ? 0 : std::min(partial_bytes(seqs, num_heads, head_dim, tiles), MAX_WORKSPACE);
}

void attention_decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  if (step.num_seqs == 0) return;
  check_shape(args);
  if (fresh) check_heads(*fresh);
  with_shape(args, [&](auto d, auto extras) {
    constexpr int D = decltype(d)::value;
    constexpr bool EXTRAS = decltype(extras)::value;
    if constexpr (D % 64 == 0) {
      if (decode_cluster<D, EXTRAS>(launch, args, step, fresh)) return;
      // With few blocks, four warps per tile shorten its time; with many, a single warp per tile waits for no other.
      if (unsplit_blocks(step.num_seqs, args.num_heads, args.kv.num_kv_heads) <= launch.device.multiprocessors) {
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
