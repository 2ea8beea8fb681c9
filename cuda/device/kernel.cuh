// Building blocks of kernels: waits between kernels, warp reductions, the tensor-core product, copies and barriers in shared memory.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "error.h"

namespace pen {

// Lets the next kernel of the stream start its prologue.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until every kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Hides from the compiler where a value comes from, so that everything that depends on the value is computed after this point. Otherwise
// the compiler may read a parameter again from the constant bank after the kernel's wait, which costs a miss, or move computations out of
// loops and branches, which costs registers.
template <typename T>
__device__ __forceinline__ T held(T x) {
  if constexpr (std::is_same_v<T, float>) {
    asm volatile("" : "+f"(x));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// d[16, 8] += a[16, 16] · b[16, 8], float16 inputs, float32 accumulators. Every matrix op is made of this product. Fragments follow PTX's
// layout for m16n8k16: lane l holds rows l/4 and l/4 + 8 of a (columns 2(l%4) + {0, 1, 8, 9}) and column l/4 of b.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

// Inclusive prefix sum over the lanes of a warp.
template <typename T>
__device__ __forceinline__ T warp_scan(T x) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, x, offset);
    if (lane >= offset) x += other;
  }
  return x;
}

__device__ __forceinline__ uint32_t half2_bits(__half2 x) { return *reinterpret_cast<uint32_t*>(&x); }
__device__ __forceinline__ __half2 bits_half2(uint32_t x) { return *reinterpret_cast<__half2*>(&x); }

__device__ __forceinline__ uint32_t shared_of(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Copies 16 bytes into shared memory. Writes zeros if not `valid`, and nothing if not `wanted`. Asynchronous on sm_80 and later.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, bool valid = true, bool wanted = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %3, 0;\n@wanted cp.async.cg.shared.global [%0], [%1], 16, %2;\n}\n" ::"r"(shared),
      "l"(global), "r"(valid ? 16 : 0), "r"(int(wanted))
      : "memory");
#else
  if (!wanted) return;
  const uint4 x = valid ? *reinterpret_cast<const uint4*>(global) : uint4{};
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#endif
}
__device__ __forceinline__ void copy_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
// Adds to a counter and returns its old value. The warp's earlier writes are visible to every thread that then reads the counter with
// load_and_order(). Synchronises the lanes before and after.
__device__ __forceinline__ uint32_t add_and_order(uint32_t* counter, uint32_t amount) {
  uint32_t before = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(amount) : "memory");
#endif
  return before;
}
// Reads a counter that add_and_order() increments.
__device__ __forceinline__ uint32_t load_and_order(const uint32_t* counter) {
  uint32_t now = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
#endif
  return now;
}

// --- barriers in shared memory (sm_90) ---

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_of(barrier)), "r"(arrivals) : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) { barrier_arrive(shared_of(barrier)); }
// Makes the barrier's phase wait for this many more bytes.
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_of(barrier)), "r"(bytes) : "memory");
#endif
}
// Waits for the end of the barrier's phase with this parity.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra end;\nbra wait;\nend:\n}\n"
      ::"r"(barrier), "r"(phase) : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t phase) { barrier_wait(shared_of(barrier), phase); }
// Makes ordinary writes to shared memory visible to the asynchronous units that read it (bulk copies, warpgroup products).
__device__ __forceinline__ void fence_async_proxy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace pen
