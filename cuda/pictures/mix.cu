// Launches what mixes rows of a picture encoder's step.
#include "mix.cuh"

namespace pen {

void mix(const Launch& launch, const Mix& args, const MixTerms& terms, int rows) {
  if (rows > 0) launch(mix_kernel, dim3(rows, args.parts), dim3(MIX_THREADS), 0, args, terms);
}

void write_patches(const Launch& launch, const Patches& args, const uint8_t* pixels, const pen_patch* patches, int rows) {
  if (rows > 0) launch(patches_kernel, dim3(rows), dim3(MIX_THREADS), 0, args, pixels, patches);
}

}  // namespace pen
