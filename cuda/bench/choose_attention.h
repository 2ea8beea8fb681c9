// Checks the decisions about attention (choose.cu): the kernel's limits hold, and every key belongs to a block.
#pragma once

#include <algorithm>

#include "../attention/choose.h"
#include "../attention/general_choose.h"
#include "choose.h"
#include "models.h"

namespace pen {

constexpr int CONTEXTS[] = {1, 64, 500, 513, 1024, 1025, 4096, 8192, 32768, 131072};

inline AttentionDevice attention_device(const ProductDevice& device) {
  AttentionDevice of{device};
  of.clusters = of.wide_clusters = of.warpgroups = device.warpgroups;
  return of;
}

inline void check_decode(const AttentionDevice& device, const AttentionShape& shape, const AttentionPlan& plan, const std::string& where) {
  const int rows = shape.num_seqs;
  const DecodePlan& decode = plan.decode;
  const int tiles = ceil_div(shape.max_context, KEYS), row_blocks = ceil_div(shape.group(), decode.rows);
  expect(plan.kernel < AttentionKernel::WIDE, "a prompt's kernel", where, rows);
  expect(plan.threads > 0 && plan.threads <= 1024 && plan.bytes <= size_t(device.shared_block), "limits of a block", where, rows);
  expect(decode.rows > 0 && decode.rows <= ROWS, "heads of a block", where, rows);
  expect(device.clusters || plan.kernel == AttentionKernel::TEAMS || plan.kernel == AttentionKernel::WARPS, "sm_90", where, rows);
  if (plan.kernel == AttentionKernel::CLUSTER) {
    const bool windowed = shape.window != 0;
    expect(plan.cluster <= CLUSTER_TILES && (windowed || plan.cluster >= tiles), "tiles without a block", where, rows);
  } else if (plan.kernel != AttentionKernel::PERSISTENT) {
    const int each = plan.kernel == AttentionKernel::KV_SPLITS ? KV_SPLIT_TILES : 1;
    expect(decode.share * (plan.grid[0] / each) >= decode.max_kv_splits, "KV splits without a block", where, rows);
  }
  if (plan.kernel != AttentionKernel::PERSISTENT) {
    expect(plan.grid[1] == shape.num_kv_heads * row_blocks && plan.grid[2] == shape.num_seqs, "heads without a block", where, rows);
  }
  expect(plan.grid[0] % plan.cluster == 0, "clusters", where, rows);
  const size_t partials = size_t(shape.num_seqs) * shape.num_heads * decode.max_kv_splits * (shape.head_dim + 2) * 4;
  expect(!plan.merges || partials <= shape.workspace_bytes, "workspace", where, rows);
}

// Prints the kernels of an attention for growing contexts of some sequences with one row each.
inline void check_attention(const Device& on, const RealModel& model) {
  AttentionShape shape;
  const AttentionDevice device = attention_device(on.device);
  shape.num_heads = model.heads, shape.num_kv_heads = model.kv_heads, shape.head_dim = model.head_dim, shape.window = model.window;
  const std::string where = std::string(on.name) + ", " + model.name + ", attention";
  shape.max_query = 1, shape.fresh = shape.by_eighths = true;
  for (int seqs : {1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, MOST_ROWS}) {
    shape.num_seqs = seqs;
    Line line;
    for (int context : CONTEXTS) {
      shape.max_context = context;
      shape.workspace_bytes = attention_workspace(device, seqs, model.heads, model.kv_heads, model.head_dim, context);
      const AttentionPlan plan = choose_decode(device, shape);
      check_decode(device, shape, plan, where);
      const KernelRow<AttentionKernel>& row = attention_row(plan.kernel);
      expect_row(row, plan.kernel, where, seqs);
      line.add(context, row.name);
    }
    if (seqs == 1 || seqs == 8 || seqs == 64 || seqs == 256) line.print(where + " of " + std::to_string(seqs) + " over");
  }
}

// Prints the kernels of prompts of 2 to MOST_ROWS rows.
inline void check_prompts(const Device& on, const RealModel& model) {
  AttentionShape shape;
  const AttentionDevice device = attention_device(on.device);
  shape.num_heads = model.heads, shape.num_kv_heads = model.kv_heads, shape.head_dim = model.head_dim, shape.window = model.window;
  const std::string where = std::string(on.name) + ", " + model.name + ", prompts";
  Line line;
  for (int rows = 2; rows <= MOST_ROWS; rows++) {
    shape.num_seqs = 1, shape.max_query = shape.max_context = rows;
    shape.workspace_bytes = attention_workspace(device, 1, model.heads, model.kv_heads, model.head_dim, rows);
    const AttentionPlan plan = choose_prefill(device, shape);
    const KernelRow<AttentionKernel>& row = attention_row(plan.kernel);
    expect_row(row, plan.kernel, where, rows);
    expect(plan.kernel >= AttentionKernel::WIDE && plan.grid[0] > 0, "a kernel for one row", where, rows);
    if (plan.kernel == AttentionKernel::TILES) {
      const int covered = plan.grid[0] * ROWS * plan.threads / WARP;
      expect(covered >= rows * shape.group() && plan.prefill.buffers >= 1, "rows without a block", where, rows);
      expect(plan.bytes <= size_t(device.shared_block), "shared memory of a block", where, rows);
    } else {
      expect(device.warpgroups && rows * shape.group() >= WIDE_BLOCK_ROWS, "warpgroup products", where, rows);
    }
    line.add(rows, row.name);
  }
  line.print(where);
}

// Prints the kernels of general attention, for one sequence with 1 to MOST_ROWS rows.
inline void check_general(const Device& on, const GeneralModel& model) {
  GeneralDevice device{on.device};
  device.warpgroups = on.device.warpgroups, device.clusters = on.device.multiprocessors / KV_SPLIT_TILES;
  GeneralShape shape;
  shape.num_heads = model.heads, shape.num_kv_heads = model.kv_heads, shape.head_dim = shape.k_dim = model.key_dim;
  shape.value_dim = model.value_dim, shape.v_dim = model.one_cache ? model.key_dim : model.value_dim;
  shape.one_cache = model.one_cache, shape.biased = model.biased, shape.bidirectional = model.bidirectional, shape.num_seqs = 1;
  for (int context : {MOST_ROWS, 131072}) {
    const std::string where = std::string(on.name) + ", " + model.name + ", general attention over " + std::to_string(context);
    Line line;
    for (int rows = 1; rows <= MOST_ROWS; rows++) {
      shape.num_tokens = shape.max_query = rows, shape.max_context = context;
      shape.workspace_bytes = attention_general_workspace(device, rows, model.heads, model.kv_heads, model.value_dim, context);
      const GeneralChoice choice = choose_general(device, shape);
      const KernelRow<GeneralKernel>& row = general_row(choice.kernel);
      expect_row(row, choice.kernel, where, rows);
      expect(choice.kernel == GeneralKernel::ANY || device.warpgroups, "warpgroup products on a device without them", where, rows);
      expect(choice.bytes <= size_t(device.shared_block) && choice.plan.slices * GENERAL_VALUES >= model.value_dim, "limits", where, rows);
      expect(choice.plan.row_blocks * choice.plan.rows >= rows * shape.group(), "rows without a block", where, rows);
      expect((choice.merge_batch > 0) == (choice.plan.splits > 1), "partial results that nobody merges", where, rows);
      line.add(rows, row.name);
    }
    line.print(where);
  }
}

}  // namespace pen
