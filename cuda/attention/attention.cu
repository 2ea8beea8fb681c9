// Launches attention and the kernels before it, as choose() decides.
#include <algorithm>

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

void check_shape(const Attention& args) {
  const int page = args.kv.block_size;
  if (!fits_attention(args.kv.head_dim)) throw CudaError(cudaErrorInvalidValue, "attention: head size");
  if (args.kv.num_kv_heads < 1 || args.num_heads % args.kv.num_kv_heads != 0) throw CudaError(cudaErrorInvalidValue, "attention: heads");
  if (page < PAGE_UNIT || page % PAGE_UNIT != 0) throw CudaError(cudaErrorInvalidValue, "attention: block size");
  if (!(args.scale > 0.0f)) throw CudaError(cudaErrorInvalidValue, "attention: scale");
  if (args.out_stride % 2 != 0) throw CudaError(cudaErrorInvalidValue, "attention: stride of the output");
}

AttentionShape shape_of(const Attention& args, const StepView& step, const QkvFinish* fresh) {
  AttentionShape shape;
  shape.num_heads = args.num_heads, shape.num_kv_heads = args.kv.num_kv_heads, shape.head_dim = args.kv.head_dim;
  shape.window = args.window, shape.workspace_bytes = args.workspace_bytes;
  shape.num_seqs = step.num_seqs, shape.max_query = step.max_query, shape.max_context = step.max_context;
  shape.fresh = fresh != nullptr, shape.by_eighths = fresh != nullptr && takes_qkv_rows(*fresh);
  return shape;
}

// `early`: the next kernel may start before this one's wait, because until its own wait it reads only what earlier steps wrote.
void launch_qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step, bool early) {
  if (takes_qkv_rows(args)) {
    const int eighths = (args.num_heads + 2 * args.kv.num_kv_heads) * args.kv.head_dim / 8;
    const auto kernel = step.grid ? qkv_rows_kernel<true> : qkv_rows_kernel<false>;
    return launch(kernel, dim3(step.num_tokens, ceil_div(eighths, QKV_ROW_THREADS)), QKV_ROW_THREADS, 0, args, step, early);
  }
  const long long items = static_cast<long long>(step.num_tokens) * (args.num_heads + 2 * args.kv.num_kv_heads);
  const auto kernel = step.grid ? qkv_finish_kernel<true> : qkv_finish_kernel<false>;
  launch(kernel, static_cast<unsigned>((items + QKV_WARPS - 1) / QKV_WARPS), WARP * QKV_WARPS, 0, args, step, early);
}

void check_heads(const QkvFinish& args) {
  const int head_dim = args.kv.head_dim;
  if (head_dim % 2 != 0 || head_dim > 2 * WARP * QKV_PAIRS || args.rope_dim % 2 != 0 || args.rope_dim > head_dim) {
    throw CudaError(cudaErrorInvalidValue, "qkv_finish: head size");
  }
}

bool map_both(CUtensorMap& keys, CUtensorMap& values, const KvView& kv) {
  return map_pages(keys, kv.k, kv, kv.head_dim) && map_pages(values, kv.v, kv, kv.head_dim);
}

// A plan and what its kernel copies from. Plans again without boxes if the driver cannot describe the pages as boxes.
struct Chosen {
  AttentionPlan plan;
  CUtensorMap keys, values;
  template <class F>
  Chosen(const Attention& args, AttentionShape shape, F choose) : plan(choose(shape)) {
    if (!plan.takes_boxes() || map_both(keys, values, args.kv)) return;
    shape.boxed = false;
    plan = choose(shape);
  }
  dim3 grid() const { return dim3(plan.grid[0], plan.grid[1], plan.grid[2]); }
};

// Whether the device runs clusters of CLUSTER_TILES blocks of the kernel, which is more than every device allows.
template <int D, bool EXTRAS>
bool runs_wide_clusters(const Device& device) {
  const auto kernel = attention_cluster_kernel<D, EXTRAS>;
  set_up(device, kernel);
  return device.known(kernel, [&] {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) return cudaGetLastError(), 0;
    const size_t shared = std::min<size_t>(ClusterShared<D>::bytes(ROWS, CLUSTER_TILES), device.shared_block);
    int clusters = 0;
    const cudaError_t status = active_clusters(clusters, kernel, CLUSTER_TILES, CLUSTER_TILES, WARP * CLUSTER_WARPS, shared);
    return status == cudaSuccess ? clusters : (cudaGetLastError(), 0);
  }) > 0;
}

template <int D, bool EXTRAS>
AttentionPlan choose_on(const Device& device, const AttentionShape& shape) {
  AttentionDevice of{device};
  of.clusters = of.wide_clusters = has_clusters(device);
  const AttentionPlan plan = choose_decode(of, shape);
  if constexpr (D % 64 == 0) {
    // Asked only if the answer matters, because the question loads the kernel.
    of.wide_clusters = plan.cluster <= PORTABLE_TILES || runs_wide_clusters<D, EXTRAS>(device);
    if (!of.wide_clusters) return choose_decode(of, shape);
  }
  return plan;
}

template <int D, bool EXTRAS>
void decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  const auto choose = [&](const AttentionShape& shape) { return choose_on<D, EXTRAS>(launch.device, shape); };
  const Chosen chosen(args, shape_of(args, step, fresh), choose);
  const AttentionPlan& plan = chosen.plan;
  if (plan.fresh_before) launch_qkv_finish(launch, *fresh, step, true);
  const QkvFinish heads = fresh && !plan.fresh_before ? *fresh : QkvFinish{};
  Launch clustered = launch;
  clustered.cluster = plan.cluster;
  const auto start = [&](auto kernel, const auto&... maps) {
    set_up(launch.device, kernel);
    clustered(kernel, chosen.grid(), plan.threads, plan.bytes, args, step, plan.decode, heads, maps...);
  };
  const auto start_boxed = [&](auto kernel) { start(kernel, chosen.keys, chosen.values); };
  if constexpr (D % 64 == 0) {
    switch (plan.kernel) {
      case AttentionKernel::CLUSTER:
      case AttentionKernel::KV_SPLITS: start(attention_cluster_kernel<D, EXTRAS>); break;
      case AttentionKernel::PERSISTENT: start_boxed(attention_persistent_kernel<D, EXTRAS>); break;
      case AttentionKernel::LONG: start_boxed(attention_long_kernel<D, EXTRAS>); break;
      case AttentionKernel::TEAMS: start(attention_decode_kernel<D, 4, EXTRAS>); break;
      default: start(attention_decode_kernel<D, 1, EXTRAS>);
    }
  } else {
    start(attention_decode_kernel<D, 1, EXTRAS>);
  }
  if (!plan.merges) return;
  launch(attention_merge_kernel<EXTRAS>, dim3(step.num_seqs, args.num_heads), merge_threads(args.kv.head_dim), 0, args, step, plan.decode);
}

// Whether this device runs the sm_90a kernel for prompts with heads of this size.
template <int D, bool EXTRAS>
bool has_warpgroups(const Device& device) {
  if constexpr (D == 64 || D == 128) return device.has_sm90a(attention_wide_kernel<D, EXTRAS>);
  if (D != BOXED_DIM || BoxedShared::bytes > static_cast<size_t>(device.shared_block)) return false;
  return device.has_sm90a(attention_boxed_kernel);
}

template <int D, bool EXTRAS>
void prefill(const Launch& launch, const Attention& args, const StepView& step) {
  AttentionDevice device{launch.device};
  device.warpgroups = has_warpgroups<D, EXTRAS>(launch.device);
  const auto choose = [&](const AttentionShape& shape) { return choose_prefill(device, shape); };
  const Chosen chosen(args, shape_of(args, step, nullptr), choose);
  const AttentionPlan& plan = chosen.plan;
  if constexpr (D == 64 || D == 128) {
    if (plan.kernel == AttentionKernel::WIDE) {
      const auto kernel = attention_wide_kernel<D, EXTRAS>;
      set_up(launch.device, kernel);
      return launch(kernel, chosen.grid(), WIDE_THREADS, WideShared<D>::bytes, args, step, chosen.keys, chosen.values);
    }
  } else if constexpr (D == BOXED_DIM) {
    if (plan.kernel == AttentionKernel::BOXED) {
      const auto kernel = attention_boxed_kernel;
      set_up(launch.device, kernel);
      const int width = ceil_div(step.max_query * (args.num_heads / args.kv.num_kv_heads), WIDE_BLOCK_ROWS);
      return launch(kernel, chosen.grid(), WIDE_THREADS, BoxedShared::bytes, args, step, width, chosen.keys, chosen.values);
    }
  }
  const auto kernel = attention_prefill_kernel<D, EXTRAS>;
  set_up(launch.device, kernel);
  launch(kernel, chosen.grid(), plan.threads, plan.bytes, args, step, plan.prefill);
}

}  // namespace

void qkv_finish(const Launch& launch, const QkvFinish& args, const StepView& step) {
  if (step.num_tokens == 0) return;
  check_heads(args);
  launch_qkv_finish(launch, args, step, false);
}

bool attention_extras(int head_dim) {
  return fits_attention(head_dim) && with_head_dim(head_dim, [](auto d) { return has_extras<decltype(d)::value>; });
}

void attention_decode(const Launch& launch, const Attention& args, const StepView& step, const QkvFinish* fresh) {
  if (step.num_seqs == 0) return;
  check_shape(args);
  if (fresh) check_heads(*fresh);
  if (fresh && (fresh->q != args.q || fresh->kv.k != args.kv.k || fresh->kv.v != args.kv.v)) {
    throw CudaError(cudaErrorInvalidValue, "attention: fresh rows go to other arrays");
  }
  with_shape(args, [&](auto d, auto extras) { decode<decltype(d)::value, decltype(extras)::value>(launch, args, step, fresh); });
}

void attention_prefill(const Launch& launch, const Attention& args, const StepView& step) {
  if (step.num_seqs == 0 || step.max_query <= 1) return;
  check_shape(args);
  with_shape(args, [&](auto d, auto extras) { prefill<decltype(d)::value, decltype(extras)::value>(launch, args, step); });
}

}  // namespace pen
