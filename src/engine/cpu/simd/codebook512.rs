//! The code-book types in AVX-512 registers. The indexes, signs and scales of a block are computed all at once and go through memory, which
//! broadcasts them at no cost. Signs are a mask. An entry of eight weights comes from a book in memory: as finished levels in IQ2, and in
//! IQ1, whose book is larger, as codes. IQ3's entries of four weights are looked up 32 at once (`vpermi2w` reads 64 entries of a book).
//! Codes, shifted by lane, select from a table of finished weights (`vpermps` reads the low four bits of each lane).

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::dequant512::{V, blocks_of_32, bytes16, f16_at, half_of, high, in_memory, low};
use super::{Dequant, Isa};
use model::codebook;

/// A book on whole cache lines.
#[repr(align(64))]
struct Lines<T>(T);

static IQ2_XXS: Lines<[[f32; 8]; 256]> = Lines(floats(&codebook::IQ2_XXS_BOOK));
static IQ2_XS: Lines<[[f32; 8]; 512]> = Lines(floats(&codebook::IQ2_XS_BOOK));
static IQ2_S: Lines<[[f32; 8]; 1024]> = Lines(floats(&codebook::IQ2_S_BOOK));
static IQ3_XXS: Lines<[u16; 256]> = Lines(even_first(codebook::IQ3_XXS));
static IQ3_S: Lines<[u16; 512]> = Lines(even_first(codebook::IQ3_S));

/// Entries of four nibbles in the order 0, 2, 1, 3.
const fn even_first<const N: usize>(mut book: [u16; N]) -> [u16; N] {
    let mut i = 0;
    while i < N {
        book[i] = book[i] & 0xf00f | book[i] << 4 & 0x0f00 | book[i] >> 4 & 0x00f0;
        i += 1;
    }
    book
}

/// A book's levels as floats.
const fn floats<const N: usize>(book: &[[u8; 8]; N]) -> [[f32; 8]; N] {
    let (mut out, mut i) = ([[0f32; 8]; N], 0);
    while i < N * 8 {
        out[i / 8][i % 8] = book[i / 8][i % 8] as f32;
        i += 1;
    }
    out
}

/// The entries at 32 indexes. `N` is a power of two from 128 to 1024. Bits above the indexes' own are ignored.
#[inline(always)]
unsafe fn look_up<const N: usize>(book: &Lines<[u16; N]>, index: __m512i) -> __m512i {
    let (mut found, mut parts, mut bit) = ([_mm512_setzero_si512(); 16], N / 64, 64);
    for i in 0..parts {
        let part = book.0.as_ptr().add(64 * i).cast::<__m512i>();
        found[i] = _mm512_permutex2var_epi16(_mm512_load_si512(part), index, _mm512_load_si512(part.add(1)));
    }
    while parts > 1 {
        parts /= 2;
        let upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(bit));
        for i in 0..parts {
            found[i] = _mm512_mask_blend_epi16(upper, found[2 * i], found[2 * i + 1]);
        }
        bit *= 2;
    }
    found[0]
}

/// 32 bytes, one per lane of 16 bits.
#[inline(always)]
unsafe fn bytes32(p: *const u8) -> __m512i {
    _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()))
}

/// Eight signs by the seven that are stored in each byte: the number of minus signs is always even.
#[inline(always)]
unsafe fn even_signs(seven: __m256i) -> __m256i {
    // the top bit of entry n is the parity of n
    let odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(seven), _mm256_set1_epi8(7));
    // a clear top bit makes the shuffle read the low four bits
    let lower = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, _mm256_set1_epi8(15)));
    _mm256_xor_si256(seven, _mm256_xor_si256(lower, _mm256_shuffle_epi8(odd, upper)))
}

/// `shifted` where `mask` is set.
#[inline(always)]
unsafe fn part(shifted: __m256i, mask: i32) -> __m256i {
    _mm256_and_si256(shifted, _mm256_set1_epi32(mask))
}

/// Four times seven bits in each word, one group per byte. The bits above are ignored.
#[inline(always)]
unsafe fn sevens(words: __m256i) -> __m256i {
    let low = _mm256_or_si256(part(words, 0x7f), part(_mm256_slli_epi32::<1>(words), 0x7f00));
    let high = _mm256_or_si256(part(_mm256_slli_epi32::<2>(words), 0x7f_0000), part(_mm256_slli_epi32::<3>(words), 0x7f00_0000));
    _mm256_or_si256(low, high)
}

/// `v` with the 32 signs `j`.
#[inline(always)]
unsafe fn signed([first, second]: [V; 2], signs: *const u8, j: usize) -> [V; 2] {
    let (signs, minus) = (signs.cast::<u32>().add(j).read_unaligned(), Avx512::splat(-0.0));
    [_mm512_mask_xor_ps(first, signs as u16, first, minus), _mm512_mask_xor_ps(second, (signs >> 16) as u16, second, minus)]
}

/// The 16 levels, one per lane.
macro_rules! table {
    (|$i:ident| $level:expr) => {{
        const TABLE: [f32; 16] = {
            let (mut table, mut $i) = ([0f32; 16], 0);
            while $i < 16 {
                table[$i] = $level;
                $i += 1;
            }
            table
        };
        Avx512::load(TABLE.as_ptr())
    }};
}

/// `|p, s, j|` gives the 32 weights `j`. A closure that is not inlined would lose the instruction set, so this is a macro.
macro_rules! blocks_of_256 {
    ($name:ident, $bytes:literal, $state:ty, |$p:ident, $out:ident| $make:expr, |$q:ident, $s:ident, $j:ident| $body:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes, and entries whose index has no more bits than the book; `dispatch` picks it
        // only if the processor has AVX-512.
        unsafe impl Dequant<Avx512> for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            type State = $state;
            #[inline(always)]
            unsafe fn state($p: *const u8, $out: *mut $state) {
                $make;
                in_memory($out);
            }
            #[inline(always)]
            unsafe fn w32($q: *const u8, $s: &$state, $j: usize) -> [V; 2] {
                $body
            }
        }
    };
}

blocks_of_32!(Iq4Nl, 18, |p| {
    let table = Avx512::mul(Avx512::splat(f16_at(p)), table!(|i| codebook::IQ4_LEVELS[i] as f32));
    let b = bytes16(p.add(2));
    [low(table, b), high(table, b)]
});

blocks_of_32!(Mxfp4, 17, |p| {
    let table = Avx512::mul(Avx512::splat(codebook::e8m0_half(*p)), table!(|i| codebook::MXFP4_LEVELS[i] as f32));
    let b = bytes16(p.add(1));
    [low(table, b), high(table, b)]
});

pub struct Nvfp4;

// SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has AVX-512.
unsafe impl Dequant<Avx512> for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;
    type State = ();
    const SHARED: usize = 2;
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn w32(p: *const u8, _: &(), j: usize) -> [V; 2] {
        [nvfp4(p, 2 * j), nvfp4(p, 2 * j + 1)]
    }
}

/// The 16 weights `i` of an NVFP4 block: eight bytes' low nibbles, then their high ones.
#[inline(always)]
unsafe fn nvfp4(p: *const u8, i: usize) -> V {
    let scale = Avx512::splat(*codebook::UE4M3_HALVES.as_ptr().add(usize::from(*p.add(i))));
    let table = Avx512::mul(scale, table!(|i| codebook::MXFP4_LEVELS[i] as f32));
    let all = _mm512_set1_epi64(p.add(4 + 8 * i).cast::<i64>().read_unaligned());
    // lane l holds byte l % 8, and what the other bytes of the lane hold is not read
    let bytes = _mm512_shuffle_epi8(all, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7));
    let shifts = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    _mm512_permutexvar_ps(_mm512_srlv_epi32(bytes, shifts), table)
}

/// Writes `d` times eight small integers.
#[inline(always)]
unsafe fn scales8(d: f32, integers: __m256i, out: *mut [f32; 8]) {
    _mm256_storeu_ps(out.cast(), _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(integers)));
}

/// Fields of `4 / N` bits of a word, one per lane, with the bits above them.
#[inline(always)]
unsafe fn fields(word: i32, bits: i32) -> __m256i {
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_mullo_epi32(lane, _mm256_set1_epi32(bits)))
}

#[inline(always)]
unsafe fn iq4_xs_scales(p: *const u8, out: *mut [f32; 8]) {
    let low = _mm256_and_si256(fields(p.add(4).cast::<i32>().read_unaligned(), 4), _mm256_set1_epi32(15));
    let tops = i32::from(p.add(2).cast::<u16>().read_unaligned());
    let top = _mm256_and_si256(fields(tops << 4, 2), _mm256_set1_epi32(48));
    scales8(f16_at(p), _mm256_sub_epi32(_mm256_or_si256(low, top), _mm256_set1_epi32(32)), out);
}

blocks_of_256!(Iq4Xs, 136, [f32; 8], |p, out| iq4_xs_scales(p, out), |p, s, j| {
    let table = Avx512::mul(Avx512::splat(s[j]), table!(|i| codebook::IQ4_LEVELS[i] as f32));
    let b = bytes16(p.add(8 + 16 * j));
    [low(table, b), high(table, b)]
});

/// Entries (of IQ2: their indexes), signs and scales of a block: `E` entries and `S` scales.
#[repr(align(64))]
pub struct Looked<const E: usize, const S: usize> {
    entries: [u16; E],
    signs: [u8; 32],
    scales: [f32; S],
}

impl<const E: usize, const S: usize> Looked<E, S> {
    #[inline(always)]
    unsafe fn write(out: *mut Self, entries: [__m512i; 2], signs: __m256i) {
        for i in 0..E / 32 {
            _mm512_storeu_si512((&raw mut (*out).entries).cast::<__m512i>().add(i), entries[i]);
        }
        _mm256_storeu_si256((&raw mut (*out).signs).cast(), signs);
    }
}

/// The levels of two entries of IQ2 times `scale`. The indexes are within the book.
#[inline(always)]
unsafe fn pair<const N: usize>(book: &Lines<[[f32; 8]; N]>, first: usize, second: usize, scale: f32) -> V {
    let book = book.0.as_ptr();
    let first = _mm512_castps256_ps512(_mm256_load_ps(book.add(first).cast()));
    Avx512::mul(Avx512::splat(scale), _mm512_insertf32x8::<1>(first, _mm256_load_ps(book.add(second).cast())))
}

/// The indexes of the 32 weights `j`, in one load: loads are what such types wait for.
#[inline(always)]
unsafe fn four_indexes(indexes: &[u16; 32], j: usize) -> [usize; 4] {
    let all = indexes.as_ptr().cast::<u64>().add(j).read_unaligned() as usize;
    [all & 0xffff, all >> 16 & 0xffff, all >> 32 & 0xffff, all >> 48]
}

/// The sixteen scales of IQ2_XS and IQ2_S at `p`: d · (s + ½) / 4.
#[inline(always)]
unsafe fn iq2_scales(d: f32, p: *const u8, out: *mut [f32; 16]) {
    let packed = _mm_loadl_epi64(p.cast());
    let nibbles = _mm_and_si128(_mm_unpacklo_epi8(packed, _mm_srli_epi16::<4>(packed)), _mm_set1_epi8(15));
    let scales = Avx512::add(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(nibbles)), Avx512::splat(0.5));
    Avx512::store(out.cast(), Avx512::mul(Avx512::mul(Avx512::splat(d), scales), Avx512::splat(0.25)));
}

/// d · (s + ½) · factor, where `s` is the highest four bits of each word.
#[inline(always)]
unsafe fn top_scales(d: f32, words: __m256i, factor: f32, out: *mut [f32; 8]) {
    // twice the sum is an integer, and half of a product is exact
    let twice = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32::<27>(words), _mm256_set1_epi32(30)), _mm256_set1_epi32(1));
    scales8(d * (0.5 * factor), twice, out);
}

/// Signs and scales of a block: `S` scales.
#[repr(align(64))]
pub struct Signed<const S: usize> {
    signs: [u8; 32],
    scales: [f32; S],
}

#[inline(always)]
unsafe fn iq2_xxs(p: *const u8, out: *mut Signed<8>) {
    // eight times four indexes and a word of signs and a scale
    let words = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(_mm512_loadu_si512(p.add(2).cast())));
    _mm256_storeu_si256((&raw mut (*out).signs).cast(), even_signs(sevens(words)));
    top_scales(f16_at(p), words, 0.25, &raw mut (*out).scales);
}

blocks_of_256!(Iq2Xxs, 66, Signed<8>, |p, out| iq2_xxs(p, out), |p, s, j| {
    let index = p.add(2 + 8 * j).cast::<u32>().read_unaligned() as usize;
    let first = pair(&IQ2_XXS, index & 255, index >> 8 & 255, s.scales[j]);
    signed([first, pair(&IQ2_XXS, index >> 16 & 255, index >> 24, s.scales[j])], s.signs.as_ptr(), j)
});

#[inline(always)]
unsafe fn iq2_xs(p: *const u8, out: *mut Looked<32, 16>) {
    let words = _mm512_loadu_si512(p.add(2).cast());
    let signs = even_signs(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words)));
    Looked::write(out, [_mm512_and_si512(words, _mm512_set1_epi16(511)); 2], signs);
    iq2_scales(f16_at(p), p.add(66), &raw mut (*out).scales);
}

blocks_of_256!(Iq2Xs, 74, Looked<32, 16>, |p, out| iq2_xs(p, out), |_p, s, j| {
    let [a, b, c, d] = four_indexes(&s.entries, j);
    signed([pair(&IQ2_XS, a, b, s.scales[2 * j]), pair(&IQ2_XS, c, d, s.scales[2 * j + 1])], s.signs.as_ptr(), j)
});

/// In each group of four lanes of 16 bits the same eighth of eight words.
#[inline(always)]
unsafe fn four_times(quads: __m512i) -> __m512i {
    let pairs = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9);
    _mm512_shuffle_epi8(quads, _mm512_broadcast_i32x4(pairs))
}

/// Shifts of four lanes of 16 bits, repeated.
#[inline(always)]
unsafe fn by_four(a: i64, b: i64, c: i64, d: i64) -> __m512i {
    _mm512_set1_epi64(a | b << 16 | c << 32 | d << 48)
}

#[inline(always)]
unsafe fn iq2_s(p: *const u8, out: *mut Looked<32, 16>) {
    let tops = four_times(_mm512_cvtepu8_epi64(_mm_loadl_epi64(p.add(66).cast())));
    let tops = _mm512_and_si512(_mm512_sllv_epi16(tops, by_four(8, 6, 4, 2)), _mm512_set1_epi16(0x300));
    let entries = _mm512_or_si512(bytes32(p.add(2)), tops);
    Looked::write(out, [entries; 2], _mm256_loadu_si256(p.add(34).cast()));
    iq2_scales(f16_at(p), p.add(74), &raw mut (*out).scales);
}

blocks_of_256!(Iq2S, 82, Looked<32, 16>, |p, out| iq2_s(p, out), |_p, s, j| {
    let [a, b, c, d] = four_indexes(&s.entries, j);
    signed([pair(&IQ2_S, a, b, s.scales[2 * j]), pair(&IQ2_S, c, d, s.scales[2 * j + 1])], s.signs.as_ptr(), j)
});

/// Four entries of IQ3 per 64 bits: the even elements' nibbles, then the odd ones'.
#[inline(always)]
unsafe fn even_and_odd(entries: __m512i) -> __m512i {
    let order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    _mm512_shuffle_epi8(entries, _mm512_broadcast_i32x4(order))
}

/// The indexes of IQ3's 16 weights `i`. A shift moves the nibbles of two neighbouring lanes, which are 32 bits apart.
#[inline(always)]
unsafe fn nibbles(entries: &[u16; 64], i: usize) -> __m512i {
    let shifts = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
    _mm512_srlv_epi64(_mm512_set1_epi64(entries.as_ptr().add(4 * i).cast::<i64>().read_unaligned()), shifts)
}

#[inline(always)]
unsafe fn iq3_xxs(p: *const u8, out: *mut Looked<64, 8>) {
    let words = _mm256_loadu_si256(p.add(66).cast());
    let [first, second] = [bytes32(p.add(2)), bytes32(p.add(34))];
    let entries = [even_and_odd(look_up(&IQ3_XXS, first)), even_and_odd(look_up(&IQ3_XXS, second))];
    Looked::write(out, entries, even_signs(sevens(words)));
    top_scales(f16_at(p), words, 0.5, &raw mut (*out).scales);
}

blocks_of_256!(Iq3Xxs, 98, Looked<64, 8>, |p, out| iq3_xxs(p, out), |_p, s, j| {
    let table = Avx512::mul(Avx512::splat(s.scales[j]), table!(|i| codebook::IQ3_XXS_LEVELS[i % 8] as f32));
    let [first, second] = [nibbles(&s.entries, 2 * j), nibbles(&s.entries, 2 * j + 1)];
    signed([_mm512_permutexvar_ps(first, table), _mm512_permutexvar_ps(second, table)], s.signs.as_ptr(), j)
});

#[inline(always)]
unsafe fn iq3_s(p: *const u8, out: *mut Looked<64, 8>) {
    let tops = p.add(66).cast::<u64>().read_unaligned();
    let ninth = _mm512_set1_epi16(256);
    let [first, second] = [bytes32(p.add(2)), bytes32(p.add(34))];
    let first = _mm512_or_si512(first, _mm512_maskz_mov_epi16(tops as u32, ninth));
    let second = _mm512_or_si512(second, _mm512_maskz_mov_epi16((tops >> 32) as u32, ninth));
    let entries = [even_and_odd(look_up(&IQ3_S, first)), even_and_odd(look_up(&IQ3_S, second))];
    let steps = fields(p.add(106).cast::<i32>().read_unaligned(), 4);
    let odd = _mm256_add_epi32(_mm256_slli_epi32::<1>(_mm256_and_si256(steps, _mm256_set1_epi32(15))), _mm256_set1_epi32(1));
    Looked::write(out, entries, _mm256_loadu_si256(p.add(74).cast()));
    scales8(f16_at(p), odd, &raw mut (*out).scales);
}

blocks_of_256!(Iq3S, 110, Looked<64, 8>, |p, out| iq3_s(p, out), |_p, s, j| {
    let table = Avx512::mul(Avx512::splat(s.scales[j]), table!(|i| codebook::IQ3_S_LEVELS[i % 8] as f32));
    let [first, second] = [nibbles(&s.entries, 2 * j), nibbles(&s.entries, 2 * j + 1)];
    signed([_mm512_permutexvar_ps(first, table), _mm512_permutexvar_ps(second, table)], s.signs.as_ptr(), j)
});

/// The shifted levels of IQ1 by entries of its book: up, then down, twice.
const IQ1_LEVELS: [f32; 16] = {
    let (mut levels, mut i) = ([0f32; 16], 0);
    while i < 16 {
        levels[i] = (i % 4) as f32 - 1.0 + if i / 4 % 2 == 0 { codebook::IQ1_DELTA } else { -codebook::IQ1_DELTA };
        i += 1;
    }
    levels
};

/// The entries of IQ1, an index into `IQ1_LEVELS` per byte: shifted up, then shifted down.
static IQ1: Lines<[[u8; 8]; 4096]> = {
    let (mut book, mut i) = ([[0; 8]; 4096], 0);
    while i < 4096 * 8 {
        book[i / 8][i % 8] = codebook::IQ1_BOOK[i / 8 % 2048][i % 8] + if i < 2048 * 8 { 0 } else { 4 };
        i += 1;
    }
    Lines(book)
};

/// What IQ1 needs of a block. Its book is too large for registers, so entries come from memory one by one.
#[repr(align(64))]
pub struct Indexed<const S: usize> {
    indexes: [u16; 32],
    scales: [f32; S],
}

/// The 16 weights of two entries of IQ1.
#[inline(always)]
unsafe fn iq1(first: usize, second: usize, scale: f32) -> V {
    let book = IQ1.0.as_ptr();
    let first = _mm_castsi128_pd(_mm_loadl_epi64(book.add(first).cast()));
    let both = _mm_castpd_si128(_mm_loadh_pd(first, book.add(second).cast()));
    let table = Avx512::mul(Avx512::splat(scale), Avx512::load(IQ1_LEVELS.as_ptr()));
    _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(both), table)
}

#[inline(always)]
unsafe fn iq1_s(p: *const u8, out: *mut Indexed<8>) {
    let words = _mm_loadu_si128(p.add(34).cast());
    let tops = four_times(_mm512_cvtepu16_epi64(words));
    let down = _mm512_and_si512(_mm512_srli_epi16::<4>(tops), _mm512_set1_epi16(0x800));
    let tops = _mm512_srlv_epi16(_mm512_sllv_epi16(tops, by_four(8, 5, 2, 0)), by_four(0, 0, 0, 1));
    let tops = _mm512_or_si512(_mm512_and_si512(tops, _mm512_set1_epi16(0x700)), down);
    _mm512_storeu_si512((&raw mut (*out).indexes).cast(), _mm512_or_si512(bytes32(p.add(2)), tops));
    let steps = _mm_and_si128(_mm_srli_epi16::<11>(words), _mm_set1_epi16(14));
    let odd = _mm256_cvtepu16_epi32(_mm_or_si128(steps, _mm_set1_epi16(1)));
    scales8(f16_at(p), odd, &raw mut (*out).scales);
}

blocks_of_256!(Iq1S, 50, Indexed<8>, |p, out| iq1_s(p, out), |_p, s, j| {
    let [a, b, c, d] = four_indexes(&s.indexes, j);
    [iq1(a, b, s.scales[j]), iq1(c, d, s.scales[j])]
});

#[inline(always)]
unsafe fn iq1_m(p: *const u8, out: *mut Indexed<16>) {
    // a nibble for each entry: three high bits of its index and the sign of its shift
    let tops = _mm_loadu_si128(p.add(32).cast());
    let (even, odd) = (_mm_and_si128(tops, _mm_set1_epi8(15)), _mm_and_si128(_mm_srli_epi16::<4>(tops), _mm_set1_epi8(15)));
    let tops = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    let index = _mm512_or_si512(bytes32(p), _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(tops)));
    _mm512_storeu_si512((&raw mut (*out).indexes).cast(), index);
    // four words of four scales of three bits, and in their highest bits the block's scale
    let words = p.add(48).cast::<u64>().read_unaligned();
    let half = words >> 12 & 0xf | words >> 24 & 0xf0 | words >> 36 & 0xf00 | words >> 48 & 0xf000;
    let both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words as i32), 0xff00, (words >> 32) as i32);
    let steps = _mm512_srlv_epi32(both, _mm512_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25, 0, 3, 6, 9, 16, 19, 22, 25));
    let steps = _mm512_slli_epi32::<1>(_mm512_and_si512(steps, _mm512_set1_epi32(7)));
    let scales = _mm512_cvtepi32_ps(_mm512_or_si512(steps, _mm512_set1_epi32(1)));
    Avx512::store((&raw mut (*out).scales).cast(), Avx512::mul(Avx512::splat(half_of(half as u16)), scales));
}

blocks_of_256!(Iq1M, 56, Indexed<16>, |p, out| iq1_m(p, out), |_p, s, j| {
    let [a, b, c, d] = four_indexes(&s.indexes, j);
    [iq1(a, b, s.scales[2 * j]), iq1(c, d, s.scales[2 * j + 1])]
});
