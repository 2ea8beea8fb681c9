// Launches token embeddings.
#include "embedding.cuh"

namespace pen {

void embed(const Launch& launch, const Embed& args) {
  launch(embed_kernel, dim3(ceil_div(args.table.k_tiles() * 4, EMBED_THREADS), args.num_tokens), dim3(EMBED_THREADS), 0, args);
}

}  // namespace pen
