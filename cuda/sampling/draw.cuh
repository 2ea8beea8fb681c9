// Draws ids for the rows that are not greedy, one block per row.
#pragma once

#include "passes.cuh"

namespace pen {

constexpr int LIST = 2048;  // candidates that fit into shared memory

// The weights of a whole row after the filters so far. Keys are computed again in each pass.
template <bool DRAFTS>
struct RowWeights {
  Row<DRAFTS> row;
  float max, temperature, min_p, floor;
  bool cut;          // top-k: only logits with a key above `cut_key`, and of those with that key only ids up to `cut_id`
  uint32_t cut_key;
  int cut_id;
  float lo, hi;      // logits outside have smaller, or larger, weights than this pass needs

  __device__ __forceinline__ float weight(int id) const {
    const float x = row.at(id);
    if (!(x >= lo && x <= hi)) return 0.0f;
    if (cut) {
      const uint32_t key = order_key(x);
      if (key < cut_key || (key == cut_key && id > cut_id)) return 0.0f;
    }
    const float w = weight_of(x, max, temperature);
    return w >= min_p && w >= floor ? w : 0.0f;
  }
  __device__ __forceinline__ uint32_t operator()(int id) const { return __float_as_uint(weight(id)); }

  // Restricts the pass to logits whose weights may be in [w_lo, w_hi], with a margin for rounding.
  __device__ void narrow(uint32_t key_lo, uint32_t key_hi) {
    const float room = 1e-5f * fabsf(max) + 1e-3f * temperature;
    lo = max + temperature * logf(__uint_as_float(key_lo)) - room;
    hi = max + temperature * logf(__uint_as_float(key_hi)) + room;
  }
};

struct ListKeys {
  const uint32_t* keys;
  __device__ __forceinline__ uint32_t operator()(int i) const { return keys[i]; }
};

struct DrawShared {
  SelectShared select;
  uint32_t keys[LIST], ids[LIST];
};

// Collects the elements of the row that have a key into the list, in ascending order of ids, and returns their number (at most LIST).
// `offer(id)` returns the key, or 0.
template <typename Offer>
__device__ int compact(int vocab, Offer offer, DrawShared& s) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int segment = ceil_div(ceil_div(vocab, SELECT_WARPS), WARP) * WARP;
  const int start = min(warp * segment, vocab), stop = min(start + segment, vocab);
  uint32_t count = 0;
#pragma unroll 4
  for (int id = start + lane; id < stop; id += WARP) count += offer(id) != 0;
  const uint32_t before_thread = block_scan_exclusive(count, s.select.warp_counts);
  uint32_t at = __shfl_sync(0xffffffffu, before_thread, 0);
  const bool any = __ballot_sync(0xffffffffu, count != 0) != 0;
  if (any) {
#pragma unroll 2
    for (int base = start; base < stop; base += WARP) {
      const uint32_t key = base + lane < stop ? offer(base + lane) : 0;
      const uint32_t there = __ballot_sync(0xffffffffu, key != 0);
      const uint32_t place = at + __popc(there & ((1u << lane) - 1));
      if (key != 0 && place < uint32_t(LIST)) {
        s.keys[place] = key;
        s.ids[place] = uint32_t(base + lane);
      }
      at += __popc(there);
    }
  }
  if (threadIdx.x == SELECT_THREADS - 1) s.select.found = at;
  __syncthreads();
  const int total = min(int(s.select.found), LIST);
  __syncthreads();
  return total;
}

// Draws an index of the source by `u`, in proportion to the weights that top-p keeps. Returns n if all weights are zero. `total`: the mass
// of which top-p takes its share. Negative: the source's own mass.
template <typename Source, typename Narrow>
__device__ int draw(int n, Source& source, Narrow narrow, bool use_top_p, double top_p, double total, double u, SelectShared& s) {
  if (!use_top_p) {
    double sum = 0.0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += SELECT_THREADS) sum += double(__uint_as_float(source(i)));
    sum = block_sum(sum, s);
    double below = 0.0;
    return search_sum(0, n, below, u * sum, [&](int i) { return double(__uint_as_float(source(i))); }, s);
  }
  tabulate_exponents(n, source, s);
  const double held = block_sum(threadIdx.x < EXPONENTS ? s.exponent_masses[threadIdx.x] : 0.0, s);
  if (!(held > 0.0)) return n;
  if (total < 0.0) total = held;
  const MassCut end = select_mass(n, top_p * total, false, source, narrow, s);
  MassCut hit = select_mass(n, u * end.sum, true, source, narrow, s);
  // Rounding must not lead beyond the end of what top-p keeps.
  if (hit.key < end.key || (hit.key == end.key && hit.ties > end.ties)) hit = end;
  narrow(hit.key, hit.key);
  return nth_equal(n, hit.key, hit.ties, source, s);
}

// Draws without filters: finds a block by the blocks' sums, then an id within the block.
template <bool DRAFTS>
__device__ int draw_unfiltered(const Row<DRAFTS>& r, const PassResults& results, int row, int vocab, float max, float temperature, double u,
                               SelectShared& s) {
  const double* sums = results.sums + size_t(row) * results.sum_blocks;
  double total = 0.0;
  for (int i = threadIdx.x; i < results.sum_blocks; i += SELECT_THREADS) total += sums[i];
  total = block_sum(total, s);
  const double threshold = u * total;
  double below = 0.0;
  const int block = search_sum(0, results.sum_blocks, below, threshold, [&](int i) { return sums[i]; }, s);
  const int start = block * SUM_BLOCK;
  const auto mass = [&](int id) { return double(weight_of(r.at(id), max, temperature)); };
  return search_sum(start, min(start + SUM_BLOCK, vocab), below, threshold, mass, s);
}

template <bool DRAFTS>
__device__ int draw_filtered(const SlotParams& p, const Filters& filters, const Row<DRAFTS>& r, const PassResults& results, int row,
                             int vocab, float max, double u, DrawShared& s) {
  const double top_p = double(p.top_p);
  RowWeights<DRAFTS> weights{r, max, p.temperature, filters.min_p ? p.min_p : 0.0f, 0.0f, false, 0u, 0, -INFINITY, INFINITY};
  double total = -1.0;
  if (!filters.top_k && filters.top_p) {
    const uint64_t* masses = results.masses + row * EXPONENTS;
    const double* sums = results.sums + size_t(row) * results.sum_blocks;
    double own = 0.0;
    if (filters.min_p) {
      if (threadIdx.x < EXPONENTS) own = double(masses[threadIdx.x]) * mantissa_unit(threadIdx.x);
    } else {
      for (int i = threadIdx.x; i < results.sum_blocks; i += SELECT_THREADS) own += sums[i];
    }
    total = block_sum(own, s.select);
    // All weights below this floor together are less than half of 1 - top_p. The CPU's sampler leaves them out, too.
    if (!filters.min_p) weights.floor = float(0.5 * (1.0 - top_p) * total / double(vocab));
  }
  weights.narrow(__float_as_uint(fmaxf(weights.min_p, weights.floor)), __float_as_uint(1.0f));
  // The buckets that can hold what the filters keep, with their numbers of candidates.
  if (threadIdx.x < EXPONENTS) {
    s.select.exponent_counts[threadIdx.x] = results.counts[row * EXPONENTS + threadIdx.x];
    s.select.exponent_masses[threadIdx.x] = double(results.masses[row * EXPONENTS + threadIdx.x]) * mantissa_unit(threadIdx.x);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const double enough = top_p * total * (1.0 + 1e-9);
    double mass = 0.0;
    uint32_t count = 0;
    int bucket = 0;
    for (; bucket < NOTHING; bucket++) {
      count += s.select.exponent_counts[bucket];
      mass += s.select.exponent_masses[bucket];
      if (filters.top_k ? count >= p.top_k : filters.top_p && mass >= enough) break;
    }
    s.select.first = min(bucket, NOTHING - 1);
    s.select.found_count = count;
  }
  __syncthreads();
  const int last_bucket = s.select.first;
  const uint32_t candidates = s.select.found_count;
  __syncthreads();

  const auto stay = [](uint32_t, uint32_t) {};
  if (candidates <= uint32_t(LIST)) {
    int n;
    if (filters.top_k) {
      const float scale = bucket_scale(p.temperature);
      const auto offer = [&](int id) {
        const float x = r.at(id);
        return logit_bucket(x, max, scale) <= last_bucket ? order_key(x) : 0u;
      };
      n = compact(vocab, offer, s);
      KeyCut cut{0u, 0u, true};
      int cut_at = n;
      if (uint32_t(n) > p.top_k) {
        cut = select_largest(n, p.top_k, ListKeys{s.keys}, s.select);
        if (!cut.all) cut_at = nth_equal(n, cut.key, cut.ties, ListKeys{s.keys}, s.select);
      }
      for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
        const uint32_t key = s.keys[i];
        const float w = weight_of(key_value(key), max, p.temperature);
        const bool in = key > cut.key || (key == cut.key && i <= cut_at);
        s.keys[i] = in && w >= weights.min_p ? __float_as_uint(w) : 0u;
      }
      __syncthreads();
    } else {
      const uint32_t lightest = uint32_t(127 - last_bucket) << 23;
      weights.narrow(umax(lightest, __float_as_uint(fmaxf(weights.min_p, weights.floor))), __float_as_uint(1.0f));
      const auto offer = [&](int id) {
        const uint32_t key = weights(id);
        return key != 0 && exponent_bucket(key) <= last_bucket ? key : 0u;
      };
      n = compact(vocab, offer, s);
    }
    ListKeys list{s.keys};
    const int index = draw(n, list, stay, filters.top_p, top_p, total, u, s.select);
    return index < n ? int(s.ids[index]) : -1;
  }
  if (filters.top_k) {
    const auto keys = [&](int id) { return order_key(r.at(id)); };
    const KeyCut cut = select_largest(vocab, p.top_k, keys, s.select);
    weights.cut = true;
    weights.cut_key = cut.key;
    weights.cut_id = cut.all ? vocab : nth_equal(vocab, cut.key, cut.ties, keys, s.select);
  }
  const auto narrow = [&](uint32_t lo, uint32_t hi) { weights.narrow(lo, hi); };
  const int id = draw(vocab, weights, narrow, filters.top_p, top_p, total, u, s.select);
  return id < vocab ? id : -1;
}

// Grid: (rows). Greedy rows return at once.
template <bool DRAFTS>
__global__ void __launch_bounds__(SELECT_THREADS) draw_kernel(SamplerState state, Sample args, PassResults results) {
  let_next_start();
  const int row = blockIdx.x, slot = args.slots[row], vocab = state.vocab;
  const bool draws = slot >= 0 && state.params[slot].temperature != 0.0f;
  wait_for_previous();
  if (!draws) return;
  const uint64_t best = row_best(results, row);
  if (!is_sound(best)) return;
  __shared__ DrawShared s;
  const SlotParams p = state.params[slot];
  const Row<DRAFTS> r = make_row<DRAFTS>(state, args, row, slot, p);
  const Filters filters(p, vocab);
  const float max = best_value(best);
  const double u = uniform(p.seed, p.num_generated + uint32_t(rows_ahead<DRAFTS>(args, row, slot)));
  const int id = filters.any() ? draw_filtered(p, filters, r, results, row, vocab, max, u, s)
                               : draw_unfiltered(r, results, row, vocab, max, p.temperature, u, s.select);
  // All threads have read the slot's parameters before one of them changes these.
  __syncthreads();
  if (threadIdx.x == 0) record<DRAFTS>(state, args, row, slot, id < 0 ? NOT_FINITE : id);
}

}  // namespace pen
