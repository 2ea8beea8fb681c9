// Decides which kernels compute attention, and how they spread a step over blocks: pure functions of its shape and of the device, compiled
// by a host's compiler, too. The table of the kernels is in choose.cu. No decision changes a bit of the result.
#pragma once

#include <type_traits>

#include "../device/kernel_row.h"
#include "layout.h"

namespace pen {

// A device as attention sees it.
struct AttentionDevice : DeviceShape {
  bool clusters = false;       // it runs the kernels of sm_90
  bool wide_clusters = false;  // its clusters may have CLUSTER_TILES blocks
  bool warpgroups = false;     // it runs the kernels of sm_90a
};

struct AttentionShape {
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  uint32_t window = 0;  // 0: none
  size_t workspace_bytes = 0;
  bool boxed = true;  // pages can be copied as boxes
  int num_seqs = 0, max_query = 0, max_context = 0;  // of the step
  bool fresh = false;     // the kernel finishes the step's fresh heads
  bool by_eighths = false;  // qkv_rows.cuh can finish these

  int group() const { return num_heads / num_kv_heads; }
};

// The sizes of heads for which kernels are compiled. Heads between two sizes are padded.
constexpr int MOST_HEAD_DIM = 256;
inline bool fits_attention(int head_dim) { return head_dim >= 8 && head_dim <= MOST_HEAD_DIM && head_dim % 8 == 0; }
// Calls f(std::integral_constant<int, D>) with the padded size of a head that fits.
template <class F>
auto with_head_dim(int head_dim, F f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 80) return f(std::integral_constant<int, 80>{});
  if (head_dim <= 96) return f(std::integral_constant<int, 96>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, MOST_HEAD_DIM>{});
}

enum class AttentionKernel : int { CLUSTER, PERSISTENT, KV_SPLITS, LONG, TEAMS, WARPS, WIDE, BOXED, TILES };
constexpr int ATTENTION_KERNELS = 9;
const KernelRow<AttentionKernel>& attention_row(AttentionKernel kernel);

// A launch. WIDE and BOXED always have the same threads and shared memory, which their headers state.
struct AttentionPlan {
  AttentionKernel kernel;
  DecodePlan decode{};    // one row per sequence
  PrefillPlan prefill{};  // TILES
  int grid[3] = {1, 1, 1};
  int threads = 0;
  size_t bytes = 0;           // shared memory
  int cluster = 1;            // blocks of a cluster
  bool merges = false;        // attention_merge_kernel follows
  bool fresh_before = false;  // the kernel of qkv_rows.cuh or qkv.cuh precedes this one, which finishes no fresh head

  bool takes_boxes() const {
    return kernel == AttentionKernel::PERSISTENT || kernel == AttentionKernel::LONG || kernel == AttentionKernel::WIDE ||
           kernel == AttentionKernel::BOXED;
  }
};

// Sequences with one row.
AttentionPlan choose_decode(const AttentionDevice& device, const AttentionShape& shape);
// Sequences with more rows.
AttentionPlan choose_prefill(const AttentionDevice& device, const AttentionShape& shape);

// Bytes of workspace that a step with these bounds needs.
size_t attention_workspace(const DeviceShape& device, int num_seqs, int num_heads, int num_kv_heads, int head_dim, int max_context);

}  // namespace pen
