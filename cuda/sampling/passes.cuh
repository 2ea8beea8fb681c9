// Two passes of many blocks over all rows. The first finds the largest logit. The second computes weights, their sums and a histogram. A
// greedy row ends in the second pass.
#pragma once

#include "philox.cuh"
#include "row.cuh"
#include "select.cuh"

namespace pen {

constexpr int PASS_THREADS = 256;
constexpr uint64_t BROKEN = ~0ull;  // the best key of a row that holds a NaN

// Buckets of weights by their distance to the largest, in powers of two. The last bucket holds elements without weight.
constexpr int NOTHING = EXPONENTS - 1;

// Combines a logit and its id into one number. The largest number has the largest logit and, among equal logits, the lowest id.
__device__ __forceinline__ uint64_t best_key(float x, int id) {
  return uint64_t(order_key(x)) << 32 | uint32_t(~uint32_t(id));
}
__device__ __forceinline__ int best_id(uint64_t key) { return int(~uint32_t(key)); }
__device__ __forceinline__ float best_value(uint64_t key) { return key_value(uint32_t(key >> 32)); }
// Whether a row with this best key can be sampled: the row holds no NaN, no +inf, and at least one finite logit.
__device__ __forceinline__ bool is_sound(uint64_t key) {
  return key != BROKEN && fabsf(best_value(key)) < INFINITY;
}

__device__ __forceinline__ uint64_t warp_max_key(uint64_t key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// Which filters a slot uses.
struct Filters {
  bool top_k, min_p, top_p;
  __device__ Filters(const SlotParams& p, int vocab)
      : top_k(p.top_k > 0 && p.top_k < uint32_t(vocab)), min_p(p.min_p > 0.0f), top_p(p.top_p < 1.0f) {}
  __device__ bool any() const { return top_k || min_p || top_p; }
};

// The bucket of a logit, by its distance to the largest in powers of two of the weight. A larger logit never has a later bucket.
__device__ __forceinline__ float bucket_scale(float temperature) { return fminf(__fdiv_rn(1.44269504f, temperature), 1e30f); }
__device__ __forceinline__ int logit_bucket(float x, float max, float scale) {
  const float steps = __fmul_rn(__fsub_rn(max, x), scale);
  return steps < float(NOTHING) ? int(steps) : NOTHING;
}

// The results of the passes over all rows, for the block that draws.
struct PassResults {
  uint64_t* keys;      // [num_rows, vocab_tiles] best key of a vocabulary tile, or BROKEN
  double* sums;        // [num_rows, sum blocks] of weights
  uint64_t* masses;    // [num_rows, EXPONENTS] mantissas of the weights
  uint32_t* counts;    // [num_rows, EXPONENTS]
  int vocab_tiles, sum_blocks;
};

// The best key of a row, from those of its vocabulary tiles. Each warp computes it for itself.
__device__ __forceinline__ uint64_t row_best(const PassResults& results, int row) {
  uint64_t key = 0;
  for (int c = threadIdx.x % WARP; c < results.vocab_tiles; c += WARP) {
    const uint64_t other = results.keys[size_t(row) * results.vocab_tiles + c];
    key = other > key ? other : key;
  }
  return warp_max_key(key);
}

// Records a slot's id, by one thread.
__device__ __forceinline__ void move_on(const SamplerState& state, int slot, int id) {
  state.last[slot] = id;
  if (id >= 0) {
    SlotParams& p = state.params[slot];
    if (has_penalties(p)) state.counts[size_t(slot) * state.vocab + id] += 1;
    p.num_generated += 1;
  }
}

// Writes a row's result and records it in the slot, by one thread. A row that may share its slot is not accepted yet.
template <bool DRAFTS>
__device__ __forceinline__ void record(const SamplerState& state, const Sample& args, int row, int slot, int id) {
  if constexpr (DRAFTS) {
    args.drafts.drawn[row] = id;
  } else {
    int32_t* const results = *args.results;  // first, because the load takes time
    move_on(state, slot, id);
    results[row] = id;
  }
}

__device__ __forceinline__ float4 load4(const float* row, int id, int vocab, bool aligned) {
  if (aligned && id + 4 <= vocab) return *reinterpret_cast<const float4*>(row + id);
  float4 x;
  x.x = id < vocab ? row[id] : -INFINITY;
  x.y = id + 1 < vocab ? row[id + 1] : -INFINITY;
  x.z = id + 2 < vocab ? row[id + 2] : -INFINITY;
  x.w = id + 3 < vocab ? row[id + 3] : -INFINITY;
  return x;
}

// Adjusts the logits of four ids, starting at `id`. Ids beyond the vocabulary are left unchanged.
template <bool DRAFTS>
__device__ __forceinline__ void adjust4(float (&x)[4], const Row<DRAFTS>& r, int id, int vocab) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (id + j < vocab) x[j] = r.adjusted(x[j], id + j);
  }
}

constexpr int GROUPS = PASS_IDS / (4 * PASS_THREADS);

// Grid: (vocab_tiles, rows). Finds the best key of a vocabulary tile. A row's parameters are read before the wait: nothing in the step
// changes them, except the number of tokens that a slot has generated, which only a finished row changes.
template <bool DRAFTS>
__global__ void __launch_bounds__(PASS_THREADS) largest_kernel(SamplerState state, Sample args, PassResults results) {
  let_next_start();
  const int vocab_tile = blockIdx.x, row = blockIdx.y, slot = args.slots[row], vocab = state.vocab;
  const Row<DRAFTS> r = make_row<DRAFTS>(state, args, row, max(slot, 0), state.params[max(slot, 0)]);
  wait_for_previous();
  if (slot < 0) return;
  const float* logits = args.logits + size_t(row) * vocab;
  const bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
  const int start = vocab_tile * PASS_IDS + 4 * int(threadIdx.x);
  float4 loaded[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; g++) loaded[g] = load4(logits, start + g * 4 * PASS_THREADS, vocab, aligned);
  if (vocab_tile == 0 && threadIdx.x < EXPONENTS) {
    results.counts[row * EXPONENTS + threadIdx.x] = 0;
    results.masses[row * EXPONENTS + threadIdx.x] = 0;
  }
  float best = -INFINITY;
  int id = start;
  bool broken = false;
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    const int first = start + g * 4 * PASS_THREADS;
    float x[4] = {loaded[g].x, loaded[g].y, loaded[g].z, loaded[g].w};
    if (!r.plain()) adjust4(x, r, first, vocab);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      broken |= x[j] != x[j];
      if (x[j] > best) {
        best = x[j];
        id = first + j;
      }
    }
  }
  __shared__ uint64_t warps[PASS_THREADS / WARP];
  const uint64_t key = warp_max_key(broken ? BROKEN : best_key(best, id));
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = key;
  __syncthreads();
  if (threadIdx.x < WARP) {
    const uint64_t all = warp_max_key(threadIdx.x < PASS_THREADS / WARP ? warps[threadIdx.x] : 0);
    if (threadIdx.x == 0) results.keys[size_t(row) * results.vocab_tiles + vocab_tile] = all;
  }
}

// Grid: (vocab_tiles, rows). Greedy and broken rows end here. For the others, computes sums of weights by blocks of 256. With filters, also
// counts the candidates in each power of two: for top-k by the logits' distances, otherwise the weights >= min_p, with their mass.
template <bool DRAFTS>
__global__ void __launch_bounds__(PASS_THREADS) weigh_kernel(SamplerState state, Sample args, PassResults results) {
  let_next_start();
  const int vocab_tile = blockIdx.x, row = blockIdx.y, slot = args.slots[row], vocab = state.vocab;
  const float temperature = state.params[max(slot, 0)].temperature;
  wait_for_previous();
  if (slot < 0) return;
  if (temperature == 0.0f && vocab_tile != 0) return;
  const uint64_t best = row_best(results, row);
  const bool sound = is_sound(best);
  if (temperature == 0.0f || !sound) {
    if (vocab_tile == 0 && threadIdx.x == 0) record<DRAFTS>(state, args, row, slot, sound ? best_id(best) : NOT_FINITE);
    return;
  }
  const SlotParams p = state.params[slot];
  const Row<DRAFTS> r = make_row<DRAFTS>(state, args, row, slot, p);
  const Filters filters(p, vocab);
  const float max = best_value(best), scale = bucket_scale(temperature);
  const bool aligned = (reinterpret_cast<uintptr_t>(r.logits) & 15) == 0;
  __shared__ float weights[PASS_IDS];
  __shared__ float lanes[PASS_THREADS];
  constexpr int BINS = EXPONENTS * HISTOGRAM_COPIES;
  __shared__ uint32_t counts[BINS], low[BINS], high[BINS];
  if (filters.any()) {
    for (int i = threadIdx.x; i < BINS; i += PASS_THREADS) counts[i] = low[i] = high[i] = 0;
    __syncthreads();
  }
  const int copy = threadIdx.x % HISTOGRAM_COPIES;
#pragma unroll
  for (int g = 0; g < GROUPS; g++) {
    const int local = 4 * int(threadIdx.x) + g * 4 * PASS_THREADS, id = vocab_tile * PASS_IDS + local;
    const float4 loaded = load4(r.logits, id, vocab, aligned);
    float x[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    if (!r.plain()) adjust4(x, r, id, vocab);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float w = weight_of(x[j], max, temperature);
      weights[local + j] = w;
      if (!filters.any() || id + j >= vocab) continue;
      if (filters.top_k) {
        atomicAdd(&counts[logit_bucket(x[j], max, scale) * HISTOGRAM_COPIES + copy], 1u);
      } else if (w > 0.0f && w >= p.min_p) {
        const uint32_t bits = __float_as_uint(w);
        const int at = exponent_bucket(bits) * HISTOGRAM_COPIES + copy;
        atomicAdd(&counts[at], 1u);
        atomicAdd(&low[at], bits & 0xfffu);
        atomicAdd(&high[at], bits >> 12 & 0x7ffu);
      }
    }
  }
  __syncthreads();
  {
    const int block = threadIdx.x / SUM_LANES, lane = threadIdx.x % SUM_LANES;
    float sum = 0.0f;
    for (int i = 0; i < SUM_BLOCK / SUM_LANES; i++) sum = __fadd_rn(sum, weights[block * SUM_BLOCK + i * SUM_LANES + lane]);
    lanes[threadIdx.x] = sum;
  }
  __syncthreads();
  const int block = vocab_tile * (PASS_IDS / SUM_BLOCK) + int(threadIdx.x);
  if (threadIdx.x < PASS_IDS / SUM_BLOCK && block < results.sum_blocks) {
    double sum = 0.0;
    for (int lane = 0; lane < SUM_LANES; lane++) sum += double(lanes[threadIdx.x * SUM_LANES + lane]);
    results.sums[size_t(row) * results.sum_blocks + block] = sum;
  }
  if (filters.any() && threadIdx.x < EXPONENTS) {
    uint64_t count = 0, l = 0, h = 0;
    for (int c = 0; c < HISTOGRAM_COPIES; c++) {
      const int at = threadIdx.x * HISTOGRAM_COPIES + c;
      count += counts[at];
      l += low[at];
      h += high[at];
    }
    if (count > 0) {
      atomicAdd(&results.counts[row * EXPONENTS + threadIdx.x], uint32_t(count));
      atomicAdd(reinterpret_cast<unsigned long long*>(&results.masses[row * EXPONENTS + threadIdx.x]),
                static_cast<unsigned long long>((count << 23) + (h << 12) + l));
    }
  }
}

}  // namespace pen
