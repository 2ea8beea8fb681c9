// How weights lie in device memory, and how they become operands of the tensor cores.
//
// A matrix is cut into records of 16 rows × 64 columns, row tiles outermost, so that a warp streams one row tile front to back. A
// record holds planes: the low LO bits of the codes, their high HI bits, and a float16 scale (with a float16 minimum where the type
// has one) for each row and group of GROUP columns. Codes are permuted so that each lane finds in its own words exactly the operands
// that mma.m16n8k16 wants from it, ready for a mask and a shift:
//   code (step s, register i, half h) of lane l is row l/4 + 8 (i & 1), column 16 s + 2 (l % 4) + 8 (i >> 1) + h.
// A weight is (code - OFFSET) * scale, or fma(code - OFFSET, scale, minimum), in float16, rounded once.
#pragma once

#include "../ops/common.cuh"

namespace pen {

constexpr int TILE_ROWS = 16;
constexpr int CHUNK = 64;  // columns a record
constexpr int STEPS = CHUNK / 16;

enum FormatId : int { FORMAT_H16, FORMAT_Q4, FORMAT_Q4_MIN, FORMAT_Q5, FORMAT_Q5_MIN, FORMAT_Q8, FORMAT_Q2_MIN, FORMAT_Q3, FORMAT_Q6 };

__device__ __forceinline__ uint32_t half2_bits(__half2 x) { return *reinterpret_cast<uint32_t*>(&x); }
__device__ __forceinline__ __half2 bits_half2(uint32_t x) { return *reinterpret_cast<__half2*>(&x); }

// `N` words from `p`, in the widest loads; streamed past L1, since no other warp of this SM reads them soon.
template <int N>
__device__ __forceinline__ void load_words(uint32_t (&w)[N], const uint8_t* p) {
  static_assert(N == 1 || N == 2 || N % 4 == 0, "plane width");
  if constexpr (N == 1) {
    asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(w[0]) : "l"(p));
  } else if constexpr (N == 2) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
  } else {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
                   : "l"(p + i * 512));
    }
  }
}
// The same from shared memory.
template <int N>
__device__ __forceinline__ void load_words_shared(uint32_t (&w)[N], uint32_t at) {
  if constexpr (N == 1) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(at));
  } else if constexpr (N == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(at));
  } else {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
                   : "r"(at + i * 512));
    }
  }
}
// Bit fields of one register of codes: its two codes sit at bits `shift` and `shift + 16` of a word.
__device__ __forceinline__ uint32_t shift_by(uint32_t x, int shift) { return shift >= 0 ? x >> shift : x << -shift; }

// x & mask | with, as the one instruction that it is: compilers split it where both are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t with) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(with));
  return y;
}
template <FormatId ID, int LO, int HI, int GROUP, bool MIN, int OFFSET>
struct QuantFormat {
  static constexpr FormatId id = ID;
  static constexpr int low_bits = LO, high_bits = HI, group = GROUP, offset = OFFSET;
  static constexpr bool has_min = MIN;
  static constexpr int groups = CHUNK / GROUP;
  static constexpr int low_bytes = LO * 128, high_bytes = HI * 128;
  static constexpr int scale_words = groups * (MIN ? 2 : 1);          // of a lane: those of its two rows
  static constexpr int record_bytes = low_bytes + high_bytes + 8 * scale_words * 4;
  static constexpr int words = LO + HI + scale_words;

  // What a lane holds of a record.
  struct Raw {
    uint32_t lo[LO];
    uint32_t hi[HI > 0 ? HI : 1];
    uint32_t scale[scale_words];

    __device__ __forceinline__ void load(const uint8_t* record, int lane) {
      load_words(lo, record + lane * (LO >= 4 ? 16 : LO * 4));
      if constexpr (HI > 0) load_words(hi, record + low_bytes + lane * HI * 4);
      const uint8_t* scales = record + low_bytes + high_bytes + (lane / 4) * scale_words * 4;
      if constexpr (scale_words <= 4) {
        load_words(scale, scales);
      } else {
        uint32_t first[4], second[4];
        load_words(first, scales);
        load_words(second, scales + 16);
#pragma unroll
        for (int i = 0; i < 4; i++) scale[i] = first[i], scale[i + 4] = second[i];
      }
    }

    __device__ __forceinline__ void load_shared(uint32_t record, int lane) {
      load_words_shared(lo, record + lane * (LO >= 4 ? 16 : LO * 4));
      if constexpr (HI > 0) load_words_shared(hi, record + low_bytes + lane * HI * 4);
      const uint32_t scales = record + low_bytes + high_bytes + (lane / 4) * scale_words * 4;
      if constexpr (scale_words <= 4) {
        load_words_shared(scale, scales);
      } else {
        uint32_t first[4], second[4];
        load_words_shared(first, scales);
        load_words_shared(second, scales + 16);
#pragma unroll
        for (int i = 0; i < 4; i++) scale[i] = first[i], scale[i + 4] = second[i];
      }
    }

    // The lane's operands of step `s`. Compile-time `s` after unrolling.
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
      const int g = s * 16 / GROUP;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        // Codes in the mantissas of halves whose unit is 1, so that taking the constant part off again is exact: 1024 + code where the
        // code lies at bit 0, 64 + code at bit 4, which saves a shift.
        uint32_t q;
        const int up = LO == 4 && i % 2 == 1 ? 4 : 0;
        const uint32_t base = up ? 0x54005400u : 0x64006400u;
        if constexpr (LO == 8) {
          q = __byte_perm(lo[2 * s + i / 2], 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
        } else if constexpr (LO == 4) {
          q = and_or(i < 2 ? lo[s] : lo[s] >> 8, 0x000f000fu << up, base);
        } else {
          q = and_or(lo[s / 2] >> (2 * (4 * (s % 2) + i)), 0x00030003u, base);
        }
        if constexpr (HI == 1) q = and_or(shift_by(hi[0], 4 * s + i - LO - up), 0x00010001u << (LO + up), q);
        if constexpr (HI == 2) q = and_or(shift_by(hi[s / 2], 2 * (4 * (s % 2) + i) - LO - up), 0x00030003u << (LO + up), q);
        const int constant = up ? 64 : 1024;
        const __half2 code = __hsub2(bits_half2(q), __float2half2_rn(float(constant + OFFSET)));
        if constexpr (MIN) {
          const __half2 pair = bits_half2(scale[2 * g + (i & 1)]);
          a[i] = half2_bits(__hfma2(code, __low2half2(pair), __high2half2(pair)));
        } else {
          const __half2 pair = bits_half2(scale[g]);
          a[i] = half2_bits(__hmul2(code, i & 1 ? __high2half2(pair) : __low2half2(pair)));
        }
      }
    }
  };

  // Writes one lane's part of a record. `source` speaks of the record's elements: code(row, column), scale(row, column), min(row,
  // column), and owns(half): whether rows 0..8 and 8..16 are its own (two matrices that share records each write their half into
  // zeroed memory).
  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    uint32_t lo[LO] = {}, hi[HI > 0 ? HI : 1] = {};
    for (int s = 0; s < STEPS; s++) {
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          const uint32_t code = source.code(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h);
          const uint32_t low = code & ((1u << LO) - 1), high = code >> LO;
          if constexpr (LO == 8) lo[2 * s + i / 2] |= low << (16 * (i % 2) + 8 * h);
          if constexpr (LO == 4) lo[s] |= low << (4 * i + 16 * h);
          if constexpr (LO == 2) lo[s / 2] |= low << (2 * (4 * (s % 2) + i) + 16 * h);
          if constexpr (HI == 1) hi[0] |= high << (4 * s + i + 16 * h);
          if constexpr (HI == 2) hi[s / 2] |= high << (2 * (4 * (s % 2) + i) + 16 * h);
        }
      }
    }
    auto* low_plane = reinterpret_cast<uint32_t*>(record);
    for (int w = 0; w < LO; w++) atomicOr(&low_plane[LO >= 4 ? (w / 4) * 128 + lane * 4 + w % 4 : lane * LO + w], lo[w]);
    auto* high_plane = reinterpret_cast<uint32_t*>(record + low_bytes);
    for (int w = 0; w < HI; w++) atomicOr(&high_plane[lane * HI + w], hi[w]);
    if (lane % 4 != 0) return;
    auto* scales = reinterpret_cast<__half*>(record + low_bytes + high_bytes + (lane / 4) * scale_words * 4);
    for (int g = 0; g < groups; g++) {
      for (int r = 0; r < 2; r++) {
        if (!source.owns(r)) continue;
        const int row = lane / 4 + 8 * r;
        if constexpr (MIN) {
          scales[4 * g + 2 * r] = __float2half_rn(source.scale(row, g * GROUP));
          scales[4 * g + 2 * r + 1] = __float2half_rn(source.min(row, g * GROUP));
        } else {
          scales[2 * g + r] = __float2half_rn(source.scale(row, g * GROUP));
        }
      }
    }
  }
};

// Weights that are float16 already (or were rounded to it when they were loaded).
struct FormatH16 {
  static constexpr FormatId id = FORMAT_H16;
  static constexpr int record_bytes = TILE_ROWS * CHUNK * 2;
  static constexpr int words = 16;

  struct Raw {
    uint32_t w[16];
    __device__ __forceinline__ void load(const uint8_t* record, int lane) {
      load_words(w, record + lane * 16);
    }
    __device__ __forceinline__ void load_shared(uint32_t record, int lane) { load_words_shared(w, record + lane * 16); }
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = w[4 * s + i];
    }
  };

  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    auto* halves = reinterpret_cast<__half*>(record);
    for (int s = 0; s < STEPS; s++) {
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          halves[s * 256 + lane * 8 + 2 * i + h] =
              __float2half_rn(source.value(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h));
        }
      }
    }
  }
};

using FormatQ4 = QuantFormat<FORMAT_Q4, 4, 0, 32, false, 8>;
using FormatQ4Min = QuantFormat<FORMAT_Q4_MIN, 4, 0, 32, true, 0>;
using FormatQ5 = QuantFormat<FORMAT_Q5, 4, 1, 32, false, 16>;
using FormatQ5Min = QuantFormat<FORMAT_Q5_MIN, 4, 1, 32, true, 0>;
using FormatQ8 = QuantFormat<FORMAT_Q8, 8, 0, 32, false, 128>;
using FormatQ2Min = QuantFormat<FORMAT_Q2_MIN, 2, 0, 16, true, 0>;
using FormatQ3 = QuantFormat<FORMAT_Q3, 2, 1, 16, false, 4>;
using FormatQ6 = QuantFormat<FORMAT_Q6, 4, 2, 16, false, 32>;

// Calls `f` with a value of the format's type: the one place where a run-time format becomes a compile-time one.
template <class F>
__device__ __forceinline__ void with_format(int format, F&& f) {
  switch (format) {
    case FORMAT_H16: return f(FormatH16{});
    case FORMAT_Q4: return f(FormatQ4{});
    case FORMAT_Q4_MIN: return f(FormatQ4Min{});
    case FORMAT_Q5: return f(FormatQ5{});
    case FORMAT_Q5_MIN: return f(FormatQ5Min{});
    case FORMAT_Q8: return f(FormatQ8{});
    case FORMAT_Q2_MIN: return f(FormatQ2Min{});
    case FORMAT_Q3: return f(FormatQ3{});
    case FORMAT_Q6: return f(FormatQ6{});
  }
}

// A matrix in device memory.
struct Matrix {
  const uint8_t* data = nullptr;
  int rows = 0, cols = 0;
  int format = 0, record_bytes = 0;
  __host__ __device__ int tiles() const { return ceil_div(rows, TILE_ROWS); }
  __host__ __device__ int chunks() const { return ceil_div(cols, CHUNK); }
  size_t bytes() const { return size_t(tiles()) * chunks() * record_bytes; }
};

}  // namespace pen
