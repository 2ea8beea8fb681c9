// What every op shares: launches, errors, warp reductions, the one tensor-core product.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace pen {

// A failed CUDA call: becomes PEN_CUDA or PEN_OUT_OF_MEMORY at the boundary.
struct CudaError : std::runtime_error {
  cudaError_t code;
  CudaError(cudaError_t code, const char* what) : std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code)), code(code) {}
};

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(code, what);
}

// A launch through the extended interface. `overlap`: the kernel may start before the one in front of it has ended (programmatic
// dependent launch, sm_90); it must call wait_for_previous() before it reads what an earlier kernel wrote, and before it writes
// what an earlier kernel may still read.
struct Launch {
  cudaStream_t stream = nullptr;
  bool overlap = false;
  int cluster = 1;  // blocks along x that reach each other's shared memory (sm_90)

  template <typename... Params, typename... Args>
  void operator()(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) const {
    cudaLaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (overlap) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = unsigned(cluster);
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      count++;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "kernel launch");
  }
};

constexpr int WARP = 32;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr size_t round_up(size_t a, size_t b) { return (a + b - 1) / b * b; }

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

// Hides where a value comes from, so that the compiler computes from here on what it makes of it: what a kernel reads from the constant
// bank after its wait costs a miss, and what is moved out of loops and branches costs registers.
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

// d[16, 8] += a[16, 16] · b[16, 8], float16 in, float32 accumulators: the one product of every matrix op. Fragments as PTX lays
// them out for m16n8k16: lane l holds rows l/4 and l/4 + 8 of a (columns 2(l%4) + {0, 1, 8, 9}) and column l/4 of b.
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

__device__ __forceinline__ uint32_t shared_of(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 16 bytes into shared memory, zeros where `valid` is false, nothing where not `wanted`. Asynchronous from sm_80 on.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, bool valid = true, bool wanted = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %3, 0;\n@wanted cp.async.cg.shared.global [%0], [%1], 16, %2;\n}\n" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0), "r"(int(wanted))
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
// --- barriers in shared memory (sm_90) ---

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_of(barrier)), "r"(arrivals) : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_of(barrier)) : "memory");
#endif
}
// Waits for the end of the barrier's phase of this parity.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@done bra end;\nbra wait;\nend:\n}\n" ::"r"(
          shared_of(barrier)),
      "r"(phase)
      : "memory");
#endif
}
// Shared-memory writes of ordinary instructions become visible to copies and tensor cores that read it by themselves.
__device__ __forceinline__ void fence_async_proxy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace pen
