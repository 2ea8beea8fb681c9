// Selection by a block of SELECT_THREADS: the k-th largest key, and the shortest prefix of the descending order that reaches a mass.
// Nothing is sorted, and nothing depends on timing: histograms hold integers. The mass of the weights of one exponent is a sum of
// mantissas, so it is exact.
//
// A source is a functor: `uint32_t operator()(int i)` returns the key of element i, or 0 if the element is absent. Keys of weights are the
// bits of a float in (0, 1]. All threads of the block call every function, and each function ends with a barrier.
#pragma once

#include "sums.cuh"

namespace pen {

__device__ __forceinline__ void clear_bins(SelectShared& s) {
  for (int i = threadIdx.x; i < 4096; i += SELECT_THREADS) s.bins[i] = 0;
  __syncthreads();
}

// bins[digit] += 1, for all lanes of a warp at once. Lanes without a digit pass -1. Lanes whose digit equals the first lane's add once for
// all of them: otherwise rows of equal logits would queue at one address.
__device__ __forceinline__ void count_digit(SelectShared& s, int digit) {
  const uint32_t there = __ballot_sync(0xffffffffu, digit >= 0);
  if (there == 0) return;
  const int leader = __ffs(there) - 1;
  const int common = __shfl_sync(0xffffffffu, digit, leader);
  const uint32_t same = __ballot_sync(0xffffffffu, digit == common);
  if (digit == common) {
    if (int(threadIdx.x % WARP) == leader) atomicAdd(&s.bins[digit], uint32_t(__popc(same)));
  } else if (digit >= 0) {
    atomicAdd(&s.bins[digit], 1u);
  }
}

// Finds the largest digit of [0, 1024 PER) such that at least `k` elements have this digit or a larger one. Stores the digit in s.found and
// the number of elements that have it in s.found_count. Returns how many have a larger one. At least k elements must have been counted.
template <int PER>
__device__ __forceinline__ uint32_t locate_count(SelectShared& s, uint32_t k) {
  __syncthreads();
  const int top = PER * SELECT_THREADS - 1 - int(threadIdx.x) * PER;
  uint32_t own = 0;
#pragma unroll
  for (int j = 0; j < PER; j++) own += s.bins[top - j];
  uint32_t before = block_scan_exclusive(own, s.warp_counts);
  if (before < k && before + own >= k) {
#pragma unroll
    for (int j = 0; j < PER; j++) {
      const uint32_t count = s.bins[top - j];
      if (before < k && before + count >= k) {
        s.found = uint32_t(top - j);
        s.found_count = count;
        s.first = int(before);
        break;
      }
      before += count;
    }
  }
  __syncthreads();
  const uint32_t larger = uint32_t(s.first);
  __syncthreads();
  return larger;
}

struct KeyCut {
  uint32_t key;   // the smallest key that is kept
  uint32_t ties;  // how many of the elements with that key are kept, lower indexes first
  bool all;       // `ties` is all of them
};

// The cut that keeps exactly k of the n elements: the largest keys. k is at least 1 and at most the number of elements present.
template <typename Source>
__device__ KeyCut select_largest(int n, uint32_t k, Source source, SelectShared& s) {
  uint32_t prefix = 0;
  // The key's digits: 11, 11 and 10 bits.
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
    const int bits = shift == 0 ? 10 : 11;
    const int above = shift + bits;
    clear_bins(s);
#pragma unroll 2
    for (int base = 0; base < n; base += SELECT_THREADS) {
      const int i = base + int(threadIdx.x);
      const uint32_t key = i < n ? source(i) : 0;
      const bool in = key != 0 && (above == 32 || key >> above == prefix >> above);
      count_digit(s, in ? int(key >> shift & ((1u << bits) - 1)) : -1);
    }
    k -= locate_count<2>(s, k);
    prefix |= s.found << shift;
  }
  const bool all = s.found_count == k;
  __syncthreads();
  return KeyCut{prefix, k, all};
}

// Counts and sums the source's weights by exponent.
template <typename Source>
__device__ void tabulate_exponents(int n, Source source, SelectShared& s) {
  clear_bins(s);
  const int copy = threadIdx.x % HISTOGRAM_COPIES;
#pragma unroll 2
  for (int base = 0; base < n; base += SELECT_THREADS) {
    const int i = base + int(threadIdx.x);
    const uint32_t key = i < n ? source(i) : 0;
    if (key != 0) {
      const int at = exponent_bucket(key) * HISTOGRAM_COPIES + copy;
      atomicAdd(&s.copies.counts[at], 1u);
      atomicAdd(&s.copies.low[at], key & 0xfffu);
      atomicAdd(&s.copies.high[at], key >> 12 & 0x7ffu);
    }
  }
  __syncthreads();
  if (threadIdx.x < EXPONENTS) {
    uint64_t count = 0, low = 0, high = 0;
    for (int c = 0; c < HISTOGRAM_COPIES; c++) {
      count += s.copies.counts[threadIdx.x * HISTOGRAM_COPIES + c];
      low += s.copies.low[threadIdx.x * HISTOGRAM_COPIES + c];
      high += s.copies.high[threadIdx.x * HISTOGRAM_COPIES + c];
    }
    s.exponent_counts[threadIdx.x] = uint32_t(count);
    s.exponent_masses[threadIdx.x] = double((count << 23) + (high << 12) + low) * mantissa_unit(threadIdx.x);
  }
  __syncthreads();
}

// Whether a running sum reaches its goal, or exceeds it (`strict`).
__device__ __forceinline__ bool reaches(double sum, double goal, bool strict) { return strict ? sum > goal : sum >= goal; }

// Finds the bucket, in descending order, in which the running sum of masses, which starts at `below`, reaches `goal`. If no bucket does,
// finds the last one that holds anything. mass(digit, &count) returns a bucket's mass. Stores the digit in s.found and its count in
// s.found_count. `below` becomes the sum before the bucket.
template <int PER, typename Mass>
__device__ __forceinline__ void locate_mass(SelectShared& s, double& below, double goal, bool strict, Mass mass) {
  constexpr int BUCKETS = PER * SELECT_THREADS;
  if (threadIdx.x == 0) {
    s.first = BUCKETS;
    s.last = -1;
  }
  __syncthreads();
  const int from = int(threadIdx.x) * PER;  // in descending order of digits
  double masses[PER], own = 0.0;
  uint32_t counts[PER];
#pragma unroll
  for (int j = 0; j < PER; j++) {
    masses[j] = mass(BUCKETS - 1 - (from + j), counts[j]);
    own += masses[j];
  }
  double before = below + block_scan_exclusive(own, s.warp_sums);
  const double start = before;
#pragma unroll
  for (int j = 0; j < PER; j++) {
    if (counts[j]) {
      atomicMax(&s.last, from + j);
      if (reaches(before + masses[j], goal, strict)) atomicMin(&s.first, from + j);
    }
    before += masses[j];
  }
  __syncthreads();
  const int chosen = s.first < BUCKETS ? s.first : s.last;
  if (chosen >= from && chosen < from + PER) {
    before = start;
#pragma unroll
    for (int j = 0; j < PER; j++) {
      if (from + j == chosen) {
        s.found = uint32_t(BUCKETS - 1 - chosen);
        s.found_count = counts[j];
        s.below = before;
      }
      before += masses[j];
    }
  }
  __syncthreads();
  below = s.below;
  __syncthreads();
}

struct MassCut {
  uint32_t key, ties;  // as in KeyCut
  double sum;          // sum of everything that is kept
};

// The shortest prefix of the order (heavier first, then lower index) whose weights reach `goal`, or all elements if they do not.
// tabulate_exponents must have been called on the same source, which must not be empty. `narrow(lo, hi)` tells the source that only keys in
// [lo, hi] matter.
template <typename Source, typename Narrow>
__device__ MassCut select_mass(int n, double goal, bool strict, Source& source, Narrow narrow, SelectShared& s) {
  if (threadIdx.x == 0) {
    double sum = 0.0;
    for (int b = 0; b < EXPONENTS; b++) {
      if (s.exponent_counts[b] == 0) continue;
      s.first = b;
      s.below = sum;
      sum += s.exponent_masses[b];
      if (reaches(sum, goal, strict)) break;
    }
  }
  __syncthreads();
  const int bucket = s.first;
  double below = s.below;
  const uint32_t exponent = uint32_t(127 - bucket) << 23;
  const double unit = mantissa_unit(bucket);

  // The upper 11 bits of the mantissa: counts, and sums of the lower 12 bits.
  narrow(exponent, exponent | 0x7fffffu);
  clear_bins(s);
#pragma unroll 2
  for (int base = 0; base < n; base += SELECT_THREADS) {
    const int i = base + int(threadIdx.x);
    const uint32_t key = i < n ? source(i) : 0;
    const bool in = key >> 23 == exponent >> 23;
    count_digit(s, in ? int(key >> 12 & 0x7ffu) : -1);
    const uint32_t low = key & 0xfffu;
    if (in && low != 0) atomicAdd(&s.bins[2048 + (key >> 12 & 0x7ffu)], low);
  }
  locate_mass<2>(s, below, goal, strict, [&](int digit, uint32_t& count) {
    count = s.bins[digit];
    const uint64_t mantissas = (uint64_t(0x800000u) + (uint64_t(digit) << 12)) * count + s.bins[2048 + digit];
    return double(mantissas) * unit;
  });
  const uint32_t prefix = exponent | s.found << 12;

  narrow(prefix, prefix | 0xfffu);
  clear_bins(s);
#pragma unroll 2
  for (int base = 0; base < n; base += SELECT_THREADS) {
    const int i = base + int(threadIdx.x);
    const uint32_t key = i < n ? source(i) : 0;
    count_digit(s, key != 0 && key >> 12 == prefix >> 12 ? int(key & 0xfffu) : -1);
  }
  locate_mass<4>(s, below, goal, strict, [&](int digit, uint32_t& count) {
    count = s.bins[digit];
    return double(count) * double(__uint_as_float(prefix | uint32_t(digit)));
  });
  MassCut cut;
  cut.key = prefix | s.found;
  const double weight = double(__uint_as_float(cut.key)), count = double(s.found_count);
  // How many of the equal elements to keep: by division, then corrected for its rounding.
  double ties = fmin(fmax(ceil((goal - below) / weight), 1.0), count);
  while (ties > 1.0 && reaches(below + (ties - 1.0) * weight, goal, strict)) ties -= 1.0;
  while (ties < count && !reaches(below + ties * weight, goal, strict)) ties += 1.0;
  cut.ties = uint32_t(ties);
  cut.sum = below + ties * weight;
  __syncthreads();
  return cut;
}

// Index of the element with that key whose rank (from 1) is `rank`.
template <typename Source>
__device__ int nth_equal(int n, uint32_t key, uint32_t rank, Source source, SelectShared& s) {
  double below = 0.0;
  return search_sum(0, n, below, double(rank) - 0.5, [&](int i) { return source(i) == key ? 1.0 : 0.0; }, s);
}

}  // namespace pen
