// The layout of weights in device memory, and their conversion into operands of the tensor cores.
//
// A matrix is cut into records of 16 rows × 64 columns. Row tiles are outermost, so a warp streams one row tile front to back. A record
// holds planes: two of the codes' words (LO and HI of each lane), and a float16 scale (with a float16 minimum if the type has one) per row
// and group of GROUP columns. Codes are permuted so that each lane finds in its own words exactly the operands that mma.m16n8k16 expects
// from it, ready for a mask and at most one shift:
//   code (step s, register i, half h) of lane l is row l/4 + 8 (i & 1), column 16 s + 2 (l % 4) + 8 (i >> 1) + h.
// The two codes of a register are at the same place in a word's two halves. A word holds as many registers as its halves have room for. A
// code that fits into no word is assembled from the bits that are left over (Codes).
// A weight is (code - OFFSET) * scale, or fma(code - OFFSET, scale, minimum), in float16, rounded once. If a type's levels are uneven,
// codes index a table of the type, held in registers: level * scale, with levels between -1 and 1.
#pragma once

#include <tuple>

#include "../device/kernel.cuh"
#include "matrix.h"

namespace pen {

// Loads `N` words from `p` with the widest loads. Bypasses L1, because no other warp of this multiprocessor reads them soon.
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
// Loads `N` words from shared memory with the widest loads.
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
__host__ __device__ constexpr uint32_t twice(uint32_t x) { return x | x << 16; }
__device__ __forceinline__ uint32_t shift_by(uint32_t x, int shift) { return shift >= 0 ? x >> shift : x << -shift; }

// x & mask | with, as one instruction. Compilers split it if both are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t with) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(with));
  return y;
}
// Places of codes of BITS bits in a lane's words, for register r = 4 s + i of a record.
template <int BITS>
struct Codes {
  static constexpr int words = BITS, a_word = 16 / BITS, direct = a_word * words;  // registers
  // Bits of a half that no whole code fills: one above the codes, or some below.
  static constexpr int spare = 16 - a_word * BITS, first = spare > 1 ? spare : 0;
  __host__ __device__ static constexpr int bit(int r) { return first + r % a_word * BITS; }
  // Registers of a word whose bits exceed a half's mantissa (ten bits) are first shifted down by this much.
  __host__ __device__ static constexpr int shift(int r) {
    if (bit(r) + BITS <= 10) return 0;
    int f = 0;
    while (first + f * BITS + BITS <= 10) f++;
    return first + f * BITS;
  }

  // Extracts two codes into the mantissas of halves, placed so that their unit is 1 and subtracting `constant` is exact: 1024 + code for
  // codes at bit 0, 64 + code for codes at bit 4.
  template <class Words>
  __device__ __forceinline__ static uint32_t take(const Words& word, int r, int& constant) {
    if (r < direct) {
      const int at = bit(r) - shift(r);
      constant = 1024 >> at;
      return and_or(word(r / a_word) >> shift(r), twice((1u << BITS) - 1) << at, twice(0x6400u - (at << 10)));
    }
    constant = 1024;
    uint32_t q = twice(0x6400u);
    if constexpr (spare == 1) {  // one bit of each word
#pragma unroll
      for (int j = 0; j < words; j++) q = and_or(shift_by(word(j), 15 - j), twice(1u << j), q);
    } else if constexpr (spare == 4) {  // four bits of one word, two of another
      const int k = r - direct;
      q = and_or(word(k), twice(0xfu), q);
      q = and_or(word(4 + k / 2) << (4 - k % 2 * 2), twice(0x30u), q);
    }
    return q;
  }

  // Sets the code of half `h`: the inverse of take().
  __device__ static void put(uint32_t (&word)[words], int r, int h, uint32_t code) {
    if (r < direct) {
      word[r / a_word] |= code << (bit(r) + 16 * h);
    } else if (spare == 1) {
      for (int j = 0; j < words; j++) word[j] |= (code >> j & 1) << (15 + 16 * h);
    } else {
      const int k = r - direct;
      word[k % words] |= (code & 15) << (16 * h);
      word[(4 + k / 2) % words] |= code >> 4 << (k % 2 * 2 + 16 * h);
    }
  }
};

template <FormatId ID, int LO, int HI, int GROUP, bool MIN, int OFFSET>
struct QuantFormat {
  static constexpr FormatId id = ID;
  static constexpr int group = GROUP, offset = OFFSET;
  static constexpr bool has_min = MIN;
  static float level(uint32_t code) { return float(code) - OFFSET; }
  static constexpr int groups = K_TILE / GROUP;
  static constexpr int low_bytes = LO * 128, high_bytes = HI * 128;
  static constexpr int scale_words = groups * (MIN ? 2 : 1);          // of a lane: those of its two rows
  static constexpr int record_bytes = low_bytes + high_bytes + 8 * scale_words * 4;
  static constexpr int words = LO + HI + scale_words;

  // A lane's part of a record, in registers.
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

    // The lane's operands of step `s`, which is a constant once the loop around it is unrolled.
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
      const int g = s * 16 / GROUP;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t q;
        int constant = 1024;
        if constexpr (LO == 8) {
          q = __byte_perm(lo[2 * s + i / 2], 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342);
        } else {
          q = Codes<LO + HI>::take([&](int j) { return j < LO ? lo[j] : hi[(j - LO) % (HI > 0 ? HI : 1)]; }, 4 * s + i, constant);
        }
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

  // Writes one lane's part of a record. `source` gives the record's elements: code(row, column), scale(row, column), min(row, column), and
  // owns(half), which tells whether rows 0..8 and 8..16 belong to this source. Two matrices that share records write their half each into
  // zeroed memory.
  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    uint32_t words[LO + HI] = {};
    for (int s = 0; s < STEPS; s++) {
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          const uint32_t code = source.code(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h);
          if constexpr (LO == 8) {
            words[2 * s + i / 2] |= code << (16 * (i % 2) + 8 * h);
          } else {
            Codes<LO + HI>::put(words, 4 * s + i, h, code);
          }
        }
      }
    }
    auto* low_plane = reinterpret_cast<uint32_t*>(record);
    for (int w = 0; w < LO; w++) atomicOr(&low_plane[LO >= 4 ? (w / 4) * 128 + lane * 4 + w % 4 : lane * LO + w], words[w]);
    auto* high_plane = reinterpret_cast<uint32_t*>(record + low_bytes);
    for (int w = 0; w < HI; w++) atomicOr(&high_plane[lane * HI + w], words[LO + w]);
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

// Weights that are float16 already, or were rounded to float16 when they were loaded.
struct FormatH16 {
  static constexpr FormatId id = FORMAT_H16;
  static constexpr int record_bytes = TILE_ROWS * K_TILE * 2;
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

// Four bytes of a table of levels in 128ths, in excess 128.
__host__ __device__ constexpr uint32_t level_word(const int8_t* levels) {
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= uint32_t(levels[i] + 128) << (8 * i);
  return word;
}
// Turns four levels, given as bytes, into the operands `a` and `b`. 0x4800 | byte is 8 + byte / 128 in float16, so the difference is exact.
__device__ __forceinline__ void scaled_levels(uint32_t bytes, __half2 scales, uint32_t& a, uint32_t& b) {
  const __half2 middle = __half2half2(__ushort_as_half(0x4880));
  const __half2 upper = __hsub2(bits_half2(__byte_perm(bytes, 0x48484848u, 0x4140)), middle);
  const __half2 lower = __hsub2(bits_half2(__byte_perm(bytes, 0x48484848u, 0x4342)), middle);
  a = half2_bits(__hmul2(upper, __low2half2(scales)));
  b = half2_bits(__hmul2(lower, __high2half2(scales)));
}
// Place of a lane's code of register `i` and half `h` among eight nibbles. Four neighbours select four bytes at once.
__host__ __device__ constexpr int nibble_shift(int i, int h) { return 16 * (i / 2) + 8 * (i % 2) + 4 * h; }

// Writes one lane's part of a record's float16 scales, one per GROUP columns.
template <int GROUP, class Source>
__device__ void pack_scales(uint8_t* to, int lane, const Source& source) {
  constexpr int groups = K_TILE / GROUP;
  auto* scales = reinterpret_cast<__half*>(to + (lane / 4) * groups * 4);
  for (int i = lane % 4; i < 2 * groups; i += 4) {
    if (source.owns(i % 2)) scales[i] = __float2half_rn(source.scale(lane / 4 + 8 * (i % 2), i / 2 * GROUP));
  }
}

// Four-bit codes that index a table, with a float16 scale per GROUP columns.
template <FormatId ID, const int8_t (&LEVELS)[16], int GROUP = 32>
struct Lookup4Format {
  static constexpr FormatId id = ID;
  static constexpr int code_bytes = 512, groups = K_TILE / GROUP;
  static constexpr int record_bytes = code_bytes + 8 * groups * 4;
  static constexpr int words = 4 + groups + 4;  // including the table's
  static constexpr int offset = 0;
  static constexpr bool has_min = false;
  static float level(uint32_t code) { return LEVELS[code] / 128.0f; }

  struct Raw {
    uint32_t codes[4], scale[groups];

    __device__ __forceinline__ void load(const uint8_t* record, int lane) {
      load_words(codes, record + lane * 16);
      load_words(scale, record + code_bytes + (lane / 4) * groups * 4);
    }
    __device__ __forceinline__ void load_shared(uint32_t record, int lane) {
      load_words_shared(codes, record + lane * 16);
      load_words_shared(scale, record + code_bytes + (lane / 4) * groups * 4);
    }
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
      constexpr uint32_t t0 = level_word(LEVELS), t1 = level_word(LEVELS + 4), t2 = level_word(LEVELS + 8), t3 = level_word(LEVELS + 12);
      const uint32_t low = codes[s] & 0x77777777u, top = and_or(codes[s] >> 1, 0x44444444u, 0x32103210u);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t select = low >> (8 * i);
        const uint32_t bytes = __byte_perm(__byte_perm(t0, t1, select), __byte_perm(t2, t3, select), top >> (8 * i));
        scaled_levels(bytes, bits_half2(scale[s * 16 / GROUP]), a[i], a[i + 1]);
      }
    }
  };

  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    auto* codes = reinterpret_cast<uint32_t*>(record) + lane * 4;
    for (int s = 0; s < STEPS; s++) {
      uint32_t word = 0;
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          word |= source.code(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h) << nibble_shift(i, h);
        }
      }
      atomicOr(&codes[s], word);
    }
    pack_scales<GROUP>(record + code_bytes, lane, source);
  }
};

// Numbers of four bits: a sign, two bits of exponent and one of mantissa (e2m1), divided by eight here, with a float16 scale per GROUP
// columns. The float16 numbers of these levels end in eight zeros, so one byte of each is looked up by magnitude. The signs are added where
// those bytes have theirs.
template <FormatId ID, const int8_t (&LEVELS)[16], int GROUP>
struct E2M1Format {
  static constexpr FormatId id = ID;
  static constexpr int code_bytes = 512, groups = K_TILE / GROUP;
  static constexpr int record_bytes = code_bytes + 8 * groups * 4;
  static constexpr int words = 4 + groups + 2;  // including the table's
  static constexpr int offset = 0;
  static constexpr bool has_min = false;
  static float level(uint32_t code) { return LEVELS[code] / 128.0f; }
  // Place of the sign of a lane's code of register `i` and half `h` among those of eight codes.
  __host__ __device__ static constexpr int sign_bit(int i, int h) { return 8 * (2 * (i % 2) + h) + 7 - 4 * (i / 2); }

  struct Raw {
    uint32_t codes[4], scale[groups];

    __device__ __forceinline__ void load(const uint8_t* record, int lane) {
      load_words(codes, record + lane * 16);
      load_words(scale, record + code_bytes + (lane / 4) * groups * 4);
    }
    __device__ __forceinline__ void load_shared(uint32_t record, int lane) {
      load_words_shared(codes, record + lane * 16);
      load_words_shared(scale, record + code_bytes + (lane / 4) * groups * 4);
    }
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
      constexpr uint32_t LOW = 0x32302c00u, HIGH = 0x3a383634u;  // 0, 1/16, 1/8, 3/16; 1/4, 3/8, 1/2, 3/4
      const __half2 scales = bits_half2(scale[s * 16 / GROUP]);
      const uint32_t select = codes[s] & 0x77777777u;
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t bytes = and_or(codes[s] << (2 * i), 0x80808080u, __byte_perm(LOW, HIGH, select >> (8 * i)));
        a[i] = half2_bits(__hmul2(bits_half2(__byte_perm(bytes, 0, 0x1404)), __low2half2(scales)));
        a[i + 1] = half2_bits(__hmul2(bits_half2(__byte_perm(bytes, 0, 0x3424)), __high2half2(scales)));
      }
    }
  };

  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    auto* codes = reinterpret_cast<uint32_t*>(record) + lane * 4;
    for (int s = 0; s < STEPS; s++) {
      uint32_t word = 0;
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          const uint32_t code = source.code(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h);
          word |= (code & 7) << nibble_shift(i, h) | (code >> 3) << sign_bit(i, h);
        }
      }
      atomicOr(&codes[s], word);
    }
    pack_scales<GROUP>(record + code_bytes, lane, source);
  }
};

// Three-bit codes that index a table. The scale of 16 columns is the row's float16 amplitude times an odd number below 32, (2 step + 1),
// stored as four bits.
template <FormatId ID, const int8_t (&LEVELS)[8]>
struct Lookup3Format {
  static constexpr FormatId id = ID;
  static constexpr int low_bytes = 256, high_bytes = 128;
  static constexpr int record_bytes = low_bytes + high_bytes + 8 * 2 * 4;
  static constexpr int words = 5 + 4;  // including the table's and its masks
  static constexpr int offset = 0;
  static constexpr bool has_min = false;
  static float level(uint32_t code) { return LEVELS[code] / 128.0f; }

  struct Raw {
    uint32_t lo[2], hi[1];
    uint32_t scale[2];  // of the lane's two rows: amplitudes, then four steps each

    __device__ __forceinline__ void load(const uint8_t* record, int lane) {
      load_words(lo, record + lane * 8);
      load_words(hi, record + low_bytes + lane * 4);
      load_words(scale, record + low_bytes + high_bytes + (lane / 4) * 8);
    }
    __device__ __forceinline__ void load_shared(uint32_t record, int lane) {
      load_words_shared(lo, record + lane * 8);
      load_words_shared(hi, record + low_bytes + lane * 4);
      load_words_shared(scale, record + low_bytes + high_bytes + (lane / 4) * 8);
    }
    __device__ __forceinline__ void fragment(int s, uint32_t (&a)[4]) const {
      constexpr uint32_t t0 = level_word(LEVELS), t1 = level_word(LEVELS + 4);
      const uint32_t select = and_or(shift_by(hi[0], s - 2), 0x44444444u, lo[s / 2] >> (2 * (s % 2)) & 0x33333333u);
      // 0x6401 | 2 step is 1025 + 2 step in float16.
      const uint32_t odd = and_or(shift_by(scale[1], 4 * s - 1), 0x001e001eu, 0x64016401u);
      const __half2 scales = __hmul2(__hsub2(bits_half2(odd), __half2half2(__ushort_as_half(0x6400))), bits_half2(scale[0]));
#pragma unroll
      for (int i = 0; i < 4; i += 2) scaled_levels(__byte_perm(t0, t1, select >> (8 * i)), scales, a[i], a[i + 1]);
    }
  };

  template <class Source>
  __device__ static void pack(uint8_t* record, int lane, const Source& source) {
    uint32_t lo[2] = {}, hi = 0;
    for (int s = 0; s < STEPS; s++) {
      for (int i = 0; i < 4; i++) {
        if (!source.owns(i & 1)) continue;
        for (int h = 0; h < 2; h++) {
          const uint32_t code = source.code(lane / 4 + 8 * (i & 1), 16 * s + 2 * (lane % 4) + 8 * (i >> 1) + h);
          lo[s / 2] |= (code & 3) << (2 * (s % 2) + nibble_shift(i, h));
          hi |= (code >> 2) << (s + nibble_shift(i, h));
        }
      }
    }
    auto* low_plane = reinterpret_cast<uint32_t*>(record);
    for (int w = 0; w < 2; w++) atomicOr(&low_plane[lane * 2 + w], lo[w]);
    atomicOr(&reinterpret_cast<uint32_t*>(record + low_bytes)[lane], hi);
    const int r = lane % 4;
    if (r > 1 || !source.owns(r)) return;
    const int row = lane / 4 + 8 * r;
    auto* scales = reinterpret_cast<uint16_t*>(record + low_bytes + high_bytes + (lane / 4) * 8);
    scales[r] = __half_as_ushort(__float2half_rn(source.amplitude(row)));
    for (int s = 0; s < STEPS; s++) scales[2 + r] |= source.step(row, 16 * s) << (4 * s);
  }
};

// Levels in 128ths, by code. If a code is an index and a sign, the sign is its highest bit.
constexpr int8_t IQ1_LEVELS[8] = {-56, 8, 72, 0, -72, -8, 56, 0};  // 64 (-1, 0, 1 ± 1/8)
constexpr int8_t IQ2_LEVELS[8] = {16, 50, 86, 0, -16, -50, -86, 0};  // 2 (8, 25, 43)
constexpr int8_t IQ3_XXS_LEVELS[16] = {8, 24, 40, 56, 72, 88, 104, 124, -8, -24, -40, -56, -72, -88, -104, -124};  // 2 (4, 12 … 52, 62)
constexpr int8_t IQ3_S_LEVELS[16] = {8, 24, 40, 56, 72, 88, 104, 120, -8, -24, -40, -56, -72, -88, -104, -120};  // 8 (1, 3 … 15)
constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t MXFP4_LEVELS[16] = {0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96};  // 8 (0, 1, 2, 3, 4, 6, 8, 12)

using FormatQ4 = QuantFormat<FORMAT_Q4, 4, 0, 32, false, 8>;
using FormatQ4Min = QuantFormat<FORMAT_Q4_MIN, 4, 0, 32, true, 0>;
using FormatQ5 = QuantFormat<FORMAT_Q5, 4, 1, 32, false, 16>;
using FormatQ5Min = QuantFormat<FORMAT_Q5_MIN, 4, 1, 32, true, 0>;
using FormatQ8 = QuantFormat<FORMAT_Q8, 8, 0, 32, false, 128>;
using FormatQ2Min = QuantFormat<FORMAT_Q2_MIN, 2, 0, 16, true, 0>;
using FormatQ3 = QuantFormat<FORMAT_Q3, 2, 1, 16, false, 4>;
using FormatQ6 = QuantFormat<FORMAT_Q6, 4, 2, 16, false, 32>;
using FormatQ2 = QuantFormat<FORMAT_Q2, 2, 0, 64, false, 1>;
using FormatIQ1 = Lookup3Format<FORMAT_IQ1, IQ1_LEVELS>;
using FormatIQ2 = Lookup3Format<FORMAT_IQ2, IQ2_LEVELS>;
using FormatIQ3XXS = Lookup4Format<FORMAT_IQ3_XXS, IQ3_XXS_LEVELS>;
using FormatIQ3S = Lookup4Format<FORMAT_IQ3_S, IQ3_S_LEVELS>;
using FormatIQ4 = Lookup4Format<FORMAT_IQ4, IQ4_LEVELS>;
using FormatMXFP4 = E2M1Format<FORMAT_MXFP4, MXFP4_LEVELS, 32>;
using FormatNVFP4 = E2M1Format<FORMAT_NVFP4, MXFP4_LEVELS, 16>;

using AllFormats = std::tuple<FormatH16, FormatQ4, FormatQ4Min, FormatQ5, FormatQ5Min, FormatQ8, FormatQ2Min, FormatQ3, FormatQ6, FormatQ2,
                              FormatIQ1, FormatIQ2, FormatIQ3XXS, FormatIQ3S, FormatIQ4, FormatMXFP4, FormatNVFP4>;

// Calls f(Format{}). Only this function turns a run-time format into a compile-time one. It halves the range step by step, because a
// switch's table would lie in a separate constant bank, hundreds of cycles away in each kernel.
template <int FIRST = 0, int END = std::tuple_size_v<AllFormats>, class F>
__device__ __forceinline__ void with_format(int format, F&& f) {
  if constexpr (END - FIRST == 1) {
    using Format = std::tuple_element_t<FIRST, AllFormats>;
    static_assert(Format::id == FIRST, "formats in the order of their ids");
    f(Format{});
  } else {
    constexpr int MIDDLE = (FIRST + END) / 2;
    if (held(format) < MIDDLE) {
      with_format<FIRST, MIDDLE>(format, f);
    } else {
      with_format<MIDDLE, END>(format, f);
    }
  }
}

}  // namespace pen
