// Combines the sums of slices if several blocks share a row tile (sm_90a). Each block writes its slices' sums into a workspace. When all
// have done so, each adds up a part of the tokens.
#pragma once

#include "../device/kernel.cuh"
#include "linear.h"
#include "write_sums.cuh"

namespace pen {

// Fragments of 8 tokens that each share adds up. If there are few, one share adds up all of them, and no share waits.
__host__ __device__ constexpr int part_fragments(int nt, int shares) { return nt <= 2 ? nt : nt > shares ? nt / shares : 1; }

template <int NT>
__device__ __forceinline__ void add_sums(float (&sums)[NT][4], const float (&y)[NT][4]) {
#pragma unroll
  for (int n = 0; n < NT; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], y[n][i]);
  }
}

// Synchronises the warps that share a row tile, by one word. The word counts how many have arrived and how many no longer need the word,
// and marks those that left before all had arrived. It is zero before and after. A share waits for a limited time only: if two models use
// the device, the others may be unable to run until this block ends. The last one to arrive adds up the parts of those that left.
struct SliceBarrier {
  static constexpr uint32_t COUNT = 0xff, DONE = 1 << 8, LEFT = 1 << 16;
  uint32_t* word;
  int shares;
  uint32_t before;  // the word's value before this share released it
  uint32_t parts;   // bit i: this warp adds up the part of share i

  // Called when the warp has stored its slices. If there are parts to add up, all slices are visible after this. `max_wait_cycles`: how
  // long to wait for the others; negative: not at all.
  __device__ __forceinline__ SliceBarrier(uint32_t* word, int share, int shares, int max_wait_cycles)
      : word(word), shares(shares), before(0), parts(0) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) {
      const uint32_t own = 1u << share, leave = DONE + own * LEFT;
      before = add_and_order(word, max_wait_cycles < 0 ? 1 + leave : 1);
      if ((before & COUNT) == uint32_t(shares - 1)) {
        parts = before / LEFT | own;
        if (max_wait_cycles >= 0) before = atomicAdd(word, DONE);
      } else if (max_wait_cycles >= 0) {
        const long long start = clock64();
        bool all;
        do {
          all = (load_and_order(word) & COUNT) == uint32_t(shares);
        } while (!all && clock64() - start < max_wait_cycles);
        before = all ? atomicAdd(word, DONE) : add_and_order(word, leave);
        if (all || (before & COUNT) == uint32_t(shares)) parts = own;
      }
    }
    __syncwarp();
    parts = __shfl_sync(0xffffffffu, parts, 0);
  }
  // Resets the word for the next kernel.
  __device__ __forceinline__ void end() const {
    if (threadIdx.x % WARP == 0 && (before / DONE & COUNT) == uint32_t(shares - 1)) *word = 0;
  }
};

// A lane's position in the workspace for the slices of a row tile: fragments side by side, of which AT_ONCE are added up at a time.
template <int NT, int AT_ONCE>
struct SliceSums {
  float4* position;  // in the first slice
  __device__ __forceinline__ SliceSums(float* workspace, int tile) {
    position = reinterpret_cast<float4*>(workspace) + size_t(tile) * SLICES * NT * WARP + threadIdx.x % WARP;
  }
  __device__ __forceinline__ void put(int slice, const float (&y)[NT][4]) const {
#pragma unroll
    for (int n = 0; n < NT; n++) position[(slice * NT + n) * WARP] = make_float4(y[n][0], y[n][1], y[n][2], y[n][3]);
  }
  // Adds up N fragments, starting at `first`, in ascending order of slices from zero. If `halves`, the first half is added to `before`, and
  // `sums` is the second one. The first TOGETHER slices are stored as their sum, at the position of the first one. Such a sum is never a
  // negative zero, so it may be added to zero once more. Reads everything at once and bypasses L1, which may still hold what an earlier
  // kernel read at this address.
  template <int N, int TOGETHER>
  __device__ __forceinline__ void add(int first, bool halves, float (&sums)[N][4], float (&before)[N][4]) const {
    static_assert(TOGETHER <= HALF, "the halves are apart");
    constexpr int COUNT = SLICES - TOGETHER + 1;
    const float4* from = held(position + first * WARP);
    float4 y[COUNT][N];
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
#pragma unroll
      for (int n = 0; n < N; n++) y[k][n] = __ldcg(from + ((k == 0 ? 0 : k + TOGETHER - 1) * NT + n) * WARP);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
#pragma unroll
      for (int k = 0; k < COUNT; k++) {
        const float add[4] = {y[k][n].x, y[k][n].y, y[k][n].z, y[k][n].w};
        if (k == HALF - TOGETHER + 1 && halves) {
#pragma unroll
          for (int i = 0; i < 4; i++) before[n][i] = __fadd_rn(before[n][i], sums[n][i]), sums[n][i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = __fadd_rn(sums[n][i], add[i]);
      }
    }
  }

  // Called by each warp that shares the tile, after it has stored its slices and after wait_for_previous(). Adds up and writes the parts,
  // of EACH fragments, that fall to this warp. `max_wait_cycles`: as for SliceBarrier.
  template <int EACH, int TOGETHER>
  __device__ __forceinline__ void finish(const Linear& p, uint32_t* word, int share, int shares, int max_wait_cycles, int segment,
                                         int tile, int token, int lane) const {
    constexpr int N = EACH < AT_ONCE ? EACH : AT_ONCE;
    const bool waits = EACH < NT && share * EACH < NT && max_wait_cycles >= 0;
    if (waits) prefetch_sums(p, segment, tile, token + 8 * share * EACH, 8 * EACH, lane);
    const SliceBarrier barrier(word, share, shares, waits ? max_wait_cycles : -1);
#pragma unroll 1
    for (uint32_t parts = barrier.parts; parts != 0; parts &= parts - 1) {
      const int begin = (__ffs(parts) - 1) * EACH;
      if (begin >= NT) break;
#pragma unroll 1
      for (int n = begin; n < begin + EACH; n += N) {
        const SumsPlace<N> to(p, segment, tile, token + 8 * n, lane, adds_sums(p, false));
        float sums[N][4], before[N][4];
        to.read(before);
        add<N, TOGETHER>(n, p.slicing.halves, sums, before);
        to.write(sums, before);
      }
    }
    barrier.end();
  }
};

// Calls f with the number of fragments per part as a constant.
template <int NT, class F>
__device__ __forceinline__ void with_part(int shares, F f) {
  if (shares == 2 || part_fragments(NT, 2) == part_fragments(NT, 8)) f(std::integral_constant<int, part_fragments(NT, 2)>{});
  else if (shares == 4) f(std::integral_constant<int, part_fragments(NT, 4)>{});
  else f(std::integral_constant<int, part_fragments(NT, 8)>{});
}

}  // namespace pen
