// Launches copies of blocks, and pooling of rows into vectors.
#include "prompt.cuh"

namespace pen {

void copy_blocks(const Launch& launch, const uint32_t* copies, int num_copies, void* pages, size_t block_bytes) {
  launch(copy_blocks_kernel, dim3(num_copies), dim3(PROMPT_THREADS), 0, copies, static_cast<uint4*>(pages), block_bytes / sizeof(uint4));
}

void final_rows(const Launch& launch, const int32_t* rows, int num_rows, const FinalNorm& norm, float* out) {
  launch(finish_kernel, dim3(num_rows), dim3(PROMPT_THREADS), 0, rows, norm, out);
}

void pool_rows(const Launch& launch, const Pooled* pooled, int num_vectors, const float* rows, double* sums, float* out, int hidden) {
  launch(pool_kernel, dim3(ceil_div(hidden, PROMPT_THREADS), num_vectors), dim3(PROMPT_THREADS), 0, pooled, rows, sums, out, hidden);
}

}  // namespace pen
