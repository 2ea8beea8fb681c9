// y = W · x for few tokens: the numeric definition of linear.cuh with each of a block's eight warps on one slice. A block takes a run of
// row tiles and each warp streams its slice of all of them through a ring of records in shared memory, so that the memory is
// asked for the next tile while this one is summed. The ring is filled before the kernel waits for its predecessor, and a
// norm is rehearsed on what lies about: instructions come from afar the first time, which a chain of short kernels would wait for
// again and again. What a rehearsal reads is read past L1, lest it be found there afterwards.
#pragma once

#include "linear.cuh"

namespace pen {

// Where the fragments of x come from.
enum class Input : int {
  NORM,    // p.norm's output, computed by every block for itself into shared memory
  SHARED,  // p.x, copied to shared memory by the warps, each its own columns
  GLOBAL,  // p.x
};

// Bytes of records that a warp's ring holds at least: where there is one block a multiprocessor at most, where there are more, and for
// long rows. Measured: more in flight than the memory needs is in the way of what the kernels around it wait for. The shortest is for
// devices with less shared memory than the others want.
enum class RingSize : int { FEW_TILES = 10240, USUAL = 5120, LONG_ROWS = 8192, SHORTEST = 1024 };
__host__ __device__ constexpr int ring_records(int record_bytes, RingSize size) {
  const int n = int(size) / record_bytes + 1;
  return n < 3 ? 3 : n > 17 ? 17 : n;
}

template <int NT>
struct DecodeLinearShared {
  static constexpr int STRIDE = TILE_ROWS + 4;
  static constexpr size_t partial = size_t(SLICES) * NT * 8 * STRIDE * 4;  // of a tile; there are two
  static constexpr size_t sums = 2 * partial;
  static constexpr size_t x = sums + 128;
};

// A warp's records of a run of row tiles, in the order in which it needs them.
struct Records {
  const uint8_t* next;  // the lane's own bytes
  int left, chunk, length;
  size_t skip;  // from a slice's last record to the next tile's slice
  uint32_t ring;  // the lane's own bytes of slot 0

  __device__ __forceinline__ Records(const Matrix& w, int first, int count, int warp, int lane, uint32_t ring_at) {
    const int chunks = w.chunks(), begin = slice_begin(warp, chunks);
    length = slice_begin(warp + 1, chunks) - begin, left = count * length, chunk = 0;
    skip = size_t(chunks - length) * w.record_bytes;
    next = w.data + (size_t(first) * chunks + begin) * w.record_bytes + lane * 16;
    ring = held(ring_at + lane * 16);
  }
  // Requests a record for this slot and commits a group, be there one left or not.
  __device__ __forceinline__ void request(int slot, int record_bytes, int lane) {
    if (left > 0) {
      left--;
      const uint32_t to = ring + slot * record_bytes;
#pragma unroll
      for (int i = 0; i < record_bytes / 16; i += WARP) {
        if (i + lane < record_bytes / 16) copy_async(to + i * 16, next + i * 16);
      }
      next += record_bytes;
      if (++chunk == length) {
        chunk = 0;
        next += skip;
      }
    }
    copy_commit();
  }
};

// `count` row tiles of one matrix; the ring is full but for a slot.
template <class Format, int NT, RingSize RING, class Fragments, class Tile, class Finish>
__device__ __forceinline__ void stream_tiles(Records& records, int count, int first_column, uint32_t ring, Fragments x,
                                             Tile begin_tile, Finish finish) {
  constexpr int R = ring_records(Format::record_bytes, RING);
  const int lane = threadIdx.x % WARP, length = records.length;
  int slot = 0, last = R - 1;
#pragma unroll 1
  for (int t = 0; t < count; t++) {
    begin_tile(t);
    float acc[NT][4] = {};
    int column = first_column;
#pragma unroll 1
    for (int c = 0; c < length; c++, column += CHUNK) {
      copy_wait<R - 2>();
      __syncwarp();
      typename Format::Raw raw;
      raw.load_shared(ring + slot * Format::record_bytes, lane);
      records.request(last, Format::record_bytes, lane);  // every lane has read that slot
      last = slot;
      slot = slot + 1 == R ? 0 : slot + 1;
      uint32_t b[STEPS][NT][2];
#pragma unroll
      for (int s = 0; s < STEPS; s++) x(b[s], column + 16 * s);
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        uint32_t a[4];
        raw.fragment(s, a);
#pragma unroll
        for (int n = 0; n < NT; n++) mma(acc[n], a, b[s][n]);
      }
    }
    finish(t, acc);
  }
}

// Grid: blocks, each with its share of the row tiles of all segments. Up to 8 NT tokens.
template <int NT, Input INPUT, RingSize RING>
__global__ void __launch_bounds__(SLICES* WARP, RING == RingSize::FEW_TILES ? 1 : 3) linear_decode_kernel(const __grid_constant__ Linear p, int ring_at,
                                                                                                int ring_bytes, bool rehearses) {
  using Shared = DecodeLinearShared<NT>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* sums = reinterpret_cast<float*>(shared + Shared::sums);
  auto* staged = reinterpret_cast<__half*>(shared + Shared::x);
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int num_tokens = held(p.num_tokens), ldo = held(p.ldo), ldx = held(p.ldx);
  float* const out = held(p.out);
  __half* const out16 = held(p.out16);
  const __half* const given = held(p.x);
  const Epilogue epilogue = Epilogue(held(int(p.epilogue)));
  const bool glu = epilogue == Epilogue::SILU_MUL || epilogue == Epilogue::GELU_MUL;
  const int log_rows = glu ? 3 : 4;  // of a tile's outputs
  int total = 0;
  for (int i = 0; i < p.num_segments; i++) total += p.w[i].tiles();
  const int begin = int(int64_t(blockIdx.x) * total / gridDim.x), end = int(int64_t(blockIdx.x + 1) * total / gridDim.x);
  const int stride = norm_stride(p.w[0].cols), columns = int(round_up(p.w[0].cols, CHUNK));
  int buffer = 0, base = 0;
  const NormWeights<INPUT == Input::NORM ? 2 : 1> weights(p.norm);
  bool waited = false;
  for (int segment = 0; segment < p.num_segments; segment++) {
    const Matrix& w = p.w[segment];
    const int tiles = w.tiles(), first = max(begin - base, 0), count = min(end - base, tiles) - first;
    base += tiles;
    if (count <= 0) continue;
    const int rows = w.rows, offset = p.out_offset[segment];
    const uint32_t ring = held(shared_of(shared) + ring_at + warp * ring_bytes);
    Records records(w, first, count, warp, lane, ring);
    for (int i = 0; i < ring_records(w.record_bytes, RING) - 1; i++) records.request(i, w.record_bytes, lane);
    const uint32_t fragments = held(shared_of(staged + (lane / 4) * stride + 2 * (lane % 4)));
    const auto x = [=](uint32_t (&b)[NT][2], int column) {
#pragma unroll
      for (int n = 0; n < NT; n++) {
        const int token = 8 * n + lane / 4;
        b[n][0] = b[n][1] = 0;
        if (token >= num_tokens) continue;
        if constexpr (INPUT == Input::GLOBAL) {
          const __half* at = given + size_t(token) * ldx + column + 2 * (lane % 4);
          b[n][0] = *reinterpret_cast<const uint32_t*>(at);
          b[n][1] = *reinterpret_cast<const uint32_t*>(at + 8);
        } else {
          const uint32_t at = fragments + (8 * n * stride + column) * 2;
          asm volatile("ld.shared.b32 %0, [%1];" : "=r"(b[n][0]) : "r"(at));
          asm volatile("ld.shared.b32 %0, [%1];" : "=r"(b[n][1]) : "r"(at + 16));
        }
      }
    };
    // What the sum is added to, requested before the products.
    float kept[(NT + 1) / 2];
    const auto each = [&](int t, auto f) {
#pragma unroll
      for (int k = 0; k < (NT + 1) / 2; k++) {
        const int i = k * (SLICES * WARP) + threadIdx.x, token = i >> log_rows, row = i & ((1 << log_rows) - 1);
        const int column = (first + t) * (1 << log_rows) + row;
        if (token < num_tokens && (glu ? 2 * column : column) < rows) f(k, token, row, size_t(token) * ldo + offset + column);
      }
    };
    const auto begin_tile = [&](int t) {
      if (epilogue == Epilogue::ADD) each(t, [&](int k, int, int, size_t at) { kept[k] = out[at]; });
    };
    const auto finish = [&](int t, const float (&acc)[NT][4]) {
      auto* partial = reinterpret_cast<float(*)[NT * 8][Shared::STRIDE]>(shared + buffer * Shared::partial);
      buffer ^= 1;
#pragma unroll
      for (int n = 0; n < NT; n++) {
        const int row = lane / 4, token = 8 * n + 2 * (lane % 4);
        partial[warp][token][row] = acc[n][0];
        partial[warp][token + 1][row] = acc[n][1];
        partial[warp][token][row + 8] = acc[n][2];
        partial[warp][token + 1][row + 8] = acc[n][3];
      }
      __syncthreads();
      each(t, [&](int k, int token, int row, size_t at) {
        const auto sum = [&](int r) {
          float total = 0;
#pragma unroll
          for (int s = 0; s < SLICES; s++) total = __fadd_rn(total, partial[s][token][r]);
          return total;
        };
        if (glu) {
          out16[at] = gated(sum(row), sum(row + 8), epilogue);
        } else {
          out[at] = epilogue == Epilogue::ADD ? __fadd_rn(kept[k], sum(row)) : sum(row);
        }
      });
    };
    if (!waited) {
      waited = true;
      if constexpr (INPUT == Input::NORM) {
#pragma unroll 1
        for (int pass = rehearses ? 0 : 1; pass < 2; pass++) {
          if (pass == 1) wait_for_previous();
          norm_rows(p.norm, weights, num_tokens, staged, pass == 1 && blockIdx.x == 0, sums);
        }
      } else {
        wait_for_previous();
      }
      if constexpr (INPUT == Input::SHARED) {
        // the columns of the warp's slice
        const int from = slice_begin(warp, columns / CHUNK) * 8, pieces = slice_begin(warp + 1, columns / CHUNK) * 8 - from;
        for (int n = 0; n < num_tokens; n++) {
#pragma unroll 4
          for (int i = lane; i < pieces; i += WARP) {
            *reinterpret_cast<uint4*>(staged + n * stride + (from + i) * 8) = *reinterpret_cast<const uint4*>(given + size_t(n) * ldx + (from + i) * 8);
          }
        }
        __syncwarp();
      }
    }
    with_format(w.format, [&](auto format) {
      stream_tiles<decltype(format), NT, RING>(records, count, slice_begin(warp, w.chunks()) * CHUNK, ring, x, begin_tile, finish);
    });
  }
  copy_wait<0>();
}

}  // namespace pen
