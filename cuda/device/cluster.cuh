// Thread block clusters, and copies of boxes by the tensor memory accelerator (sm_90).
#pragma once

#include <cuda.h>

#include "kernel.cuh"

namespace pen {

// Prefetches the descriptor of a matrix, which the first copy of a box would otherwise wait for.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}
// Starts to copy the box at element `x` of row `y`, and counts its bytes at the barrier. Elements beyond the rows' ends become zero.
__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap& map, int x, int y, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared),
               "l"(&map), "r"(x), "r"(y), "r"(shared_of(barrier))
               : "memory");
#endif
}
// The same in a matrix of heads: element `x` of head `y` of row `z`.
__device__ __forceinline__ void copy_box(uint32_t shared, const CUtensorMap& map, int x, int y, int z, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_of(barrier))
               : "memory");
#endif
}
// Copies a box into every block of `mask`, where the box and its barrier have the same addresses as in this block.
__device__ __forceinline__ void copy_box_to(uint16_t mask, uint32_t shared, const CUtensorMap& map, int x, int y, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(&map), "r"(x), "r"(y), "r"(shared_of(barrier)), "h"(mask)
      : "memory");
#endif
}
// Starts to copy consecutive bytes, and counts them at the barrier. Size and addresses are multiples of 16.
__device__ __forceinline__ void copy_bytes(uint32_t shared, const void* global, int bytes, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(shared_of(barrier))
               : "memory");
#endif
}
// Starts to write a box from shared memory, or to add it float by float. Rows and columns outside the matrix are left out. The box belongs
// to the group of copies that this thread commits next.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int x, int y, uint32_t shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y), "r"(shared)
               : "memory");
#endif
}
__device__ __forceinline__ void add_box(const CUtensorMap& map, int x, int y, uint32_t shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y),
               "r"(shared)
               : "memory");
#endif
}
__device__ __forceinline__ void boxes_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Waits until the boxes that this thread committed have been read from shared memory (boxes_wait_read) or written (boxes_wait).
__device__ __forceinline__ void boxes_wait_read() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void boxes_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
// Makes this thread's writes, in any memory, visible to copies of boxes that start after a barrier.
__device__ __forceinline__ void fence_all_proxies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// Makes the barriers that this thread has initialised ready for copies.
__device__ __forceinline__ void fence_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Maps an address in this block's shared memory to the same place in the cluster's block `rank`.
__device__ __forceinline__ uint32_t in_block(uint32_t shared, int rank) {
  uint32_t at = shared;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
#endif
  return at;
}
// Stores two floats into another block's shared memory, where a barrier counts them. This saves a fence, which would cost more than
// everything else.
__device__ __forceinline__ void store_cluster(uint32_t at, float x, float y, uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(at), "f"(x), "f"(y), "r"(barrier)
               : "memory");
#endif
}
// Arrives at a barrier of any block of the cluster, given by its address from in_block(). Orders no writes for other blocks: a fence would
// cost more than the product that the barrier waits for.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Splits the cluster's barrier in two: cluster_wait() returns when every block of the cluster has arrived and initialised its barriers.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

}  // namespace pen
