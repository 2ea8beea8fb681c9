// y = W · x for up to 8 tokens, by the definition of linear.h, with each of a block's eight warps on one slice. A block takes a run of row
// tiles. Each warp streams its slice of all of them through a ring of records in shared memory, so that the next tile is requested while
// the current one is summed. The ring is filled before the kernel waits for its predecessor.
#pragma once

#include "../quant/format.cuh"
#include "epilogue.cuh"
#include "staged.cuh"

namespace pen {

// A warp's records of a run of row tiles, in the order in which the warp needs them.
struct Records {
  const uint8_t* next;  // the lane's own bytes
  int left, k_tile, length;
  int skip;  // bytes from a slice's last record to the next tile's slice
  uint32_t ring;  // the lane's own bytes of slot 0

  __device__ __forceinline__ Records(const Matrix& w, Slicing slicing, int first, int count, int warp, int lane, uint32_t ring_at) {
    const int k_tiles = w.k_tiles(), begin = slicing.begin(warp, k_tiles);
    length = slicing.begin(warp + 1, k_tiles) - begin, left = count * length, k_tile = 0;
    skip = (k_tiles - length) * w.record_bytes;
    next = w.data + (size_t(first) * k_tiles + begin) * w.record_bytes + lane * 16;
    ring = held(ring_at + lane * 16);
  }
  // Requests a record for this slot of the ring if one is left. Commits a group in any case.
  __device__ __forceinline__ void request(int slot, int record_bytes, int lane) {
    if (left > 0) {
      left--;
      const uint32_t to = ring + slot * record_bytes;
#pragma unroll
      for (int i = 0; i < record_bytes / 16; i += WARP) {
        if (i + lane < record_bytes / 16) copy_async(to + i * 16, next + i * 16);
      }
      next += record_bytes;
      if (++k_tile == length) {
        k_tile = 0;
        next += skip;
      }
    }
    copy_commit();
  }
};

// Multiplies `count` row tiles of one matrix. The ring is full except for one slot, or holds all of the warp's records.
template <class Format, RingSize RING, class X, class Tile, class Finish>
__device__ __forceinline__ void stream_tiles(Records& records, int count, uint32_t first_column, uint32_t ring, X x,
                                             Tile begin_tile, Finish finish) {
  constexpr int R = ring_records(Format::record_bytes, RING);
  constexpr bool WHOLE = RING == RingSize::WHOLE;
  const int lane = threadIdx.x % WARP, length = records.length;
  int slot = 0, last = R - 1;
  if constexpr (WHOLE) {
    copy_wait<0>();
    __syncwarp();
  }
#pragma unroll 1
  for (int t = 0; t < count; t++) {
    begin_tile(t);
    float acc[4] = {};
    uint32_t column = first_column;
#pragma unroll 1
    for (int c = 0; c < length; c++, column += K_TILE * sizeof(__half)) {
      uint32_t b[STEPS][2];
      typename Format::Raw raw;
      if constexpr (WHOLE) {
        x(b, column);
        raw.load_shared(ring, lane);
        ring += Format::record_bytes;
      } else {
        copy_wait<R - 2>();
        __syncwarp();
        raw.load_shared(ring + slot * Format::record_bytes, lane);
        records.request(last, Format::record_bytes, lane);  // every lane has read that slot
        last = slot;
        slot = slot + 1 == R ? 0 : slot + 1;
        x(b, column);
      }
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        uint32_t a[4];
        raw.fragment(s, a);
        mma(acc, a, b[s]);
      }
    }
    finish(t, acc);
  }
}

// Grid: (blocks), each with its share of the row tiles of all segments. Up to DECODE_TOKENS tokens.
template <Input INPUT, RingSize RING>
__global__ void __launch_bounds__(SLICES* WARP, RING == RingSize::WHOLE && INPUT != Input::NORMS ? 1 : 3)
    linear_decode_kernel(const __grid_constant__ Linear p, int ring_at, int ring_bytes) {
  using Shared = DecodeLinearShared;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* sums = reinterpret_cast<float*>(shared + Shared::sums);
  auto* staged = reinterpret_cast<__half*>(shared + Shared::x);
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int num_tokens = held(p.num_tokens), ldo = held(p.ldo), ldx = held(p.ldx);
  const __half* const given = held(p.x);
  const Epilogue epilogue = Epilogue(held(int(p.epilogue)));
  const bool glu = is_gated(epilogue);
  const Slicing slicing = p.slicing;
  const int log_rows = glu ? 3 : 4;  // of the outputs per tile
  void* const out = held(glu ? static_cast<void*>(p.out16) : p.out);
  int total = 0;
  for (int i = 0; i < p.num_segments; i++) total += p.w[i].tiles();
  const int begin = int(int64_t(blockIdx.x) * total / gridDim.x), end = int(int64_t(blockIdx.x + 1) * total / gridDim.x);
  const int stride = staged_stride(p.w[0].cols), columns = int(round_up(p.w[0].cols, K_TILE));
  int buffer = 0, base = 0;
  bool waited = false;
  for (int segment = 0; segment < p.num_segments; segment++) {
    const Matrix& w = p.w[segment];
    const int tiles = w.tiles(), first = max(begin - base, 0), count = min(end - base, tiles) - first;
    base += tiles;
    if (count <= 0) continue;
    const uint32_t ring = held(shared_of(shared) + ring_at + warp * ring_bytes);
    Records records(w, slicing, first, count, warp, lane, ring);
    const int requested = RING == RingSize::WHOLE ? records.left : ring_records(w.record_bytes, RING) - 1;
    for (int i = 0; i < requested; i++) records.request(i, w.record_bytes, lane);
    // Address of the lane's part of the slice's first K tile [bytes]. A column of the product without a token repeats the first token's.
    const int x_token = lane / 4 < num_tokens ? lane / 4 : 0;
    const uint32_t first_column =
        held(slicing.begin(warp, w.k_tiles()) * K_TILE * 2 +
             (INPUT == Input::GLOBAL ? (x_token * ldx + lane % 4 * 2) * 2 : shared_of(staged + x_token * stride + lane % 4 * 16)));
    const auto x = [=](uint32_t (&b)[STEPS][2], uint32_t column) {
      if constexpr (INPUT == Input::GLOBAL) {
        const char* at = reinterpret_cast<const char*>(given) + column;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) b[i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(at + 16 * i);
      } else {
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) {
          asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(b[s][0]), "=r"(b[s][1]), "=r"(b[s + 1][0]), "=r"(b[s + 1][1])
                       : "r"(column + 8 * s));
        }
      }
    };
    // A small number of tiles is summed together at the end, each tile in its own rows: one barrier instead of one per tile.
    const int group = count * num_tokens <= DECODE_TOKENS ? count : 1;
    // The thread's output in the first group: its tile, token and row, its index, and how many rows of the matrix are left from there.
    const int own_row = threadIdx.x & ((1 << log_rows) - 1), own_tile = (threadIdx.x >> log_rows) / num_tokens;
    const int own_token = (threadIdx.x >> log_rows) - own_tile * num_tokens;
    const int own_column = (first + own_tile << log_rows) + own_row, own_at = held(own_token * ldo + p.out_offset[segment] + own_column);
    const int own_rows = held(own_tile < group ? (glu ? w.rows / 2 : w.rows) - own_column : 0);
    const auto owned = [&](int t, auto f) {
      if (t << log_rows < own_rows) f(own_at + (t << log_rows));
    };
    float kept = 0;  // the value to add the sum to, requested before the products, or zero
    const auto begin_tile = [&](int t) {
      if (epilogue == Epilogue::ADD && (group == 1 || t == 0)) owned(t, [&](int at) { kept = static_cast<const float*>(out)[at]; });
    };
    const auto finish = [&](int t, const float (&acc)[4]) {
      auto* partial = reinterpret_cast<float(*)[DECODE_TOKENS][Shared::STRIDE]>(shared + buffer * Shared::partial);
      const int row = lane / 4, token = 2 * (lane % 4), at = group == 1 ? token : t * num_tokens + token;
      if (token < num_tokens) partial[warp][at][row] = acc[0], partial[warp][at][row + 8] = acc[2];
      if (token + 1 < num_tokens) partial[warp][at + 1][row] = acc[1], partial[warp][at + 1][row + 8] = acc[3];
      if (group > 1 && t + 1 < count) return;
      buffer ^= 1;
      __syncthreads();
      owned(group == 1 ? t : 0, [&](int at) {
        const int own = threadIdx.x >> log_rows;
        const auto sum = [&](int r, float base) { return sum_up(base, slicing.halves, [&](int s) { return partial[s][own][r]; }); };
        if (glu) static_cast<__half*>(out)[at] = gated(sum(own_row, 0.0f), sum(own_row + 8, 0.0f), epilogue);
        else static_cast<float*>(out)[at] = sum(own_row, kept);
      });
    };
    if (!waited) {
      waited = true;
      wait_for_previous();
      const bool writes = blockIdx.x == 0;
      if constexpr (INPUT == Input::NORM) norm_rows<1, 2>(p.norm, 1, staged, writes, sums);
      if constexpr (INPUT == Input::NORMS) {
        constexpr bool LATE = RING != RingSize::WHOLE;  // measured: without it, spilled registers cost more
        if (num_tokens == 2) norm_rows<2, 2, LATE>(p.norm, 2, staged, writes, sums);
        else norm_rows<NORM_ROWS, 1, LATE>(p.norm, num_tokens, staged, writes, sums);
      }
      if constexpr (INPUT == Input::SHARED) {
        // The columns of the warp's slice.
        const int from = slicing.begin(warp, columns / K_TILE) * 8, pieces = slicing.begin(warp + 1, columns / K_TILE) * 8 - from;
        for (int n = 0; n < num_tokens; n++) copy_pieces(StagedRow{staged + n * stride}, given + size_t(n) * ldx, from, pieces, lane);
        __syncwarp();
      }
    }
    with_format(w.format, [&](auto format) {
      stream_tiles<decltype(format), RING>(records, count, first_column, ring, x, begin_tile, finish);
    });
  }
  copy_wait<0>();
}

}  // namespace pen
