//! Decodes the code-book types. The indexes, signs and scales of 256 weights are computed together. Entries of eight weights are read from
//! a book of finished codes in memory. IQ3's entries of four weights are looked up 32 at once, as nibbles that index levels (`vpermi2w`
//! reads 64 entries of a book). Signs are a mask: the code of a negative level is 256 minus the code of the positive one, because the
//! offset is 128.

use std::arch::x86_64::*;

use super::super::halves::{f16_at, half_of};
use super::codes::{Codes, Scales, V};
use super::levels::{IQ4, look_up, nibbles};
use model::codebook;

/// A book, aligned to whole cache lines.
#[repr(align(64))]
struct BookLines<T>(T);

static IQ2_XXS: BookLines<[[u8; 8]; 256]> = BookLines(codes(&codebook::IQ2_XXS_BOOK));
static IQ2_XS: BookLines<[[u8; 8]; 512]> = BookLines(codes(&codebook::IQ2_XS_BOOK));
static IQ2_S: BookLines<[[u8; 8]; 1024]> = BookLines(codes(&codebook::IQ2_S_BOOK));
static IQ3_XXS: BookLines<[u16; 256]> = BookLines(codebook::IQ3_XXS);
static IQ3_S: BookLines<[u16; 512]> = BookLines(codebook::IQ3_S);
static IQ3_XXS_CODES: [u8; 16] = level_codes(&codebook::IQ3_XXS_LEVELS);
static IQ3_S_CODES: [u8; 16] = level_codes(&codebook::IQ3_S_LEVELS);

/// The levels of a book as codes.
const fn codes<const N: usize>(book: &[[u8; 8]; N]) -> [[u8; 8]; N] {
    let (mut out, mut i) = ([[0; 8]; N], 0);
    while i < N * 8 {
        out[i / 8][i % 8] = 128 + book[i / 8][i % 8];
        i += 1;
    }
    out
}

const fn level_codes(levels: &[u8; 8]) -> [u8; 16] {
    let (mut out, mut i) = ([0; 16], 0);
    while i < 16 {
        out[i] = 128 + levels[i % 8];
        i += 1;
    }
    out
}

/// The entries of IQ1, times eight so that the shift is an integer. Entries shifted up come first, then entries shifted down.
static IQ1: BookLines<[[u8; 8]; 4096]> = {
    let (mut book, mut i) = ([[0; 8]; 4096], 0);
    while i < 4096 * 8 {
        let code = 120 + 8 * codebook::IQ1_BOOK[i / 8 % 2048][i % 8];
        book[i / 8][i % 8] = if i < 2048 * 8 { code + 1 } else { code - 1 };
        i += 1;
    }
    BookLines(book)
};
const _: () = assert!(codebook::IQ1_DELTA == 0.125);

/// The entries at 32 indexes. `N` is a power of two from 128 to 1024. Higher bits of an index are ignored.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn nibbles_at<const N: usize>(book: &BookLines<[u16; N]>, index: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
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
}

/// Loads 32 bytes, one per 16-bit lane.
///
/// # Safety
/// `p` is valid for 32 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn bytes32(p: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast())) }
}

/// Completes the seven stored signs of each byte to eight. The number of minus signs is always even.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn even_signs(seven: __m256i) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // the top bit of entry n is the parity of n
        let odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
        let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(seven), _mm256_set1_epi8(7));
        // a clear top bit makes the shuffle read the low four bits
        let lower = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, _mm256_set1_epi8(15)));
        _mm256_xor_si256(seven, _mm256_xor_si256(lower, _mm256_shuffle_epi8(odd, upper)))
    }
}

/// The bits of `shifted` that `mask` selects.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn part(shifted: __m256i, mask: i32) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm256_and_si256(shifted, _mm256_set1_epi32(mask)) }
}

/// Spreads four groups of seven bits in each word to one group per byte. Higher bits of a word are ignored.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn sevens(words: __m256i) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let low = _mm256_or_si256(part(words, 0x7f), part(_mm256_slli_epi32::<1>(words), 0x7f00));
        let high = _mm256_or_si256(part(_mm256_slli_epi32::<2>(words), 0x7f_0000), part(_mm256_slli_epi32::<3>(words), 0x7f00_0000));
        _mm256_or_si256(low, high)
    }
}

/// Repeats the same 16-bit lane of eight words in each group of four lanes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn four_times(quads: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let pairs = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9);
        _mm512_shuffle_epi8(quads, _mm512_broadcast_i32x4(pairs))
    }
}

/// Four 16-bit shift counts, repeated.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn by_four(a: i64, b: i64, c: i64, d: i64) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_set1_epi64(a | b << 16 | c << 32 | d << 48) }
}

/// The decoded state of 256 weights: indexes of `E` entries (for IQ3, the entries themselves), signs and scales.
#[repr(align(64))]
pub struct BookEntries<const E: usize> {
    entries: [u16; E],
    signs: [u8; 32],
    scales: V,
}

impl<const E: usize> BookEntries<E> {
    /// # Safety
    /// `out` is valid for writes, and the processor has the instruction set.
    #[inline(always)]
    unsafe fn write(out: *mut Self, entries: [__m512i; 2], signs: __m256i, scales: V) {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            for i in 0..E / 32 {
                _mm512_storeu_si512((&raw mut (*out).entries).cast::<__m512i>().add(i), entries[i]);
            }
            _mm256_storeu_si256((&raw mut (*out).signs).cast(), signs);
            (*out).scales = scales;
        }
    }

    /// Applies the signs of step `j` to `codes`.
    ///
    /// # Safety
    /// `j` is below 4, and the processor has the instruction set.
    #[inline(always)]
    unsafe fn signed(&self, codes: __m512i, j: usize) -> __m512i {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let signs = self.signs.as_ptr().cast::<u64>().add(j).read_unaligned();
            _mm512_mask_sub_epi8(codes, signs, _mm512_setzero_si512(), codes)
        }
    }
}

/// Loads eight entries. The indexes must lie within the book.
///
/// # Safety
/// `i` is below 4, the indexes `8 * i..8 * i + 8` are below `N`, and the processor has the instruction set.
#[inline(always)]
unsafe fn eight<const N: usize>(book: &BookLines<[[u8; 8]; N]>, indexes: &[u16; 32], i: usize) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // four indexes per load, because loads are the bottleneck of these types
        let p = indexes.as_ptr().cast::<u64>().add(2 * i);
        let words = [p.read_unaligned(), p.add(1).read_unaligned()];
        let entry = |i: usize| book.0.as_ptr().add((words[i / 4] >> (16 * (i % 4)) & 0xffff) as usize).cast::<i64>().read();
        _mm512_setr_epi64(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7))
    }
}

/// Reorders entries of eight weights so that half of the transposition is saved: first the first entries of groups 0, 4, 1, 5, 2, 6, 3, 7,
/// then their second entries, then the same for groups 8 and up.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn paired(entries: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let order = _mm512_set_epi16(
            31, 23, 29, 21, 27, 19, 25, 17, 30, 22, 28, 20, 26, 18, 24, 16, 15, 7, 13, 5, 11, 3, 9, 1, 14, 6, 12, 4, 10, 2, 8, 0,
        );
        _mm512_permutexvar_epi16(order, entries)
    }
}

/// Reorders the signs of entries in the same way.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn paired_signs(signs: __m256i) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let order = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15);
        _mm256_shuffle_epi8(signs, _mm256_broadcastsi128_si256(order))
    }
}

/// Completes the transposition of codes from paired entries.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn from_pairs([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (a, b, c, d) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), _mm512_castsi512_ps(c), _mm512_castsi512_ps(d));
        [
            _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(a, c)),
            _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(a, c)),
            _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(b, d)),
            _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(b, d)),
        ]
    }
}

/// Defines a code-book type. `|p, out|` writes the state of a block, and `|p, s, j|` gives the codes of step `j`, or the codes of paired
/// entries.
macro_rules! books {
    (
        $name:ident, $bytes:literal, $state:ty, $group:literal,
        |$p:ident, $out:ident| $make:expr, |$q:ident, $s:ident, $j:ident| $codes:expr $(, $order:ident)?
    ) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes, and entries whose index has no more bits than the book; `dispatch` chooses it only if the
        // processor has the instruction set.
        unsafe impl Codes for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;
            type State = $state;
            #[inline(always)]
            unsafe fn state($p: *const u8, _: usize, $out: *mut $state) {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    $make;
                }
            }
            #[inline(always)]
            unsafe fn codes($q: *const u8, $s: &$state, $j: usize) -> __m512i {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    $codes
                }
            }
            $(
                #[inline(always)]
                unsafe fn whole(p: *const u8, s: &$state) -> [__m512i; 4] {
                    // SAFETY: the caller keeps the conditions of the trait.
                    unsafe {
                        $order([Self::codes(p, s, 0), Self::codes(p, s, 1), Self::codes(p, s, 2), Self::codes(p, s, 3)])
                    }
                }
            )?
            #[inline(always)]
            unsafe fn scales(s: &$state) -> V {
                s.scales
            }
            #[inline(always)]
            unsafe fn minima(_: &$state) -> V {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    _mm512_setzero_ps()
                }
            }
        }
    };
}

/// Multiplies eight small integers by `d`.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn scales8(d: f32, integers: __m256i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_zextps256_ps512(_mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(integers))) }
}

/// The fields of `bits` bits of a word, one per lane. Higher bits are not cleared.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn fields(word: i32, bits: i32) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_mullo_epi32(lane, _mm256_set1_epi32(bits)))
    }
}

/// # Safety
/// `p` is valid for a block of 136 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq4_xs(p: *const u8) -> Scales {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let low = _mm256_and_si256(fields(p.add(4).cast::<i32>().read_unaligned(), 4), _mm256_set1_epi32(15));
        let tops = i32::from(p.add(2).cast::<u16>().read_unaligned());
        let top = _mm256_and_si256(fields(tops << 4, 2), _mm256_set1_epi32(48));
        let scales = scales8(f16_at(p), _mm256_sub_epi32(_mm256_or_si256(low, top), _mm256_set1_epi32(32)));
        Scales { scales, minima: _mm512_setzero_ps() }
    }
}

books!(Iq4Xs, 136, Scales, 32, |p, out| *out = iq4_xs(p), |p, _s, j| look_up(&IQ4, nibbles(p.add(8 + 32 * j), p.add(24 + 32 * j))));

/// The sixteen scales of IQ2_XS and IQ2_S at `p`: d · (s + ½) / 4.
///
/// # Safety
/// `p` is valid for eight bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq2_scales(d: f32, p: *const u8) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let packed = _mm_loadl_epi64(p.cast());
        let nibbles = _mm_and_si128(_mm_unpacklo_epi8(packed, _mm_srli_epi16::<4>(packed)), _mm_set1_epi8(15));
        let scales = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(nibbles)), _mm512_set1_ps(0.5));
        _mm512_mul_ps(_mm512_set1_ps(0.25 * d), scales)
    }
}

/// d · (s + ½) · factor, where `s` is the highest four bits of each word.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn top_scales(d: f32, words: __m256i, factor: f32) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // twice the sum is an integer, and halving a product is exact
        let twice = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32::<27>(words), _mm256_set1_epi32(30)), _mm256_set1_epi32(1));
        scales8(d * (0.5 * factor), twice)
    }
}

/// # Safety
/// `p` is valid for a block of 66 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq2_xxs(p: *const u8, out: *mut BookEntries<32>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // eight pairs of words: four one-byte indexes, then signs and a scale
        let all = _mm512_loadu_si512(p.add(2).cast());
        let words = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(all));
        let entries = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(all));
        BookEntries::write(out, [paired(entries); 2], paired_signs(even_signs(sevens(words))), top_scales(f16_at(p), words, 0.25));
    }
}

books!(Iq2Xxs, 66, BookEntries<32>, 32, |p, out| iq2_xxs(p, out), |_p, s, j| s.signed(eight(&IQ2_XXS, &s.entries, j), j), from_pairs);

/// # Safety
/// `p` is valid for a block of 74 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq2_xs(p: *const u8, out: *mut BookEntries<32>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let words = _mm512_loadu_si512(p.add(2).cast());
        let signs = even_signs(_mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words)));
        let entries = paired(_mm512_and_si512(words, _mm512_set1_epi16(511)));
        BookEntries::write(out, [entries; 2], paired_signs(signs), iq2_scales(f16_at(p), p.add(66)));
    }
}

books!(Iq2Xs, 74, BookEntries<32>, 16, |p, out| iq2_xs(p, out), |_p, s, j| s.signed(eight(&IQ2_XS, &s.entries, j), j), from_pairs);

/// # Safety
/// `p` is valid for a block of 82 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq2_s(p: *const u8, out: *mut BookEntries<32>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let tops = four_times(_mm512_cvtepu8_epi64(_mm_loadl_epi64(p.add(66).cast())));
        let tops = _mm512_and_si512(_mm512_sllv_epi16(tops, by_four(8, 6, 4, 2)), _mm512_set1_epi16(0x300));
        let entries = _mm512_or_si512(bytes32(p.add(2)), tops);
        let signs = paired_signs(_mm256_loadu_si256(p.add(34).cast()));
        BookEntries::write(out, [paired(entries); 2], signs, iq2_scales(f16_at(p), p.add(74)));
    }
}

books!(Iq2S, 82, BookEntries<32>, 16, |p, out| iq2_s(p, out), |_p, s, j| s.signed(eight(&IQ2_S, &s.entries, j), j), from_pairs);

/// The codes of IQ3's 16 entries at `p`, which hold a nibble per weight.
///
/// # Safety
/// `p` is valid for 16 entries, and the processor has the instruction set.
#[inline(always)]
unsafe fn four_each(levels: &[u8; 16], p: *const u16) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bytes = bytes32(p.cast());
        let nibbles = _mm512_or_si512(bytes, _mm512_slli_epi16::<4>(bytes));
        look_up(levels, _mm512_and_si512(nibbles, _mm512_set1_epi8(15)))
    }
}

/// # Safety
/// `p` is valid for a block of 98 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq3_xxs(p: *const u8, out: *mut BookEntries<64>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let words = _mm256_loadu_si256(p.add(66).cast());
        let entries = [nibbles_at(&IQ3_XXS, bytes32(p.add(2))), nibbles_at(&IQ3_XXS, bytes32(p.add(34)))];
        BookEntries::write(out, entries, even_signs(sevens(words)), top_scales(f16_at(p), words, 0.5));
    }
}

books!(Iq3Xxs, 98, BookEntries<64>, 32, |p, out| iq3_xxs(p, out), |_p, s, j| {
    s.signed(four_each(&IQ3_XXS_CODES, s.entries.as_ptr().add(16 * j)), j)
});

/// # Safety
/// `p` is valid for a block of 110 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq3_s(p: *const u8, out: *mut BookEntries<64>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let tops = p.add(66).cast::<u64>().read_unaligned();
        let ninth = _mm512_set1_epi16(256);
        let first = _mm512_or_si512(bytes32(p.add(2)), _mm512_maskz_mov_epi16(tops as u32, ninth));
        let second = _mm512_or_si512(bytes32(p.add(34)), _mm512_maskz_mov_epi16((tops >> 32) as u32, ninth));
        let entries = [nibbles_at(&IQ3_S, first), nibbles_at(&IQ3_S, second)];
        let steps = fields(p.add(106).cast::<i32>().read_unaligned(), 4);
        let odd = _mm256_add_epi32(_mm256_slli_epi32::<1>(_mm256_and_si256(steps, _mm256_set1_epi32(15))), _mm256_set1_epi32(1));
        BookEntries::write(out, entries, _mm256_loadu_si256(p.add(74).cast()), scales8(f16_at(p), odd));
    }
}

books!(Iq3S, 110, BookEntries<64>, 32, |p, out| iq3_s(p, out), |_p, s, j| {
    s.signed(four_each(&IQ3_S_CODES, s.entries.as_ptr().add(16 * j)), j)
});

/// The indexes and scales of 256 weights.
#[repr(align(64))]
pub struct Indexed {
    indexes: [u16; 32],
    scales: V,
}

impl Indexed {
    /// # Safety
    /// `out` is valid for writes, and the processor has the instruction set.
    #[inline(always)]
    unsafe fn write(out: *mut Self, indexes: __m512i, scales: V) {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            _mm512_storeu_si512((&raw mut (*out).indexes).cast(), paired(indexes));
            (*out).scales = scales;
        }
    }
}

/// # Safety
/// `p` is valid for a block of 50 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq1_s(p: *const u8, out: *mut Indexed) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let words = _mm_loadu_si128(p.add(34).cast());
        let tops = four_times(_mm512_cvtepu16_epi64(words));
        let down = _mm512_and_si512(_mm512_srli_epi16::<4>(tops), _mm512_set1_epi16(0x800));
        let tops = _mm512_srlv_epi16(_mm512_sllv_epi16(tops, by_four(8, 5, 2, 0)), by_four(0, 0, 0, 1));
        let tops = _mm512_or_si512(_mm512_and_si512(tops, _mm512_set1_epi16(0x700)), down);
        let steps = _mm_and_si128(_mm_srli_epi16::<11>(words), _mm_set1_epi16(14));
        let odd = _mm256_cvtepu16_epi32(_mm_or_si128(steps, _mm_set1_epi16(1)));
        Indexed::write(out, _mm512_or_si512(bytes32(p.add(2)), tops), scales8(0.125 * f16_at(p), odd));
    }
}

books!(Iq1S, 50, Indexed, 32, |p, out| iq1_s(p, out), |_p, s, j| eight(&IQ1, &s.indexes, j), from_pairs);

/// # Safety
/// `p` is valid for a block of 56 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn iq1_m(p: *const u8, out: *mut Indexed) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // one nibble per entry: three high bits of its index, and the sign of its shift
        let tops = _mm_loadu_si128(p.add(32).cast());
        let (even, odd) = (_mm_and_si128(tops, _mm_set1_epi8(15)), _mm_and_si128(_mm_srli_epi16::<4>(tops), _mm_set1_epi8(15)));
        let tops = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
        let index = _mm512_or_si512(bytes32(p), _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(tops)));
        // four words, each with four three-bit scales and a part of the block's scale in its highest bits
        let words = p.add(48).cast::<u64>().read_unaligned();
        let half = words >> 12 & 0xf | words >> 24 & 0xf0 | words >> 36 & 0xf00 | words >> 48 & 0xf000;
        let both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words as i32), 0xff00, (words >> 32) as i32);
        let steps = _mm512_srlv_epi32(both, _mm512_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25, 0, 3, 6, 9, 16, 19, 22, 25));
        let steps = _mm512_slli_epi32::<1>(_mm512_and_si512(steps, _mm512_set1_epi32(7)));
        let scales = _mm512_cvtepi32_ps(_mm512_or_si512(steps, _mm512_set1_epi32(1)));
        Indexed::write(out, index, _mm512_mul_ps(_mm512_set1_ps(0.125 * half_of(half as u16)), scales));
    }
}

books!(Iq1M, 56, Indexed, 16, |p, out| iq1_m(p, out), |_p, s, j| eight(&IQ1, &s.indexes, j), from_pairs);
