// Launches the kernel that finishes heads.
#include "heads.cuh"

namespace pen {

void finish_heads(const Launch& launch, const Heads& p, const StepView& step) {
  if (step.num_tokens == 0) return;
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw CudaError(cudaErrorInvalidValue, what);
  };
  require(p.num_heads >= 1 && p.dim >= 1 && p.dim <= HEADS_DIM, "finish_heads: head size");
  require(static_cast<long long>(step.num_tokens) * p.num_heads < 1ll << 31, "finish_heads: heads of a step");
  require(p.norm_dim >= 0 && p.norm_dim <= p.dim, "finish_heads: elements of the norm");
  require(p.rope == nullptr || (p.rope_dim % 2 == 0 && p.rope_dim >= 0 && p.rope_first >= 0 && p.rope_first + p.rope_dim <= p.dim),
          "finish_heads: rotated elements");
  require(p.temperature_scale == 0.0f || p.temperature_floor > 0.0f, "finish_heads: temperature");
  require((p.out != nullptr) + (p.out16 != nullptr) + (p.pages != nullptr) == 1, "finish_heads: outputs");
  require(p.pages == nullptr || (p.block_size >= 1 && p.page_dim >= p.dim), "finish_heads: pages");
  const HeadsPlan plan = choose_heads(step.num_tokens, p.num_heads, p.dim);
  const auto kernel = plan.wide        ? finish_heads_kernel<HEADS_THREADS, 1>
                      : plan.each == 1 ? finish_heads_kernel<WARP, 1>
                                       : finish_heads_kernel<WARP, HEADS_EACH>;
  launch(kernel, plan.blocks, HEADS_THREADS, plan.bytes, p, step);
}

}  // namespace pen
