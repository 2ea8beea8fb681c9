// Warpgroup products (wgmma) of sm_90a: 64 rows in registers or shared memory times up to 128 columns in shared memory.
#pragma once

#include "kernel.cuh"

namespace pen {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PEN_HOPPER_DEVICE 1
#endif

// The barriers of a ring of stages in shared memory.
struct Ring {
  uint64_t full[8], empty[8];
};

#ifdef PEN_HOPPER_DEVICE
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Descriptor of a [tokens][64] tile of halves, K-major, 128-byte swizzle: eight rows are 1024 bytes apart.
__device__ __forceinline__ constexpr uint64_t tile_descriptor(uint32_t shared) {
  const uint64_t address = shared;
  return (address & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// Descriptor of a tile whose rows are the product's K: [rows][64] halves. The next 64 columns lie `stride` bytes further on.
__device__ __forceinline__ constexpr uint64_t transposed_descriptor(uint32_t shared, uint32_t stride) {
  return (tile_descriptor(shared) & ~(uint64_t(0x3fff) << 16)) | uint64_t(stride >> 4) << 16;
}

// Descriptor of a tile whose rows have BYTES bytes, 32 to 128, of halves in the swizzle of that many bytes. The rows are columns of the
// product, or its K if the product is TRANSPOSED.
template <int BYTES>
__device__ __forceinline__ constexpr uint64_t row_descriptor(uint32_t shared) {
  const uint64_t address = shared, swizzle = BYTES == 128 ? 1 : BYTES == 64 ? 2 : 3;
  return (address & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(8 * BYTES >> 4) << 32 | swizzle << 62;
}

// Advances a descriptor by `units` of 16 bytes.
__device__ __forceinline__ constexpr uint64_t moved(uint64_t descriptor, uint32_t units) { return descriptor + units; }

#define PEN_ACC4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define PEN_ACC8(i) PEN_ACC4(i), PEN_ACC4(i + 1)
#define PEN_ACC16(i) PEN_ACC8(i), PEN_ACC8(i + 2)
#define PEN_ACC32(i) PEN_ACC16(i), PEN_ACC16(i + 4)
// d[64, 8 N] = a[64, 16] · b[16, 8 N] (+ d unless `fresh`). TRANSPOSED: shared memory holds b's rows instead of its columns.
__device__ __forceinline__ void wgmma(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
      "{%0,%1,%2,%3},"
      "{%4,%5,%6,%7}, %8, p, 1, 1, 0;\n}\n"
      : PEN_ACC4(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)));
}
template <bool TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7},"
      "{%8,%9,%10,%11}, %12, p, 1, 1, %14;\n}\n"
      : PEN_ACC8(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)), "n"(int(TRANSPOSED)));
}
template <bool TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19}, %20, p, 1, 1, %22;\n}\n"
      : PEN_ACC16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)), "n"(int(TRANSPOSED)));
}
template <bool TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31},"
      "{%32,%33,%34,%35}, %36, p, 1, 1, %38;\n}\n"
      : PEN_ACC32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)), "n"(int(TRANSPOSED)));
}
template <bool TRANSPOSED = false>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
      "%57,%58,%59,%60,%61,%62,%63},"
      "{%64,%65,%66,%67}, %68, p, 1, 1, %70;\n}\n"
      : PEN_ACC32(0), PEN_ACC32(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)), "n"(int(TRANSPOSED)));
}
// d[64, 64] = a[64, 16] · b[16, 64] (+ d unless `fresh`), with both inputs in shared memory.
__device__ __forceinline__ void wgmma_shared(float (&d)[8][4], uint64_t a, uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31},"
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : PEN_ACC32(0)
      : "l"(a), "l"(b), "r"(int(fresh)));
}
#undef PEN_ACC32
#undef PEN_ACC16
#undef PEN_ACC8
#undef PEN_ACC4
#endif

}  // namespace pen
