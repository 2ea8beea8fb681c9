// Matrices from which the tensor memory accelerator copies boxes (cluster.cuh).
#pragma once

#include <cuda_fp16.h>

#include <climits>
#include <type_traits>

#include "driver.h"

namespace pen {

// Describes a matrix [rows, columns] of halves or floats whose rows are `stride` elements apart. A box has `box_rows` rows of 128 or 64
// bytes. In shared memory, the 16-byte pieces of a row are permuted by bits of their address (the swizzle of that many bytes). Elements
// outside the matrix read as zero and are not written. Returns false if the matrix is misaligned or too large, or if the driver has no such
// function.
template <class T>
bool map_boxes(CUtensorMap& map, T* data, size_t rows, size_t columns, size_t stride, int box_rows, int box_bytes = 128) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * sizeof(T) % 16 == 0;
  if (encode == nullptr || !aligned || rows > INT_MAX || columns > INT_MAX) return false;
  constexpr bool HALVES = sizeof(T) == 2;
  const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {stride * sizeof(T)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_bytes / sizeof(T)), static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const auto type = HALVES ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const auto swizzle = box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return encode(&map, type, 2, const_cast<std::remove_const_t<T>*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Describes rows of heads of `dim` halves: head h of row r begins at element r · ld + h · stride. A box has `box_rows` rows of one head, of
// 32, 64 or 128 bytes in the swizzle of that many bytes. Elements beyond a head, a row or the matrix read as zero. Returns false as above.
inline bool map_heads(CUtensorMap& map, const __half* data, int rows, int ld, int heads, int stride, int dim, int box_rows, int box_bytes) {
  static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld % 8 == 0 && stride % 8 == 0;
  if (encode == nullptr || !aligned) return false;
  const cuuint64_t sizes[3] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(rows)};
  const cuuint64_t strides[2] = {2 * cuuint64_t(stride), 2 * cuuint64_t(ld)};
  const cuuint32_t box[3] = {cuuint32_t(box_bytes / 2), 1, cuuint32_t(box_rows)}, steps[3] = {1, 1, 1};
  const auto swizzle = box_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_32B;
  return encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<__half*>(data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace pen
