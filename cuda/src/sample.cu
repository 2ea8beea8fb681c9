// Sampling: two passes over all rows by many blocks a row (the largest logit; weights, their sums and a histogram), then one block
// a row draws. A greedy row is done in the second pass's first block; all that follows leaves it at once. What a row asks for is read
// before the wait: nothing in the step changes it, but for how many tokens a row that is done has generated.
//
// Semantics, order and rounding are those of src/logits: the same logits and seed give the same id. The exceptions are sums of
// doubles, whose last bits may differ.
#include "../ops/sample.cuh"

namespace pen {
namespace {

constexpr int PASS_THREADS = 256;
constexpr int LIST = 2048;  // candidates that fit into shared memory

__device__ __forceinline__ float4 load4(const float* row, int id, int vocab, bool aligned) {
  if (aligned && id + 4 <= vocab) return *reinterpret_cast<const float4*>(row + id);
  float4 x;
  x.x = id < vocab ? row[id] : -INFINITY;
  x.y = id + 1 < vocab ? row[id + 1] : -INFINITY;
  x.z = id + 2 < vocab ? row[id + 2] : -INFINITY;
  x.w = id + 3 < vocab ? row[id + 3] : -INFINITY;
  return x;
}

// The four of a thread's `part`-th group, adjusted; ids past the vocabulary are -inf.
__device__ __forceinline__ void adjust4(float (&x)[4], const Row& r, int id, int vocab) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (id + j < vocab) x[j] = r.adjusted(x[j], id + j);
  }
}

constexpr int GROUPS = CHUNK / (4 * PASS_THREADS);

// grid (chunks, rows). The best key of a chunk.
__global__ void __launch_bounds__(PASS_THREADS) largest_kernel(SamplerState state, Sample args, Scratch scratch) {
  let_next_start();
  const int chunk = blockIdx.x, row = blockIdx.y, slot = args.slots[row], vocab = state.vocab;
  const Row r = make_row(state, args, row, max(slot, 0), state.params[max(slot, 0)]);
  wait_for_previous();
  if (slot < 0) {
    if (chunk == 0 && threadIdx.x == 0) args.sampled[row] = -1;
    return;
  }
  const float* logits = args.logits + size_t(row) * vocab;
  const bool aligned = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
  const int start = chunk * CHUNK + 4 * int(threadIdx.x);
  float4 loaded[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; g++) loaded[g] = load4(logits, start + g * 4 * PASS_THREADS, vocab, aligned);
  if (chunk == 0 && threadIdx.x < EXPONENTS) {
    scratch.counts[row * EXPONENTS + threadIdx.x] = 0;
    scratch.masses[row * EXPONENTS + threadIdx.x] = 0;
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
    if (threadIdx.x == 0) scratch.keys[size_t(row) * scratch.chunks + chunk] = all;
  }
}

// grid (chunks, rows). Greedy and broken rows end here; of the others the sums of weights by blocks of 256 and, for filters, how
// many candidates lie in each power of two: of distances of logits for top-k, of weights >= min_p (with their mass) else.
__global__ void __launch_bounds__(PASS_THREADS) weigh_kernel(SamplerState state, Sample args, Scratch scratch) {
  let_next_start();
  const int chunk = blockIdx.x, row = blockIdx.y, slot = args.slots[row], vocab = state.vocab;
  const float temperature = state.params[max(slot, 0)].temperature;
  wait_for_previous();
  if (slot < 0) return;
  if (temperature == 0.0f && chunk != 0) return;
  const uint64_t best = row_best(scratch, row);  // by every warp for itself
  const bool sound = is_sound(best);
  if (temperature == 0.0f || !sound) {
    if (chunk == 0 && threadIdx.x == 0) record(state, args, row, slot, sound ? best_id(best) : NOT_FINITE);
    return;
  }
  const SlotParams p = state.params[slot];
  const Row r = make_row(state, args, row, slot, p);
  const Filters filters(p, vocab);
  const float max = best_value(best), scale = bucket_scale(temperature);
  const bool aligned = (reinterpret_cast<uintptr_t>(r.logits) & 15) == 0;
  __shared__ float weights[CHUNK];
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
    const int local = 4 * int(threadIdx.x) + g * 4 * PASS_THREADS, id = chunk * CHUNK + local;
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
  const int block = chunk * (CHUNK / SUM_BLOCK) + int(threadIdx.x);
  if (threadIdx.x < CHUNK / SUM_BLOCK && block < scratch.sum_blocks) {
    double sum = 0.0;
    for (int lane = 0; lane < SUM_LANES; lane++) sum += double(lanes[threadIdx.x * SUM_LANES + lane]);
    scratch.sums[size_t(row) * scratch.sum_blocks + block] = sum;
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
      atomicAdd(&scratch.counts[row * EXPONENTS + threadIdx.x], uint32_t(count));
      atomicAdd(reinterpret_cast<unsigned long long*>(&scratch.masses[row * EXPONENTS + threadIdx.x]),
                static_cast<unsigned long long>((count << 23) + (h << 12) + l));
    }
  }
}

// --- drawing ---

// Weights of a whole row, after the filters so far. Keys are computed anew in each pass.
struct RowWeights {
  Row row;
  float max, temperature, min_p, floor;
  bool cut;          // top-k: only logits of `cut_key` or larger, of those equal only ids up to `cut_id`
  uint32_t cut_key;
  int cut_id;
  float lo, hi;      // logits outside weigh less, or more, than the pass at hand asks for

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

  // Logits whose weights may be in [w_lo, w_hi], with room for rounding.
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

// The elements of the row with a key, in ascending order of ids, into the list; how many they are (at most LIST). `offer(id)`
// gives the key or 0.
template <typename Offer>
__device__ int compact(int vocab, Offer offer, DrawShared& s) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int stretch = ceil_div(ceil_div(vocab, SELECT_WARPS), WARP) * WARP;
  const int start = min(warp * stretch, vocab), stop = min(start + stretch, vocab);
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

// An index of the source, drawn by `u` in proportion to the weights that top-p leaves; n where nothing weighs anything. `total`:
// the mass of which top-p takes its share, negative: that of the source.
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
  // Rounding must not lead past the end of what top-p left.
  if (hit.key < end.key || (hit.key == end.key && hit.ties > end.ties)) hit = end;
  narrow(hit.key, hit.key);
  return nth_equal(n, hit.key, hit.ties, source, s);
}

// The whole vocabulary: by the sums of blocks, then within one.
__device__ int draw_unfiltered(const Row& r, const Scratch& scratch, int row, int vocab, float max, float temperature, double u,
                               SelectShared& s) {
  const double* sums = scratch.sums + size_t(row) * scratch.sum_blocks;
  double total = 0.0;
  for (int i = threadIdx.x; i < scratch.sum_blocks; i += SELECT_THREADS) total += sums[i];
  total = block_sum(total, s);
  const double threshold = u * total;
  double below = 0.0;
  const int block = search_sum(0, scratch.sum_blocks, below, threshold, [&](int i) { return sums[i]; }, s);
  const int start = block * SUM_BLOCK;
  const auto mass = [&](int id) { return double(weight_of(r.at(id), max, temperature)); };
  return search_sum(start, min(start + SUM_BLOCK, vocab), below, threshold, mass, s);
}

__device__ int draw_filtered(const SlotParams& p, const Filters& filters, const Row& r, const Scratch& scratch, int row, int vocab,
                             float max, double u, DrawShared& s) {
  const double top_p = double(p.top_p);
  RowWeights weights{r, max, p.temperature, filters.min_p ? p.min_p : 0.0f, 0.0f, false, 0u, 0, -INFINITY, INFINITY};
  double total = -1.0;
  if (!filters.top_k && filters.top_p) {
    const uint64_t* masses = scratch.masses + row * EXPONENTS;
    const double* sums = scratch.sums + size_t(row) * scratch.sum_blocks;
    double own = 0.0;
    if (filters.min_p) {
      if (threadIdx.x < EXPONENTS) own = double(masses[threadIdx.x]) * mantissa_unit(threadIdx.x);
    } else {
      for (int i = threadIdx.x; i < scratch.sum_blocks; i += SELECT_THREADS) own += sums[i];
    }
    total = block_sum(own, s.select);
    // What is lighter than this weighs less than half of 1 - top_p together: the CPU's sampler leaves it out.
    if (!filters.min_p) weights.floor = float(0.5 * (1.0 - top_p) * total / double(vocab));
  }
  weights.narrow(__float_as_uint(fmaxf(weights.min_p, weights.floor)), __float_as_uint(1.0f));
  // The buckets that can hold a survivor, and how many candidates they have.
  if (threadIdx.x < EXPONENTS) {
    s.select.exponent_counts[threadIdx.x] = scratch.counts[row * EXPONENTS + threadIdx.x];
    s.select.exponent_masses[threadIdx.x] = double(scratch.masses[row * EXPONENTS + threadIdx.x]) * mantissa_unit(threadIdx.x);
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

// grid (rows). Draws for the rows that are not greedy.
__global__ void __launch_bounds__(SELECT_THREADS) draw_kernel(SamplerState state, Sample args, Scratch scratch) {
  let_next_start();
  const int row = blockIdx.x, slot = args.slots[row], vocab = state.vocab;
  const bool draws = slot >= 0 && state.params[slot].temperature != 0.0f;
  wait_for_previous();
  if (!draws) return;
  const uint64_t best = row_best(scratch, row);
  if (!is_sound(best)) return;
  __shared__ DrawShared s;
  const SlotParams p = state.params[slot];
  const Row r = make_row(state, args, row, slot, p);
  const Filters filters(p, vocab);
  const float max = best_value(best);
  const double u = uniform(p.seed, p.num_generated);
  const int id = filters.any() ? draw_filtered(p, filters, r, scratch, row, vocab, max, u, s)
                               : draw_unfiltered(r, scratch, row, vocab, max, p.temperature, u, s.select);
  // The slot's parameters are read by all before one changes them.
  __syncthreads();
  if (threadIdx.x == 0) record(state, args, row, slot, id < 0 ? NOT_FINITE : id);
}

// grid (rows). Log-softmax of the raw logits, where a row asks.
__global__ void __launch_bounds__(SELECT_THREADS) logprobs_kernel(SamplerState state, Sample args) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x, vocab = state.vocab, asked = args.num_logprobs[row];
  if (args.slots[row] < 0 || asked < 0) return;
  const int n = min(min(asked, MAX_LOGPROBS), vocab), sampled = args.sampled[row];
  const float* logits = args.logits + size_t(row) * vocab;
  float* out = args.logprobs + size_t(row) * (1 + MAX_LOGPROBS);
  int32_t* ids = args.logprob_ids + size_t(row) * MAX_LOGPROBS;
  const int tid = threadIdx.x;
  if (sampled < 0) {
    if (tid <= MAX_LOGPROBS) out[tid] = NAN;
    if (tid < MAX_LOGPROBS) ids[tid] = -1;
    return;
  }
  __shared__ SelectShared s;
  __shared__ float maxima[SELECT_WARPS];
  __shared__ float top[MAX_LOGPROBS];
  __shared__ int top_ids[MAX_LOGPROBS];
  float max = -INFINITY;
#pragma unroll 4
  for (int i = tid; i < vocab; i += SELECT_THREADS) max = fmaxf(max, logits[i]);
  max = warp_max(max);
  if (tid % WARP == 0) maxima[tid / WARP] = max;
  if (tid == 0) s.found = 0;
  __syncthreads();
  max = warp_max(maxima[tid % WARP]);
  double sum = 0.0;
#pragma unroll 4
  for (int i = tid; i < vocab; i += SELECT_THREADS) sum += double(exp_weight(__fsub_rn(logits[i], max)));
  const double norm = log(block_sum(sum, s));
  const auto logprob = [&](float x) { return float(double(x) - double(max) - norm); };
  if (tid == 0) out[0] = logprob(logits[sampled]);
  if (n > 0) {
    const auto keys = [&](int i) { return order_key(logits[i]); };
    const KeyCut cut = select_largest(vocab, uint32_t(n), keys, s);
    const int cut_id = cut.all ? vocab : nth_equal(vocab, cut.key, cut.ties, keys, s);
    if (tid == 0) s.found = 0;
    __syncthreads();
    for (int i = tid; i < vocab; i += SELECT_THREADS) {
      const uint32_t key = keys(i);
      if (key > cut.key || (key == cut.key && i <= cut_id)) {
        const uint32_t at = atomicAdd(&s.found, 1u);  // in any order: they are ranked below
        if (at < uint32_t(n)) {
          top[at] = logits[i];
          top_ids[at] = i;
        }
      }
    }
    __syncthreads();
  }
  if (tid < n) {
    int rank = 0;
    for (int j = 0; j < n; j++) rank += top[j] > top[tid] || (top[j] == top[tid] && top_ids[j] < top_ids[tid]);
    out[1 + rank] = logprob(top[tid]);
    ids[rank] = top_ids[tid];
  }
  if (tid >= n && tid < MAX_LOGPROBS) {
    out[1 + tid] = -INFINITY;
    ids[tid] = -1;
  }
}

Scratch make_scratch(void* workspace, int num_rows, int vocab, size_t* bytes) {
  Scratch scratch{};
  scratch.chunks = ceil_div(vocab, CHUNK);
  scratch.sum_blocks = ceil_div(vocab, SUM_BLOCK);
  char* at = static_cast<char*>(workspace);
  size_t offset = 0;
  const auto take = [&](size_t size) {
    char* p = at + offset;
    offset += round_up(size, 256);
    return p;
  };
  scratch.keys = reinterpret_cast<uint64_t*>(take(sizeof(uint64_t) * num_rows * scratch.chunks));
  scratch.sums = reinterpret_cast<double*>(take(sizeof(double) * num_rows * scratch.sum_blocks));
  scratch.masses = reinterpret_cast<uint64_t*>(take(sizeof(uint64_t) * num_rows * EXPONENTS));
  scratch.counts = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t) * num_rows * EXPONENTS));
  *bytes = offset;
  return scratch;
}

// --- setting a slot up ---

constexpr int RESET_THREADS = 1024;

__device__ __forceinline__ bool needs_counts(const SlotParams& p) {
  return has_penalties(p) || p.num_biases > 0 || p.num_suppressed > 0;
}

__global__ void __launch_bounds__(RESET_THREADS) clear_kernel(SamplerState state, uint32_t slot, SlotParams p) {
  let_next_start();
  wait_for_previous();
  if (blockIdx.x == 0 && threadIdx.x == 0) state.params[slot] = p;
  if (!needs_counts(p)) return;
  uint32_t* counts = state.counts + size_t(slot) * state.vocab;
  for (int i = int(blockIdx.x) * RESET_THREADS + int(threadIdx.x); i < state.vocab; i += int(gridDim.x) * RESET_THREADS) counts[i] = 0;
}

struct ResetLists {
  const uint32_t *prompt, *generated, *bias_ids, *suppressed;
  const float* biases;
  uint32_t num_prompt, num_generated;
};

__global__ void __launch_bounds__(RESET_THREADS) mark_kernel(SamplerState state, uint32_t slot, SlotParams p, ResetLists lists) {
  let_next_start();
  wait_for_previous();
  uint32_t* counts = state.counts + size_t(slot) * state.vocab;
  const uint32_t vocab = uint32_t(state.vocab);
  const uint32_t first = blockIdx.x * RESET_THREADS + threadIdx.x, step = gridDim.x * RESET_THREADS;
  if (p.repetition_penalty != 1.0f) {
    for (uint32_t i = first; i < lists.num_prompt; i += step) {
      if (lists.prompt[i] < vocab) atomicOr(&counts[lists.prompt[i]], SEEN_IN_PROMPT);
    }
  }
  if (has_penalties(p)) {
    for (uint32_t i = first; i < lists.num_generated; i += step) {
      if (lists.generated[i] < vocab) atomicAdd(&counts[lists.generated[i]], 1u);
    }
  }
  if (blockIdx.x != 0) return;
  for (uint32_t i = threadIdx.x; i < p.num_suppressed; i += RESET_THREADS) {
    if (lists.suppressed[i] < vocab) atomicOr(&counts[lists.suppressed[i]], SUPPRESSED);
  }
  if (p.num_biases == 0) return;
  // Biases by id; those of the same id stay in their order, since sums of floats depend on it. A bitonic sort of (id, place).
  __shared__ uint64_t keys[MAX_BIASES];
  for (int i = threadIdx.x; i < MAX_BIASES; i += RESET_THREADS) {
    keys[i] = uint32_t(i) < p.num_biases ? uint64_t(lists.bias_ids[i]) << 32 | uint32_t(i) : ~0ull;
  }
  for (int size = 2; size <= MAX_BIASES; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < MAX_BIASES / 2; t += RESET_THREADS) {
        const int a = t / stride * 2 * stride + t % stride, b = a + stride;
        const bool ascending = (a & size) == 0;
        const uint64_t x = keys[a], y = keys[b];
        if ((x > y) == ascending) {
          keys[a] = y;
          keys[b] = x;
        }
      }
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < p.num_biases; i += RESET_THREADS) {
    const uint32_t id = uint32_t(keys[i] >> 32);
    state.bias_ids[size_t(slot) * MAX_BIASES + i] = id;
    state.biases[size_t(slot) * MAX_BIASES + i] = lists.biases[uint32_t(keys[i])];
    if (id < vocab) atomicOr(&counts[id], BIASED);
  }
}

}  // namespace

size_t sampler_workspace(int num_rows, int vocab) {
  size_t bytes = 0;
  make_scratch(nullptr, num_rows, vocab, &bytes);
  return bytes;
}

// `params.num_generated` and the argument count the same tokens: the larger one holds, since `generated` may be left out where no
// penalty asks for it.
void sampler_reset(const Launch& launch, const SamplerState& state, uint32_t slot, const SlotParams& params, const uint32_t* prompt,
                   uint32_t num_prompt, const uint32_t* generated, uint32_t num_generated, const uint32_t* bias_ids, const float* biases,
                   const uint32_t* suppressed) {
  if (slot >= uint32_t(state.max_slots) || params.num_biases > MAX_BIASES || params.num_suppressed > MAX_SUPPRESSED) {
    throw CudaError(cudaErrorInvalidValue, "a slot's sampling parameters");
  }
  SlotParams p = params;
  if (num_generated > p.num_generated) p.num_generated = num_generated;
  launch(clear_kernel, dim3(ceil_div(state.vocab, 4 * RESET_THREADS)), dim3(RESET_THREADS), 0, state, slot, p);
  const ResetLists lists{prompt, generated, bias_ids, suppressed, biases, prompt ? num_prompt : 0, generated ? num_generated : 0};
  if (has_penalties(p) || p.num_biases > 0 || p.num_suppressed > 0) {
    launch(mark_kernel, dim3(8), dim3(RESET_THREADS), 0, state, slot, p, lists);
  }
}

// Vocabularies up to 2^19 ids: the histograms' 32-bit sums hold no more.
void sample(const Launch& launch, const SamplerState& state, const Sample& args) {
  if (args.num_rows == 0) return;
  size_t bytes = 0;
  const Scratch scratch = make_scratch(args.workspace, args.num_rows, state.vocab, &bytes);
  if (state.vocab > 1 << 19 || args.workspace_bytes < bytes) throw CudaError(cudaErrorInvalidValue, "sampling: vocabulary or workspace");
  const dim3 all(scratch.chunks, args.num_rows);
  launch(largest_kernel, all, dim3(PASS_THREADS), 0, state, args, scratch);
  launch(weigh_kernel, all, dim3(PASS_THREADS), 0, state, args, scratch);
  launch(draw_kernel, dim3(args.num_rows), dim3(SELECT_THREADS), 0, state, args, scratch);
  if (args.num_logprobs != nullptr) sample_logprobs(launch, state, args);
}

void sample_logprobs(const Launch& launch, const SamplerState& state, const Sample& args) {
  if (args.num_rows > 0) launch(logprobs_kernel, dim3(args.num_rows), dim3(SELECT_THREADS), 0, state, args);
}

}  // namespace pen
