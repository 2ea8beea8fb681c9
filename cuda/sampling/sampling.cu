// Launches sampling: two passes of many blocks over all rows, then one block per row draws. If rows share a slot, their ids are accepted in
// the end.
#include "drafts.cuh"
#include "draw.cuh"
#include "logprobs.cuh"

namespace pen {

size_t sampler_workspace(int num_rows, int vocab) { return choose_sampling(num_rows, vocab, false).bytes; }

void sample(const Launch& launch, const SamplerState& state, const Sample& args) {
  if (args.num_rows == 0) return;
  const SamplePlan plan = choose_sampling(args.num_rows, state.vocab, args.drafts.next != nullptr);
  if (state.vocab > MOST_VOCAB || args.workspace_bytes < plan.bytes) {
    throw CudaError(cudaErrorInvalidValue, "sampling: vocabulary or workspace");
  }
  char* const at = static_cast<char*>(args.workspace);
  const PassResults results{reinterpret_cast<uint64_t*>(at + plan.keys), reinterpret_cast<double*>(at + plan.sums),
                            reinterpret_cast<uint64_t*>(at + plan.masses), reinterpret_cast<uint32_t*>(at + plan.counts),
                            plan.vocab_tiles, plan.sum_blocks};
  const auto draw_all = [&](auto largest, auto weigh, auto draw) {
    const dim3 all(plan.vocab_tiles, args.num_rows);
    launch(largest, all, dim3(PASS_THREADS), 0, state, args, results);
    launch(weigh, all, dim3(PASS_THREADS), 0, state, args, results);
    launch(draw, dim3(args.num_rows), dim3(SELECT_THREADS), 0, state, args, results);
  };
  if (!plan.drafts) return draw_all(largest_kernel<false>, weigh_kernel<false>, draw_kernel<false>);
  draw_all(largest_kernel<true>, weigh_kernel<true>, draw_kernel<true>);
  launch(accept_kernel, dim3(plan.accept_blocks), dim3(DRAFT_THREADS), 0, state, args);
}

void find_drafts(const Launch& launch, const SamplerState& state, const int32_t* inputs, int num_tokens, const int32_t* rows, int num_rows,
                 int32_t* next) {
  const dim3 grid(ceil_div(num_rows, DRAFT_THREADS));
  launch(find_drafts_kernel, grid, dim3(DRAFT_THREADS), 0, state, inputs, num_tokens, rows, num_rows, next);
}

void logprobs(const Launch& launch, const SamplerState& state, const Logprobs& args) {
  if (args.num_rows > 0) launch(logprobs_kernel, dim3(args.num_rows), dim3(SELECT_THREADS), 0, state, args);
}

}  // namespace pen
