// Sums, scans and searches by a block of SELECT_THREADS, the keys that order floats, and the shared memory of these functions and of
// select.cuh. Sums of doubles have a fixed order, so no bit depends on timing.
#pragma once

#include "../device/kernel.cuh"
#include "choose.h"

namespace pen {

constexpr int SELECT_THREADS = 1024;
constexpr int SELECT_WARPS = SELECT_THREADS / WARP;
constexpr int HISTOGRAM_COPIES = 8;

struct SelectShared {
  union {
    struct {
      uint32_t counts[EXPONENTS * HISTOGRAM_COPIES], low[EXPONENTS * HISTOGRAM_COPIES], high[EXPONENTS * HISTOGRAM_COPIES];
    } copies;
    uint32_t bins[4096];
  };
  uint32_t exponent_counts[EXPONENTS];
  double exponent_masses[EXPONENTS];
  double warp_sums[SELECT_WARPS];
  uint32_t warp_counts[SELECT_WARPS];
  double below;    // result of the last search: the sum before the bucket
  int first, last;
  uint32_t found, found_count;
};

// Maps floats to unsigned integers of the same order. -0 equals +0: adding +0 turns -0 into +0.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The exponent's bucket of a weight's bits, which must not be 0.
__device__ __forceinline__ int exponent_bucket(uint32_t bits) {
  return min(max(127 - int(bits >> 23), 0), EXPONENTS - 1);
}
// 2^-23 of a bucket's power of two: the unit of its mantissas.
__device__ __forceinline__ double mantissa_unit(int bucket) {
  return __hiloint2double((1023 - bucket - 23) << 20, 0);
}

// Exclusive prefix sum over the threads of a block. `totals` holds one entry per warp.
template <typename T>
__device__ __forceinline__ T block_scan_exclusive(T x, T* totals) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const T inclusive = warp_scan(x);
  T before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  if (lane == 0) before = T(0);
  if (lane == WARP - 1) totals[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    const T own = totals[lane];
    const T scanned = warp_scan(own);
    T shifted = __shfl_up_sync(0xffffffffu, scanned, 1);
    totals[lane] = lane == 0 ? T(0) : shifted;
  }
  __syncthreads();
  const T result = totals[warp] + before;
  __syncthreads();
  return result;
}

__device__ __forceinline__ double warp_sum_double(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Sums over the block. Every thread gets the same result.
__device__ __forceinline__ double block_sum(double x, SelectShared& s) {
  x = warp_sum_double(x);
  if (threadIdx.x % WARP == 0) s.warp_sums[threadIdx.x / WARP] = x;
  __syncthreads();
  const double sum = warp_sum_double(s.warp_sums[threadIdx.x % WARP]);
  __syncthreads();
  return sum;
}

// Finds the first element of [lo, hi) at which the running sum of mass(i) >= 0, which starts at `below`, exceeds `threshold`. If rounding
// lets no element exceed it, returns the last element with any mass, or hi if none has mass. `below` becomes the sum before the element.
template <typename Mass>
__device__ int search_sum(int lo, int hi, double& below, double threshold, Mass mass, SelectShared& s) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int end = hi;
  while (hi - lo > 2 * WARP) {
    // Each warp takes one contiguous range of whole rows of 32.
    const int segment = ceil_div(ceil_div(hi - lo, SELECT_WARPS), WARP) * WARP;
    const int start = min(lo + warp * segment, hi), stop = min(start + segment, hi);
    double sum = 0.0;
#pragma unroll 4
    for (int i = start + lane; i < stop; i += WARP) sum += mass(i);
    sum = warp_sum_double(sum);
    if (lane == 0) s.warp_sums[warp] = sum;
    __syncthreads();
    double before = below, chosen_below = below;
    int chosen = -1;
    for (int w = 0; w < SELECT_WARPS; w++) {
      const double part = s.warp_sums[w];
      if (part > 0.0) {
        chosen = w;
        chosen_below = before;
        if (before + part > threshold) break;
        before += part;
      }
    }
    __syncthreads();
    if (chosen < 0) return end;
    below = chosen_below;
    const int from = lo + chosen * segment;
    hi = min(from + segment, hi);
    lo = from;
  }
  if (warp == 0) {
    int found = -1;
    double before = below, found_below = below;
    for (int base = lo; base < hi; base += WARP) {
      const double own = base + lane < hi ? mass(base + lane) : 0.0;
      const double running = before + warp_scan(own);
      const uint32_t some = __ballot_sync(0xffffffffu, own > 0.0);
      const uint32_t past = __ballot_sync(0xffffffffu, own > 0.0 && running > threshold);
      if (some) {
        const int pick = past ? __ffs(past) - 1 : 31 - __clz(some);
        found = base + pick;
        found_below = __shfl_sync(0xffffffffu, running - own, pick);
      }
      if (past) break;
      before = __shfl_sync(0xffffffffu, running, WARP - 1);
    }
    if (lane == 0) {
      s.last = found;
      s.below = found_below;
    }
  }
  __syncthreads();
  const int found = s.last;
  below = s.below;
  __syncthreads();
  return found < 0 ? end : found;
}

}  // namespace pen
