// Launches general attention, and decides how a step is spread over blocks. None of these decisions changes a bit of the result.
#include <algorithm>

#include "box_state.cuh"
#include "general.cuh"
#include "general_merge.cuh"
#include "latent.h"

namespace pen {
namespace {

constexpr size_t MAX_WORKSPACE = 256u << 20;
// The most partial results of a row if they are per tile. Measured on an H100: merging more takes longer than it saves.
constexpr int MOST_TILES = 256;

void check_shape(const GeneralAttention& p) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw CudaError(cudaErrorInvalidValue, what);
  };
  const GeneralKv& kv = p.kv;
  require(kv.num_kv_heads >= 1 && p.num_heads >= 1 && p.num_heads % kv.num_kv_heads == 0, "general attention: heads");
  require(kv.block_size >= PAGE_UNIT && kv.block_size % PAGE_UNIT == 0, "general attention: block size");
  require(kv.k_dim % 8 == 0 && kv.v_dim % 8 == 0, "general attention: elements of a page's row");
  require(p.head_dim >= 1 && p.head_dim <= std::min(kv.k_dim, GENERAL_DIM), "general attention: head size");
  require(p.value_dim >= 1 && p.value_dim <= std::min(kv.v_dim, GENERAL_DIM), "general attention: value size");
  require(p.scale > 0.0f, "general attention: scale");
}

// The most parts of `keys` keys that one row can see.
int most_parts(int keys, int max_context, const GeneralAttention& p) {
  const int all = ceil_div(std::max(max_context, 1), keys);
  if (p.window == 0 || (p.bidirectional && p.window_kind != Window::SYMMETRIC)) return all;
  const long long seen = p.window_kind == Window::SYMMETRIC ? p.window / 2 * 2ll + 1 : p.window;
  return static_cast<int>(std::min<long long>(all, (seen - 1 + keys - 1) / keys + 1));
}

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// Sizes the ring: whole tiles if two or more fit, otherwise smaller parts of tiles. Values can be read from the tiles of the keys only if
// the tiles are whole.
void plan_ring(GeneralPlan& plan, const GeneralAttention& p, int room, bool values_in_keys) {
  const int values = std::min(p.value_dim, GENERAL_VALUES), keys = ceil_div(p.head_dim, PIECE);
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
void share_context(GeneralPlan& plan, const GeneralAttention& args, int max_context, long long blocks, long long wanted) {
  constexpr int FEW_TILES = 4;  // tiles per block; measured on an H100: with more, whole KV splits are as fast
  const int tiles = most_parts(KEYS, max_context, args), kv_splits = most_parts(KV_SPLIT, max_context, args);
  // Whether the workspace holds such parts. If it does not, no context is shared.
  const auto split = [&](bool by_tile, int parts, int splits) {
    plan.by_tile = by_tile, plan.max_parts = parts, plan.splits = splits;
    if (general_partial_bytes(plan, args) > args.workspace_bytes) plan.splits = 1;
    return plan.splits > 1;
  };
  plan.by_tile = false, plan.max_parts = kv_splits, plan.splits = 1;
  if (2 * blocks > wanted) return;
  const int share = static_cast<int>((tiles * blocks + wanted - 1) / wanted);
  if (share <= FEW_TILES && tiles <= MOST_TILES && split(true, tiles, ceil_div(tiles, share))) return;
  split(false, kv_splits, static_cast<int>(std::min<long long>(kv_splits, (wanted + blocks - 1) / blocks)));
}

template <int M, int VP>
void run(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  const Device& device = launch.device;
  const int group = args.num_heads / args.kv.num_kv_heads;
  GeneralPlan plan{};
  plan.rows = ROWS * M, plan.row_blocks = ceil_div(step.max_query * group, plan.rows);
  plan.slices = ceil_div(args.value_dim, GENERAL_VALUES), plan.splits = 1;
  plan.wide_query = args.head_dim % 8 == 0 && args.ld_q % 8 == 0 && aligned(args.q, 16);
  plan.even_out = args.value_dim % 2 == 0 && args.ld_out % 2 == 0 && aligned(args.out, 4);
  const int fixed = fixed_bytes(M, args.head_dim);
  const bool values_in_keys = args.kv.k == args.kv.v && args.kv.k_dim == args.kv.v_dim && args.value_dim <= args.head_dim;
  // Two blocks per multiprocessor hide each other's waits, if whole tiles still fit.
  const int half = device.shared_multiprocessor / 2 - device.shared_reserved, all = device.shared_block;
  const int widest = std::max(ceil_div(args.head_dim, PIECE), ceil_div(std::min(args.value_dim, GENERAL_VALUES), PIECE));
  const bool two = half - fixed >= 2 * widest * PIECE_BYTES;
  plan_ring(plan, args, (two ? std::min(half, all) : all) - fixed, values_in_keys);
  if (plan.buffers < 1) throw CudaError(cudaErrorInvalidValue, "general attention: shared memory");

  plan.by_sequence = step.max_query == 1, plan.partial_rows = plan.by_sequence ? step.num_seqs : step.num_tokens;
  const long long blocks = static_cast<long long>(plan.row_blocks) * args.kv.num_kv_heads * plan.slices * step.num_seqs;
  const long long wanted = device.multiprocessors * (two ? 2ll : 1ll);
  share_context(plan, args, step.max_context, blocks, wanted);
  const auto kernel = attention_general_kernel<M, VP>;
  set_up(device, kernel);
  launch(kernel, dim3(plan.row_blocks * plan.splits, args.kv.num_kv_heads * plan.slices, step.num_seqs), GENERAL_TEAM * WARP * M,
         static_cast<size_t>(fixed) + static_cast<size_t>(plan.buffers) * plan.width * PIECE_BYTES, args, step, plan);
  if (plan.splits > 1) merge_general(launch, args, step, plan);
}

template <int M>
void with_values(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  const int pieces = ceil_div(std::min(args.value_dim, GENERAL_VALUES), PIECE);
  if (pieces <= 1) return run<M, 1>(launch, args, step);
  if (pieces <= 2) return run<M, 2>(launch, args, step);
  if (pieces <= 4) return run<M, 4>(launch, args, step);
  run<M, 8>(launch, args, step);
}

}  // namespace

void merge_general(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralPlan& plan) {
  const dim3 grid(step.max_query * (args.num_heads / args.kv.num_kv_heads), args.kv.num_kv_heads, step.num_seqs);
  // Measured on an H100: with many blocks, registers for more reads in flight cost more than the reads' latencies.
  const bool few = static_cast<long long>(grid.x) * grid.y * grid.z <= 4ll * launch.device.multiprocessors;
  launch(few ? attention_general_merge_kernel<16> : attention_general_merge_kernel<8>, grid, GENERAL_MERGE_THREADS, 0, args, step, plan);
}

size_t attention_general_workspace(const Device& device, int num_tokens, int num_heads, int num_kv_heads, int value_dim, int max_context) {
  // Only steps with few blocks are split. Steps with more blocks, on other kernels, need less workspace.
  const int keys = std::max(max_context, 1), tiles = ceil_div(keys, KEYS), group = std::max(num_heads / std::max(num_kv_heads, 1), 1);
  const int most = ceil_div(device.multiprocessors, std::max(num_kv_heads, 1)) * 2 * ROWS / group + 1;
  if (tiles <= 1) return 0;
  const int parts = std::max(std::min(tiles, MOST_TILES), ceil_div(keys, KV_SPLIT));
  const size_t partials = std::min(general_partial_bytes(std::min(num_tokens, most), num_heads, value_dim, parts), MAX_WORKSPACE);
  return value_dim == LATENT_VALUE ? std::max(partials, state_workspace(device)) : partials;
}

void attention_general(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  if (step.num_seqs == 0 || step.num_tokens == 0 || step.max_query < 1) return;
  check_shape(args);
  if (attention_latent(launch, args, step)) return;
  const bool many = step.max_query * (args.num_heads / args.kv.num_kv_heads) > ROWS;
  // A small shared memory cannot hold the queries of thirty-two long rows.
  if (many && fixed_bytes(2, args.head_dim) + 2 * PIECE_BYTES <= launch.device.shared_block) return with_values<2>(launch, args, step);
  with_values<1>(launch, args, step);
}

}  // namespace pen
