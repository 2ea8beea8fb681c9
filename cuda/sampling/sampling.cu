// Launches sampling: two passes of many blocks over all rows, then one block per row draws. If rows share a slot, their ids are accepted in
// the end.
#include "drafts.cuh"
#include "draw.cuh"
#include "logprobs.cuh"

namespace pen {

namespace {

PassResults place_results(void* workspace, int num_rows, int vocab, size_t* bytes) {
  PassResults results{};
  results.vocab_tiles = ceil_div(vocab, PASS_IDS);
  results.sum_blocks = ceil_div(vocab, SUM_BLOCK);
  char* at = static_cast<char*>(workspace);
  size_t offset = 0;
  const auto take = [&](size_t size) {
    char* p = at + offset;
    offset += round_up(size, 256);
    return p;
  };
  results.keys = reinterpret_cast<uint64_t*>(take(sizeof(uint64_t) * num_rows * results.vocab_tiles));
  results.sums = reinterpret_cast<double*>(take(sizeof(double) * num_rows * results.sum_blocks));
  results.masses = reinterpret_cast<uint64_t*>(take(sizeof(uint64_t) * num_rows * EXPONENTS));
  results.counts = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t) * num_rows * EXPONENTS));
  *bytes = offset;
  return results;
}

}  // namespace

size_t sampler_workspace(int num_rows, int vocab) {
  size_t bytes = 0;
  place_results(nullptr, num_rows, vocab, &bytes);
  return bytes;
}

// Takes vocabularies of up to 2^19 ids, because the histograms' 32-bit sums hold no more.
void sample(const Launch& launch, const SamplerState& state, const Sample& args) {
  if (args.num_rows == 0) return;
  size_t bytes = 0;
  const PassResults results = place_results(args.workspace, args.num_rows, state.vocab, &bytes);
  if (state.vocab > 1 << 19 || args.workspace_bytes < bytes) throw CudaError(cudaErrorInvalidValue, "sampling: vocabulary or workspace");
  const auto draw_all = [&](auto largest, auto weigh, auto draw) {
    const dim3 all(results.vocab_tiles, args.num_rows);
    launch(largest, all, dim3(PASS_THREADS), 0, state, args, results);
    launch(weigh, all, dim3(PASS_THREADS), 0, state, args, results);
    launch(draw, dim3(args.num_rows), dim3(SELECT_THREADS), 0, state, args, results);
  };
  if (!args.drafts.next) return draw_all(largest_kernel<false>, weigh_kernel<false>, draw_kernel<false>);
  draw_all(largest_kernel<true>, weigh_kernel<true>, draw_kernel<true>);
  launch(accept_kernel, dim3(ceil_div(args.num_rows, DRAFT_THREADS)), dim3(DRAFT_THREADS), 0, state, args);
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
