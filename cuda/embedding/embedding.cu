// Launches token embeddings.
#include "embedding.cuh"

namespace pen {

void embed(const Launch& launch, const Embed& args) {
  launch(embed_kernel, dim3(ceil_div(args.table.k_tiles() * 4, EMBED_THREADS), args.num_tokens), dim3(EMBED_THREADS), 0, args);
}

void add_slice(const Launch& launch, const AddSlice& args, const int32_t* inputs, int num_tokens) {
  launch(add_slice_kernel, dim3(ceil_div(args.hidden, EMBED_THREADS), num_tokens), dim3(EMBED_THREADS), 0, args, inputs);
}

}  // namespace pen
