// y = W · x for many tokens on sm_90a: the numeric definition of linear.cuh on warpgroup products (wgmma). Each of a warpgroup's four
// warps dequantises one row tile straight into the A registers, which have the layout of mma.m16n8k16; the tokens' chunk lies in
// shared memory in the 128-byte swizzle, filled by a third warpgroup. The other two warpgroups run free of each other, so that one
// dequantises while the tensor cores work for the other. Whether m64nNk16 accumulates as m16n8k16 does is not documented: bench/linear.cu checks it.
#pragma once

#include "linear_prefill.cuh"

namespace pen {

constexpr int HOPPER_ROW_TILES = 8, HOPPER_TOKENS = 128, HOPPER_STAGES = 8, HOPPER_AHEAD = 6;
constexpr int HOPPER_CONSUMERS = 256;  // two warpgroups of 64 rows each
constexpr int HOPPER_PRODUCERS = 128;  // a whole warpgroup, since registers move between warpgroups only
constexpr int HOPPER_THREADS = HOPPER_CONSUMERS + HOPPER_PRODUCERS;
constexpr size_t HOPPER_SHARED = size_t(HOPPER_STAGES) * HOPPER_TOKENS * CHUNK * 2 + 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PEN_HOPPER_DEVICE 1
#endif

#ifdef PEN_HOPPER_DEVICE
__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Descriptor of a [tokens][64] tile of halves, K-major, 128-byte swizzle: eight rows are 1024 bytes apart.
__device__ __forceinline__ uint64_t tile_descriptor(const void* shared) {
  const uint64_t address = __cvta_generic_to_shared(shared);
  return (address & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

#define PEN_ACC4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
// d[64, 128] = a[64, 16] · b[16, 128] (+ d unless `fresh`).
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
      "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}\n"
      : PEN_ACC4(0), PEN_ACC4(1), PEN_ACC4(2), PEN_ACC4(3), PEN_ACC4(4), PEN_ACC4(5), PEN_ACC4(6), PEN_ACC4(7), PEN_ACC4(8), PEN_ACC4(9),
        PEN_ACC4(10), PEN_ACC4(11), PEN_ACC4(12), PEN_ACC4(13), PEN_ACC4(14), PEN_ACC4(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(fresh)));
}
#undef PEN_ACC4

// One chunk: four products on a stage, from operands in registers.
__device__ __forceinline__ void multiply_stage(float (&acc)[16][4], const uint32_t (&a)[STEPS][4], const __half* stage, bool fresh) {
  const uint64_t b = tile_descriptor(stage);
  warpgroup_arrive();
#pragma unroll
  for (int s = 0; s < STEPS; s++) wgmma(acc, a[s], b + 2 * s, fresh && s == 0);
  warpgroup_commit();
}

struct Ring {
  uint64_t full[HOPPER_STAGES], empty[HOPPER_STAGES];
};

// Keeps up to HOPPER_AHEAD chunks of x on their way.
__device__ __forceinline__ void produce(const Linear& p, int chunks, int first_token, __half* stages, Ring& ring) {
  wait_for_previous();
  for (int i = 0; i < chunks + HOPPER_AHEAD; i++) {
    if (i < chunks) {
      if (i >= HOPPER_STAGES) barrier_wait(&ring.empty[i % HOPPER_STAGES], (i / HOPPER_STAGES - 1) & 1);
#pragma unroll
      for (int piece = threadIdx.x % HOPPER_PRODUCERS; piece < HOPPER_TOKENS * 8; piece += HOPPER_PRODUCERS) {
        const int token = piece / 8, column = piece % 8;
        const bool valid = first_token + token < p.num_tokens;
        const __half* from = p.x + size_t(valid ? first_token + token : 0) * p.ldx + i * CHUNK + column * 8;
        copy_async(stages + i % HOPPER_STAGES * (HOPPER_TOKENS * CHUNK) + token * CHUNK + (column ^ (token % 8)) * 8, from, valid);
      }
    }
    copy_commit();
    copy_wait<HOPPER_AHEAD>();
    if (i >= HOPPER_AHEAD) {
      fence_async_proxy();
      barrier_arrive(&ring.full[(i - HOPPER_AHEAD) % HOPPER_STAGES]);
    }
  }
}

template <class Format>
__device__ __forceinline__ void consume(const Linear& p, int segment, int group, int first_token, const __half* stages, Ring& ring) {
  const Matrix& w = p.w[segment];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int tile = group * HOPPER_ROW_TILES + warp, chunks = w.chunks(), tiles = w.tiles();
  const uint8_t* rows = w.data + size_t(min(tile, tiles - 1)) * chunks * Format::record_bytes;
  typename Format::Raw raw;
  raw.load(rows, lane);
  wait_for_previous();
  float acc[16][4] = {}, total[16][4] = {};
  for (int s = 0; s < SLICES; s++) {
    const int begin = slice_begin(s, chunks), end = slice_begin(s + 1, chunks);
    for (int chunk = begin; chunk < end; chunk++) {
      uint32_t a[STEPS][4];
#pragma unroll
      for (int step = 0; step < STEPS; step++) raw.fragment(step, a[step]);
      if (chunk + 1 < chunks) raw.load(rows + size_t(chunk + 1) * Format::record_bytes, lane);
      barrier_wait(&ring.full[chunk % HOPPER_STAGES], (chunk / HOPPER_STAGES) & 1);
      multiply_stage(acc, a, stages + chunk % HOPPER_STAGES * (HOPPER_TOKENS * CHUNK), chunk == begin);
      warpgroup_wait<0>();
      if (lane == 0) barrier_arrive(&ring.empty[chunk % HOPPER_STAGES]);
    }
    if (begin == end) continue;
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) total[n][i] = __fadd_rn(total[n][i], acc[n][i]);
    }
  }
  if (tile >= tiles) return;
#pragma unroll
  for (int n = 0; n < 16; n++) write_sums(p, segment, tile, first_token + 8 * n + 2 * (lane % 4), lane / 4, total[n]);
}
#endif

// Grid as linear_prefill_kernel's.
__global__ void __launch_bounds__(HOPPER_THREADS, 1) linear_hopper_kernel(const __grid_constant__ Linear p) {
#ifdef PEN_HOPPER_DEVICE
  extern __shared__ uint8_t dynamic[];
  __half* stages = reinterpret_cast<__half*>(round_up(reinterpret_cast<size_t>(dynamic), 1024));
  __shared__ Ring ring;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < HOPPER_STAGES; i++) {
      barrier_init(&ring.full[i], HOPPER_PRODUCERS);
      barrier_init(&ring.empty[i], HOPPER_CONSUMERS / WARP);
    }
  }
  __syncthreads();
  int group = blockIdx.y, segment = 0;
  const auto groups = [&](int i) { return ceil_div(p.w[i].tiles(), HOPPER_ROW_TILES); };
  while (segment + 1 < p.num_segments && group >= groups(segment)) group -= groups(segment++);
  const int first_token = blockIdx.x * HOPPER_TOKENS;
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce(p, p.w[segment].chunks(), first_token, stages, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  with_format(p.w[segment].format, [&](auto format) { consume<decltype(format)>(p, segment, group, first_token, stages, ring); });
#endif
}

}  // namespace pen
