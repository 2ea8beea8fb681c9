// Writes the sums of a warpgroup's product as boxes, which leave shared memory while the next product runs (sm_90a).
#pragma once

#include "../device/cluster.cuh"
#include "write_sums.cuh"

namespace pen {

constexpr int BOXED_ROWS = 64;   // per warpgroup
constexpr int BOXED_ROUNDS = 2;  // each writes half of the tokens
// Shared memory that a warpgroup needs [bytes].
__host__ __device__ constexpr int boxed_bytes(int tokens) { return BOXED_ROWS * tokens / BOXED_ROUNDS * 4; }

// Writes four whole row tiles, one per warp, and 8 NT tokens. A box has the tokens of a round and 32 columns. There are two boxes side by
// side for p.out, or one for p.out16 if the epilogue gates. The warpgroup's first thread must wait for its boxes before it ends.
template <int NT>
struct BoxWriter {
  static constexpr int THREADS = 4 * WARP, WIDE = 32;  // columns of a box
  static constexpr int ROUND = NT / BOXED_ROUNDS, PART = NT / BOXED_PARTS;  // fragments of eight tokens
  const Linear& p;
  const CUtensorMap& out;
  uint32_t shared;            // the warpgroup's boxed_bytes()
  int column = 0, token = 0;  // the first ones in the output

  __device__ __forceinline__ BoxWriter(const Linear& p, const CUtensorMap& out, uint32_t shared) : p(p), out(out), shared(shared) {}

  // Sets the place of the parts that follow. `tile`: the first of the four row tiles.
  __device__ __forceinline__ void begin(int segment, int tile, int first_token) {
    column = p.out_offset[segment] + tile * (is_gated(p.epilogue) ? TILE_ROWS / 2 : TILE_ROWS), token = first_token;
  }
  // Writes part K of the sums and sets them to zero. Parts are written in ascending order, without gaps. A product in halves writes its
  // first half, then its second one.
  template <int K>
  __device__ __forceinline__ void write(float (&y)[NT][4], bool is_second_half) const {
    constexpr int EACH = BOXED_PARTS / BOXED_ROUNDS, ROUND_NUMBER = K / EACH, IN_ROUND = K % EACH;
    const bool gates = is_gated(p.epilogue);
    // With float16, both rounds fit side by side. With floats, a round reuses the space of the previous one.
    const uint32_t box = shared + (gates ? ROUND_NUMBER * ROUND * 8 * WIDE * 2 : 0);
    if (K == 0 || (IN_ROUND == 0 && !gates)) {
      // The second half is added to the first one, which must have arrived.
      if (threadIdx.x % THREADS == 0) is_second_half && K == 0 ? boxes_wait() : boxes_wait_read();
      sync();
    }
    if (gates) put_gated<K * PART, IN_ROUND * PART>(box, y);
    else put<K * PART, IN_ROUND * PART>(box, y);
#pragma unroll
    for (int n = K * PART; n < (K + 1) * PART; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) y[n][i] = 0.0f;
    }
    if (IN_ROUND == EACH - 1) start(box, token + ROUND_NUMBER * ROUND * 8, adds_sums(p, is_second_half));
  }

 private:
  __device__ __forceinline__ static void sync() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / THREADS), "n"(THREADS) : "memory");
  }
  // Stores PART fragments of sums, starting at FROM, as the box's fragments starting at TO. Swizzles permute a row's 16-byte pieces.
  template <int FROM, int TO>
  __device__ __forceinline__ static void put(uint32_t box, const float (&y)[NT][4]) {
    const int warp = threadIdx.x % THREADS / WARP, r = threadIdx.x % WARP / 4, t = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int piece = warp % 2 * 4 + i * 2 + r / 4;
        const uint32_t at = box + warp / 2 * (ROUND * 8 * WIDE * 4) + (t + h) * WIDE * 4 + (piece ^ (t + h)) * 16 + r % 4 * 4;
#pragma unroll
        for (int n = 0; n < PART; n++) {
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + (TO + n) * 8 * WIDE * 4), "f"(y[FROM + n][h + 2 * i]) : "memory");
        }
      }
    }
  }
  template <int FROM, int TO>
  __device__ __forceinline__ void put_gated(uint32_t box, const float (&y)[NT][4]) const {
    const int warp = threadIdx.x % THREADS / WARP, r = threadIdx.x % WARP / 4, t = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t at = box + (t + h) * WIDE * 2 + (warp ^ (t / 2)) * 16 + r * 2;
#pragma unroll
      for (int n = 0; n < PART; n++) {
        const uint16_t half = __half_as_ushort(gated(y[FROM + n][h], y[FROM + n][h + 2], p.epilogue));
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(at + (TO + n) * 8 * WIDE * 2), "h"(half) : "memory");
      }
    }
  }
  // Starts to write a round.
  __device__ __forceinline__ void start(uint32_t box, int first_token, bool adds) const {
    fence_async_proxy();
    sync();
    if (threadIdx.x % THREADS != 0) return;
    if (is_gated(p.epilogue)) {
      store_box(out, column, first_token, box);
    } else {
#pragma unroll
      for (int i = 0; i < BOXED_ROWS / WIDE; i++) {
        const uint32_t from = box + i * (ROUND * 8 * WIDE * 4);
        if (adds) add_box(out, column + i * WIDE, first_token, from);
        else store_box(out, column + i * WIDE, first_token, from);
      }
    }
    boxes_commit();
  }
};

}  // namespace pen
