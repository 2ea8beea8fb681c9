// Decodes blocks of the code-book types and the ternary types, like blocks.cuh. src/model/codebook.rs is the exact float32 reference. A
// weight is its format's level of the code times scale(). Levels are normalised to lie between -1 and 1, and scales are larger by that
// factor.
#pragma once

#include "blocks.cuh"

namespace pen {

template <int N>
struct Book {
  uint16_t entries[N];
};

// A book's entries, four hexadecimal digits each: indexes into the type's levels, the first in the lowest bits.
template <int N>
constexpr Book<N> book(const char (&text)[4 * N + 1]) {
  Book<N> to{};
  for (int i = 0; i < 4 * N; i++) {
    const int digit = text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10;
    to.entries[i / 4] = uint16_t(to.entries[i / 4] << 4 | digit);
  }
  return to;
}

constexpr Book<2048> IQ1_ON_HOST = book<2048>(
#include "books/iq1_s.inc"
);
constexpr Book<256> IQ2_XXS_ON_HOST = book<256>(
#include "books/iq2_xxs.inc"
);
constexpr Book<512> IQ2_XS_ON_HOST = book<512>(
#include "books/iq2_xs.inc"
);
constexpr Book<1024> IQ2_S_ON_HOST = book<1024>(
#include "books/iq2_s.inc"
);
constexpr Book<256> IQ3_XXS_ON_HOST = book<256>(
#include "books/iq3_xxs.inc"
);
constexpr Book<512> IQ3_S_ON_HOST = book<512>(
#include "books/iq3_s.inc"
);
__device__ constexpr Book<2048> IQ1_ON_DEVICE = IQ1_ON_HOST;
__device__ constexpr Book<256> IQ2_XXS_ON_DEVICE = IQ2_XXS_ON_HOST;
__device__ constexpr Book<512> IQ2_XS_ON_DEVICE = IQ2_XS_ON_HOST;
__device__ constexpr Book<1024> IQ2_S_ON_DEVICE = IQ2_S_ON_HOST;
__device__ constexpr Book<256> IQ3_XXS_ON_DEVICE = IQ3_XXS_ON_HOST;
__device__ constexpr Book<512> IQ3_S_ON_DEVICE = IQ3_S_ON_HOST;
#ifdef __CUDA_ARCH__
#define PEN_ENTRY(name, index) (name##_ON_DEVICE.entries[index])
#else
#define PEN_ENTRY(name, index) (name##_ON_HOST.entries[index])
#endif

__host__ __device__ __forceinline__ uint32_t half_word_at(const uint8_t* p) { return uint32_t(p[0] | p[1] << 8); }
__host__ __device__ __forceinline__ uint32_t word_at(const uint8_t* p) { return half_word_at(p) | half_word_at(p + 2) << 16; }

// Sign `i` of eight. Seven are stored, and the number of minus signs is even.
__host__ __device__ __forceinline__ uint32_t even_sign(uint32_t seven, int i) {
  const uint32_t x = seven & 127, y = x ^ x >> 4, z = y ^ y >> 2;
  return i < 7 ? x >> i & 1 : (z ^ z >> 1) & 1;
}

struct BlockIQ4_NL {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 2, i); }
  __host__ __device__ static float scale(const uint8_t* b, int) { return 128 * half_at(b); }
};
struct BlockMXFP4 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 1, i); }
  // Half an e8m0 number, because the levels are doubled e2m1 numbers. Numbers above 250 would become infinite here, so loading refuses
  // them.
  __host__ __device__ static float scale(const uint8_t* b, int) {
    const uint32_t e = b[0] < 250 ? b[0] : 250;
    return 16 * float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
  }
};
struct BlockNVFP4 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint8_t byte = b[4 + i / 16 * 8 + i % 8];
    return i % 16 < 8 ? byte & 15u : byte >> 4;
  }
  // Half an unsigned e4m3 number, because the levels are doubled e2m1 numbers. 0x7f means 0, and the highest bit is ignored otherwise.
  __host__ __device__ static float scale(const uint8_t* b, int i) {
    const uint32_t s = b[i / 16], exponent = s >> 3 & 15, mantissa = s & 7;
    if (s == 0x7f) return 0;
    return 8 * (exponent == 0 ? float(mantissa) / 512 : float_of((exponent + 120) << 23 | mantissa << 20));
  }
};
struct BlockIQ4_XS {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return nibble(b + 8 + i / 32 * 16, i % 32); }
  __host__ __device__ static float scale(const uint8_t* b, int i) {
    const int j = i / 32;
    const uint32_t s = bits_of(b[4 + j / 2], j % 2 * 4, 4) | bits_of(half_word_at(b + 2), 2 * j, 2) << 4;
    return 128 * half_at(b) * (float(s) - 32);
  }
};

// Index `i` of eight in an entry, and its sign.
__host__ __device__ __forceinline__ uint32_t code_of_8(uint32_t entry, int i, uint32_t sign) {
  return bits_of(entry, 2 * i, 2) | sign << 2;
}
__host__ __device__ __forceinline__ uint32_t code_of_4(uint32_t entry, int i, uint32_t sign) {
  return bits_of(entry, 4 * i, 4) | sign << 3;
}

struct BlockIQ3_XXS {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t signs = word_at(b + 66 + i / 32 * 4) >> (i % 32 / 8 * 7);
    return code_of_4(PEN_ENTRY(IQ3_XXS, b[2 + i / 4]), i % 4, even_sign(signs, i % 8));
  }
  __host__ __device__ static float scale(const uint8_t* b, int i) {
    return 32 * half_at(b) * (0.5f + float(word_at(b + 66 + i / 32 * 4) >> 28));
  }
};
struct BlockIQ3_S {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t entry = b[2 + i / 4] | bits_of(b[66 + i / 32], i % 32 / 4, 1) << 8;
    return code_of_4(PEN_ENTRY(IQ3_S, entry), i % 4, bits_of(b[74 + i / 8], i % 8, 1));
  }
  __host__ __device__ static float scale(const uint8_t* b, int i) {
    return 16 * half_at(b) * float(1 + 2 * bits_of(b[106 + i / 64], i / 32 % 2 * 4, 4));
  }
};

// IQ1 and IQ2: scales in two parts, amplitude · (2 step + 1), for 16 weights each.
template <class Block>
struct TwoPartScale {
  __host__ __device__ static float scale(const uint8_t* b, int i) { return Block::amplitude(b) * float(2 * Block::step(b, i) + 1); }
};
struct BlockIQ2_XXS : TwoPartScale<BlockIQ2_XXS> {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t signs = word_at(b + 6 + i / 32 * 8) >> (i % 32 / 8 * 7);
    return code_of_8(PEN_ENTRY(IQ2_XXS, b[2 + i / 32 * 8 + i % 32 / 8]), i % 8, even_sign(signs, i % 8));
  }
  __host__ __device__ static float amplitude(const uint8_t* b) { return 8 * half_at(b); }
  __host__ __device__ static uint32_t step(const uint8_t* b, int i) { return b[9 + i / 32 * 8] >> 4; }
};
struct BlockIQ2_XS : TwoPartScale<BlockIQ2_XS> {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t word = half_word_at(b + 2 + i / 8 * 2);
    return code_of_8(PEN_ENTRY(IQ2_XS, word & 511), i % 8, even_sign(word >> 9, i % 8));
  }
  __host__ __device__ static float amplitude(const uint8_t* b) { return 8 * half_at(b); }
  __host__ __device__ static uint32_t step(const uint8_t* b, int i) { return bits_of(b[66 + i / 32], i / 16 % 2 * 4, 4); }
};
struct BlockIQ2_S : TwoPartScale<BlockIQ2_S> {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t entry = b[2 + i / 8] | bits_of(b[66 + i / 32], i % 32 / 8 * 2, 2) << 8;
    return code_of_8(PEN_ENTRY(IQ2_S, entry), i % 8, bits_of(b[34 + i / 8], i % 8, 1));
  }
  __host__ __device__ static float amplitude(const uint8_t* b) { return 8 * half_at(b); }
  __host__ __device__ static uint32_t step(const uint8_t* b, int i) { return bits_of(b[74 + i / 32], i / 16 % 2 * 4, 4); }
};
// IQ1: the code's highest bit tells whether the level is shifted down or up by an eighth.
struct BlockIQ1_S : TwoPartScale<BlockIQ1_S> {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t word = half_word_at(b + 34 + i / 32 * 2);
    return code_of_8(PEN_ENTRY(IQ1, b[2 + i / 8] | bits_of(word, i % 32 / 8 * 3, 3) << 8), i % 8, word >> 15);
  }
  __host__ __device__ static float amplitude(const uint8_t* b) { return 2 * half_at(b); }
  __host__ __device__ static uint32_t step(const uint8_t* b, int i) { return bits_of(half_word_at(b + 34 + i / 32 * 2), 12, 3); }
};
struct BlockIQ1_M : TwoPartScale<BlockIQ1_M> {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const uint32_t high = bits_of(b[32 + i / 16], i / 8 % 2 * 4, 4);
    return code_of_8(PEN_ENTRY(IQ1, b[i / 8] | (high & 7) << 8), i % 8, high >> 3);
  }
  // The four nibbles of the half are the highest bits of the four words of scales.
  __host__ __device__ static float amplitude(const uint8_t* b) {
    const uint8_t half[2] = {uint8_t(b[49] >> 4 | (b[51] & 0xf0)), uint8_t(b[53] >> 4 | (b[55] & 0xf0))};
    return 2 * half_at(half);
  }
  __host__ __device__ static uint32_t step(const uint8_t* b, int i) {
    return bits_of(half_word_at(b + 48 + i / 64 * 2), i / 16 % 4 * 3, 3);
  }
};

// Ternary digits: a byte is a fraction of 256 in base 3.
struct BlockTQ1_0 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) {
    const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    const int at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
    const int power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    return uint32_t(uint8_t(b[at] * power)) * 3 >> 8;
  }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b + 52); }
};
struct BlockTQ2_0 {
  __host__ __device__ static uint32_t code(const uint8_t* b, int i) { return two_bits(b, i); }
  __host__ __device__ static float scale(const uint8_t* b, int) { return half_at(b + 64); }
};

}  // namespace pen
