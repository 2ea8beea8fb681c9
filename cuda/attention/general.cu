// Launches general attention, as choose_general() decides.
#include <algorithm>

#include "general.cuh"
#include "general_merge.cuh"
#include "latent.h"

namespace pen {
namespace {

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

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

GeneralShape shape_of(const GeneralAttention& p, const StepView& step) {
  GeneralShape shape;
  shape.num_heads = p.num_heads, shape.num_kv_heads = p.kv.num_kv_heads, shape.head_dim = p.head_dim, shape.value_dim = p.value_dim;
  shape.k_dim = p.kv.k_dim, shape.v_dim = p.kv.v_dim;
  shape.window = p.window, shape.window_kind = p.window_kind, shape.bidirectional = p.bidirectional;
  shape.has_runs = p.run_sight != RunSight::CAUSAL && step.runs != nullptr;
  shape.biased = p.soft_cap != 0.0f || p.alibi != 0.0f || p.sinks != nullptr;
  shape.one_cache = p.kv.k == p.kv.v;
  shape.packed_query = p.ld_q == p.num_heads * p.head_dim;
  shape.wide_query = p.head_dim % 8 == 0 && p.ld_q % 8 == 0 && aligned(p.q, 16);
  shape.even_out = p.value_dim % 2 == 0 && p.ld_out % 2 == 0 && aligned(p.out, 4);
  shape.workspace_bytes = p.workspace_bytes;
  shape.num_tokens = step.num_tokens, shape.num_seqs = step.num_seqs, shape.max_query = step.max_query;
  shape.max_context = step.max_context;
  return shape;
}

GeneralChoice choose_on(const Device& device, const GeneralShape& shape) {
  GeneralDevice of{device};
  of.warpgroups = true, of.clusters = device.multiprocessors;
  const GeneralChoice choice = choose_general(of, shape);
  if (choice.kernel == GeneralKernel::ANY) return choice;
  // Asked only if the answer matters, because both questions load a kernel.
  of.warpgroups = has_latent(device);
  if (of.warpgroups && choice.kernel == GeneralKernel::CLUSTER) of.clusters = latent_clusters(device, choice.row_tiles);
  return choose_general(of, shape);
}

template <int M, int VP>
void run(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralChoice& choice) {
  if (choice.plan.buffers < 1) throw CudaError(cudaErrorInvalidValue, "general attention: shared memory");
  const auto kernel = attention_general_kernel<M, VP>;
  set_up(launch.device, kernel);
  launch(kernel, dim3(choice.grid[0], choice.grid[1], choice.grid[2]), choice.threads, choice.bytes, args, step, choice.plan);
}

template <int M>
void with_values(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralChoice& choice) {
  switch (choice.value_pieces) {
    case 1: return run<M, 1>(launch, args, step, choice);
    case 2: return run<M, 2>(launch, args, step, choice);
    case 4: return run<M, 4>(launch, args, step, choice);
    default: return run<M, 8>(launch, args, step, choice);
  }
}

void merge_parts(const Launch& launch, const GeneralAttention& args, const StepView& step, const GeneralChoice& choice) {
  const dim3 grid(step.max_query * (args.num_heads / args.kv.num_kv_heads), args.kv.num_kv_heads, step.num_seqs);
  const auto kernel = choice.merge_batch == 16 ? attention_general_merge_kernel<16> : attention_general_merge_kernel<8>;
  launch(kernel, grid, GENERAL_MERGE_THREADS, 0, args, step, choice.plan);
}

}  // namespace

void attention_general(const Launch& launch, const GeneralAttention& args, const StepView& step) {
  if (step.num_seqs == 0 || step.num_tokens == 0 || step.max_query < 1) return;
  check_shape(args);
  GeneralShape shape = shape_of(args, step);
  GeneralChoice choice = choose_on(launch.device, shape);
  if (choice.kernel != GeneralKernel::ANY && !launch_latent(launch, args, step, choice)) {
    shape.boxed = false;
    choice = choose_on(launch.device, shape);
  }
  if (choice.kernel == GeneralKernel::ANY) {
    choice.row_tiles == 2 ? with_values<2>(launch, args, step, choice) : with_values<1>(launch, args, step, choice);
  }
  if (choice.merge_batch > 0) merge_parts(launch, args, step, choice);
}

}  // namespace pen
