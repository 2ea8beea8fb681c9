//! Represents the character sets of pre-tokenizers' patterns, and tabulates all sets of one pre-tokenizer.

use std::sync::OnceLock;

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Unicode's general categories by their two-letter names. The index of a category is its bit in [`CharSet`].
const CATEGORIES: [(&str, G); 30] = [
    ("Lu", G::UppercaseLetter),
    ("Ll", G::LowercaseLetter),
    ("Lt", G::TitlecaseLetter),
    ("Lm", G::ModifierLetter),
    ("Lo", G::OtherLetter),
    ("Mn", G::NonspacingMark),
    ("Mc", G::SpacingMark),
    ("Me", G::EnclosingMark),
    ("Nd", G::DecimalNumber),
    ("Nl", G::LetterNumber),
    ("No", G::OtherNumber),
    ("Pc", G::ConnectorPunctuation),
    ("Pd", G::DashPunctuation),
    ("Ps", G::OpenPunctuation),
    ("Pe", G::ClosePunctuation),
    ("Pi", G::InitialPunctuation),
    ("Pf", G::FinalPunctuation),
    ("Po", G::OtherPunctuation),
    ("Sm", G::MathSymbol),
    ("Sc", G::CurrencySymbol),
    ("Sk", G::ModifierSymbol),
    ("So", G::OtherSymbol),
    ("Zs", G::SpaceSeparator),
    ("Zl", G::LineSeparator),
    ("Zp", G::ParagraphSeparator),
    ("Cc", G::Control),
    ("Cf", G::Format),
    ("Cs", G::Surrogate),
    ("Co", G::PrivateUse),
    ("Cn", G::Unassigned),
];

/// `\s`: Unicode's property White_Space.
const WHITE_SPACE: [(u32, u32); 10] = [
    (0x9, 0xd),
    (0x20, 0x20),
    (0x85, 0x85),
    (0xa0, 0xa0),
    (0x1680, 0x1680),
    (0x2000, 0x200a),
    (0x2028, 0x2029),
    (0x202f, 0x202f),
    (0x205f, 0x205f),
    (0x3000, 0x3000),
];

const LAST: u32 = 0x10_ffff;
const PAGE: usize = 256;

/// A character class of a pattern: categories and ranges, or everything except those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CharSet {
    categories: u32,
    ranges: Vec<(u32, u32)>,
    pub(super) negated: bool,
}

impl CharSet {
    pub(super) fn add_char(&mut self, c: char) {
        self.add_range(c, c);
    }

    pub(super) fn add_range(&mut self, first: char, last: char) {
        self.ranges.push((first.into(), last.into()));
    }

    /// Adds `\p{name}`, with a name of one or two letters. Returns false if there is no such category.
    pub(super) fn add_category(&mut self, name: &str, negated: bool) -> bool {
        let bits = (0..).zip(CATEGORIES).filter(|(_, (known, _))| !name.is_empty() && known.starts_with(name));
        let bits = bits.fold(0u32, |bits, (index, _)| bits | 1 << index);
        self.categories |= if negated { !bits & ((1 << CATEGORIES.len()) - 1) } else { bits };
        bits != 0
    }

    pub(super) fn add_white_space(&mut self, negated: bool) {
        if !negated {
            return self.ranges.extend(WHITE_SPACE);
        }
        let starts = std::iter::once(0).chain(WHITE_SPACE.iter().map(|(_, last)| last + 1));
        let ends = WHITE_SPACE.iter().map(|(first, _)| first - 1).chain([LAST]);
        self.ranges.extend(starts.zip(ends));
    }

    /// Adds the other case of every single letter, but not of ranges. `ſ` also folds to s (Unicode's CaseFolding).
    pub(super) fn fold_case(&mut self) {
        for (first, _) in self.ranges.clone().into_iter().filter(|(first, last)| first == last) {
            let Some(c) = char::from_u32(first) else { continue };
            let others = c.to_lowercase().chain(c.to_uppercase());
            self.ranges.extend(others.map(|other| (u32::from(other), u32::from(other))));
            if c.eq_ignore_ascii_case(&'s') {
                self.add_char('ſ');
            }
        }
        self.ranges.sort_unstable();
        self.ranges.dedup();
    }
}

/// The index in `CATEGORIES` of every code point's category. Takes a megabyte, once per process.
fn categories() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let index = |category: G| CATEGORIES.iter().position(|(_, known)| *known == category).unwrap_or(CATEGORIES.len() - 1) as u8;
        (0..=LAST).map(|c| char::from_u32(c).map_or(27, |c| index(get_general_category(c)))).collect()
    })
}

/// One bit per set for each code point, set if the set contains the code point. Stored in pages of 256 code points. Equal pages are stored
/// once.
pub(super) struct Table {
    ascii: [u32; 128],
    pages: Vec<u16>,
    bits: Vec<[u32; PAGE]>,
}

impl Table {
    /// Builds the table of at most 32 sets.
    pub(super) fn new(sets: &[CharSet]) -> Self {
        let by_category: Vec<u32> = (0..CATEGORIES.len()).map(|index| bits_where(sets, |set| set.categories >> index & 1 == 1)).collect();
        let negated = bits_where(sets, |set| set.negated);
        let mut all: Vec<u32> = categories().iter().map(|&category| by_category[category as usize]).collect();
        for (index, set) in sets.iter().enumerate() {
            for &(first, last) in &set.ranges {
                all[first as usize..=last as usize].iter_mut().for_each(|bits| *bits |= 1 << index);
            }
        }
        let mut table = Self { ascii: [0; 128], pages: Vec::new(), bits: Vec::new() };
        let mut seen = std::collections::HashMap::new();
        for chunk in all.chunks_exact_mut(PAGE) {
            chunk.iter_mut().for_each(|bits| *bits ^= negated);
            let mut page = [0; PAGE];
            page.copy_from_slice(chunk);
            let number = *seen.entry(page).or_insert_with(|| {
                table.bits.push(page);
                (table.bits.len() - 1) as u16
            });
            table.pages.push(number);
        }
        table.ascii.copy_from_slice(&table.bits[usize::from(table.pages[0])][..128]);
        table
    }

    /// Whether any character is in sets of both masks.
    pub(super) fn overlap(&self, a: u32, b: u32) -> bool {
        self.bits.iter().flatten().any(|bits| bits & a != 0 && bits & b != 0)
    }

    /// The sets that contain the character at a byte position, and the character's length in bytes (0 at the end).
    #[inline(always)]
    pub(super) fn at(&self, text: &str, at: usize) -> (u32, usize) {
        match text.as_bytes().get(at) {
            None => (0, 0),
            Some(&byte) if byte < 128 => (self.ascii[byte as usize], 1),
            Some(_) => {
                let c = text[at..].chars().next().unwrap_or('\0');
                let code = c as usize;
                (self.bits[usize::from(self.pages[code / PAGE])][code % PAGE], c.len_utf8())
            }
        }
    }

    pub(super) fn bytes_held(&self) -> usize {
        self.bits.len() * PAGE * 4 + self.pages.len() * 2
    }
}

fn bits_where(sets: &[CharSet], holds: impl Fn(&CharSet) -> bool) -> u32 {
    sets.iter().enumerate().filter(|(_, set)| holds(set)).fold(0, |bits, (index, _)| bits | 1 << index)
}
