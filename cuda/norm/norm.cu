// Launches norms.
#include "layer.cuh"
#include "rms.cuh"

namespace pen {

void rms_norm(const Launch& launch, const Norm& norm, const int32_t* gather, int num_rows, __half* h, int ldh) {
  launch(norm_kernel, dim3(num_rows), dim3(NORM_THREADS), 0, norm, gather, h, ldh);
}

void layer_norm(const Launch& launch, const LayerNorm& norm, int num_rows) {
  launch(layer_norm_kernel, dim3(num_rows), dim3(NORM_THREADS), 0, norm);
}

}  // namespace pen
