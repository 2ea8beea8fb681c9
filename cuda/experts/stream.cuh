// How the kernels of decode.cuh read weights: each of a block's eight warps streams one slice of the block's units (a row tile of an
// expert) through a ring of its own in shared memory, filled by bulk copies (sm_90), and multiplies two units at a time.
#pragma once

#include "../linear/decode.cuh"
#include "lists.cuh"

namespace pen {

constexpr int MAX_RING_SLOTS = 16;
constexpr int LONGEST_SLICE = 60;  // records

// The shared memory of a kernel. A warp has a ring and a buffer for its columns of rows of x.
struct StreamPlan {
  int piece;     // records of a unit in a slot; a slot holds a piece of two units
  int slots;
  int x_rows, x_stride;  // of the buffer; the stride in bytes
  int x_at, ring_at, ring_bytes;
  size_t bytes;  // of all
};

__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
// Weights are read once in a step: the L2 cache gives their lines up first.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const uint8_t* from, int bytes, uint32_t barrier, uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}
__device__ __forceinline__ void wait_at(uint32_t barrier, uint32_t phase) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nwait:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra end;\nbra wait;\nend:\n}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
#endif
}

// The slice of a warp. A multiprocessor's four schedulers have the warps w and w + 4: together they have as much as any other two.
__device__ __forceinline__ int slice_of(int warp) { return warp < SLICES / 2 ? warp : 3 * SLICES / 2 - 1 - warp; }

// A place in the order of a block's units: all tiles of a group, then those of the next one. `left`: units from here on.
struct GroupsOfTiles {
  int group, tile, tiles, left;
  __device__ __forceinline__ bool more() const { return left > 0; }
  __device__ __forceinline__ bool both() const { return left > 1; }
  __device__ __forceinline__ void step() {
    left--;
    if (++tile == tiles) tile = 0, group++;
  }
};
// A tile of all groups, then the next tile. Two units of different tiles are not multiplied together.
struct TilesOfGroups {
  int group, tile, groups, end;
  __device__ __forceinline__ bool more() const { return tile < end; }
  __device__ __forceinline__ bool both() const { return group + 1 < groups; }
  __device__ __forceinline__ void step() {
    if (++group == groups) group = 0, tile++;
  }
};

template <class Format, class Place>
struct Stream {
  static constexpr int RECORD = Format::record_bytes;
  Place here;
  int lane, begin, length, piece, slots, slot_bytes;
  uint32_t ring, barriers;
  int slot = 0;
  uint32_t phase = 0;
  // What the first lane requests next.
  Place ahead;
  int chunk = 0;
  const uint8_t *first = nullptr, *second = nullptr;
  uint64_t policy = read_once();

  __device__ __forceinline__ Stream(const StreamPlan& plan, Place from, int chunks, int warp, int lane, uint32_t shared,
                                    uint64_t* all_barriers)
      : here(from), lane(lane), ahead(from) {
    const int slice = slice_of(warp);
    begin = slice_begin(slice, chunks), length = slice_begin(slice + 1, chunks) - begin;
    piece = held(plan.piece), slots = held(plan.slots), slot_bytes = 2 * piece * RECORD;
    ring = held(shared + plan.ring_at + warp * plan.ring_bytes);
    barriers = held(shared_of(all_barriers + warp * MAX_RING_SLOTS));
  }
  // Before anything is requested: by each warp for itself.
  __device__ __forceinline__ static void set_up(uint64_t* all_barriers, int slots, int warp, int lane) {
    if (lane < slots) barrier_init(all_barriers + warp * MAX_RING_SLOTS + lane, 1);
    fence_async_proxy();
    __syncwarp();
  }
  // Requests the next piece, if there is one, for a slot that nobody reads any more. By one lane. at(place) is where a tile begins.
  template <class At>
  __device__ __forceinline__ void request(int to_slot, At at) {
    if (length == 0 || !ahead.more()) return;
    const bool both = ahead.both();
    if (chunk == 0) {
      Place next = ahead;
      next.step();
      first = at(ahead) + begin * RECORD;
      if (both) second = at(next) + begin * RECORD;
    }
    const int count = min(piece, length - chunk), bytes = count * RECORD;
    const uint32_t to = ring + to_slot * slot_bytes, barrier = barriers + to_slot * 8;
    expect_bytes(barrier, both ? 2 * bytes : bytes);
    copy_bulk(to, first, bytes, barrier, policy);
    if (both) copy_bulk(to + piece * RECORD, second, bytes, barrier, policy);
    first += bytes, second += bytes, chunk += count;
    if (chunk == length) {
      chunk = 0;
      ahead.step();
      if (both) ahead.step();
    }
  }
  template <class At>
  __device__ __forceinline__ void fill(At at) {
    if (lane == 0) {
      for (int i = 0; i < slots; i++) request(i, at);
    }
    __syncwarp();
  }
  // Multiplies the next two units, or the last one: x_of(place) is where the lane's part of its x lies, finish(place, sums) takes what
  // came out.
  template <class At, class XOf, class Finish>
  __device__ __forceinline__ void multiply(At at, XOf x_of, Finish finish) {
    const bool both = here.both();
    Place next = here;
    next.step();
    uint32_t xa = x_of(here), xb = both ? x_of(next) : xa;
    float acc[2][4] = {};
#pragma unroll 1
    for (int c = 0; c < length; c += piece) {
      const int count = min(piece, length - c);
      uint32_t record = ring + slot * slot_bytes;
      const uint32_t apart = piece * RECORD;
      wait_at(barriers + slot * 8, phase);
#pragma unroll 1
      for (int r = 0; r < count; r++, record += RECORD, xa += CHUNK * 2, xb += CHUNK * 2) {
        typename Format::Raw raw[2];
        uint32_t b[2][STEPS][2];
        raw[0].load_shared(record, lane);
        raw[1].load_shared(record + apart, lane);
        load_x(b[0], xa);
        load_x(b[1], xb);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
          for (int u = 0; u < 2; u++) {
            uint32_t a[4];
            raw[u].fragment(s, a);
            mma(acc[u], a, b[u][s]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) request(slot, at);
      if (++slot == slots) slot = 0, phase ^= 1;
    }
    finish(here, acc[0]);
    if (both) finish(next, acc[1]), here.step();
    here.step();
  }

  __device__ __forceinline__ static void load_x(uint32_t (&b)[STEPS][2], uint32_t at) {
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[s][0]), "=r"(b[s][1]), "=r"(b[s + 1][0]), "=r"(b[s + 1][1])
                   : "r"(at + 8 * s));
    }
  }
  // Copies the warp's columns of `rows` rows, row_at(i), to its buffer; its lanes see them after the next __syncwarp().
  template <class RowAt>
  __device__ __forceinline__ void copy_rows(uint8_t* buffer, int stride, int rows, RowAt row_at) const {
    constexpr int BATCH = 8;  // requested together
    const int total = rows * length * (CHUNK / 8);
    const uint32_t inverse = length > 0 ? (65536 + length - 1) / length : 0;  // exact for the few rows that there are
    const auto row_of = [&](int i) { return int(uint32_t(i / (CHUNK / 8)) * inverse >> 16); };
    const int pieces = length * (CHUNK / 8);
#pragma unroll 1
    for (int base = lane; base < total; base += BATCH * WARP) {
      uint4 value[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int i = min(base + k * WARP, total - 1), row = row_of(i);
        value[k] = __ldcg(reinterpret_cast<const uint4*>(row_at(row) + begin * CHUNK + (i - row * pieces) * 8));
      }
#pragma unroll
      for (int k = 0; k < BATCH; k++) {
        const int i = base + k * WARP, row = row_of(i), column = (i - row * pieces) * 8;
        if (i >= total) break;
        const StagedRow to{reinterpret_cast<__half*>(buffer + row * stride)};
        to.put(column, value[k].x, value[k].y);
        to.put(column + 4, value[k].z, value[k].w);
      }
    }
  }
};

}  // namespace pen
