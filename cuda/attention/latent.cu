// Latent attention by warpgroup products: the launch, which decides how a step is spread over blocks. Nothing decided here changes a bit.
#include <algorithm>

#include "../device/boxes.h"
#include "latent.cuh"

namespace pen {
namespace {

bool is_latent(const GeneralAttention& p) {
  const GeneralKv& kv = p.kv;
  const bool shape = p.head_dim == LATENT_DIM && p.value_dim == LATENT_VALUE && kv.k_dim == LATENT_DIM && kv.k == kv.v && kv.v_dim == kv.k_dim;
  const bool plain = p.window == 0 && !p.bidirectional && p.soft_cap == 0.0f && p.alibi == 0.0f && p.sinks == nullptr;
  return shape && plain && kv.num_kv_heads == 1 && p.ld_q == p.num_heads * LATENT_DIM && p.ld_out % 2 == 0;
}

// How many blocks should share a context, if there are so many units of rows.
int best_splits(const Device& device, int units, int row_blocks, int stretches) {
  int best = 1;
  double best_us = 0.0;
  for (int splits = 1; splits <= stretches; ++splits) {
    const int share = ceil_div(stretches, splits);
    if (ceil_div(stretches, share) != splits) continue;
    // In microseconds, measured on an H100: a stretch by itself, or what a multiprocessor reads in its share of the bandwidth; how long a
    // unit takes to begin; and the merging kernel. Row blocks of a sequence read the same keys.
    const int all = units * splits, waves = ceil_div(all, device.multiprocessors);
    const double readers = static_cast<double>(std::min(all, device.multiprocessors)) / std::min(row_blocks, 4);
    const double stretch_us = std::max(11.0, 0.2 * readers), us = waves * (share * stretch_us + 3.0) + (splits > 1 ? 4.0 : 0.0);
    if (splits == 1 || us < best_us) best = splits, best_us = us;
  }
  return best;
}

}  // namespace

size_t attention_latent_workspace(const Device& device) { return sizeof(float) * LATENT_BEFORE * device.multiprocessors; }

bool attention_latent(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  const Device& device = launch.device;
  if (!is_latent(args) || device.major != 9 || step.num_seqs > LATENT_SEQUENCES) return false;
  const auto kernel = attention_latent_kernel;
  // Compiled without the instructions of sm_90a, the kernel's body is empty.
  const cudaFuncAttributes compiled = device.compiled(kernel);
  if (compiled.binaryVersion != 90 || compiled.numRegs <= 64 || LatentShared::bytes > static_cast<size_t>(device.shared_block)) return false;
  GeneralPlan plan{};
  plan.rows = LATENT_ROWS, plan.row_blocks = ceil_div(step.max_query * args.num_heads, LATENT_ROWS), plan.slices = 1;
  plan.max_stretches = ceil_div(std::max(step.max_context, 1), STRETCH), plan.splits = 1;
  plan.by_sequence = step.max_query == 1, plan.partial_rows = plan.by_sequence ? step.num_seqs : step.num_tokens;
  const int units = plan.row_blocks * step.num_seqs;
  if (general_partial_bytes(plan, args) <= args.workspace_bytes) {
    plan.splits = best_splits(device, units, plan.row_blocks, plan.max_stretches);
  }
  if (plan.splits == 1 && plan.max_stretches > 1 && attention_latent_workspace(device) > args.workspace_bytes) return false;
  CUtensorMap queries, keys;
  const size_t slots = (static_cast<size_t>(args.kv.num_blocks) + 1) * args.kv.block_size;
  if (!map_boxes(keys, args.kv.k, slots, LATENT_DIM, LATENT_DIM, PAGE_UNIT)) return false;
  if (!map_boxes(queries, args.q, static_cast<size_t>(step.num_tokens) * args.num_heads, LATENT_DIM, LATENT_DIM, LATENT_ROWS)) return false;
  device.first_use(kernel, [&] { allow_shared(kernel, device.shared_block), prefer_shared(kernel); });
  launch(kernel, std::min(units * plan.splits, device.multiprocessors), LATENT_THREADS, LatentShared::bytes, args, step, plan, queries, keys);
  if (plan.splits > 1) merge_general(launch, args, step, plan);
  return true;
}

}  // namespace pen
