//! Implements BERT's text rules: normalises a text and cuts it into words.

use icu_normalizer::DecomposingNormalizerBorrowed;

use crate::bert_chars::{has_no_normal_form, is_accent, is_dropped, is_ideograph, is_punctuation};
use crate::space::SPACE_SIGN;

/// The rules of a WordPiece vocabulary, besides its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordRules<'a> {
    pub(super) text: BertText,
    /// The prefix of tokens that continue a word. None if tokens that begin a word have the prefix `▁`, as in GGUF files.
    pub(super) continuing: Option<&'a str>,
    /// The number of characters of the longest word that is cut into tokens.
    pub(super) longest_word: usize,
}

impl WordRules<'_> {
    /// BERT's own limit, which all known vocabularies have.
    pub(super) const LONGEST_WORD: usize = 100;

    /// The text of a token without its mark, and whether the token begins a word.
    pub(super) fn part<'t>(&self, token: &'t str) -> (bool, &'t str) {
        match self.continuing {
            Some(prefix) => token.strip_prefix(prefix).map_or((true, token), |rest| (false, rest)),
            // `▁` alone continues a word, because no word is empty.
            None => token.strip_prefix(SPACE_SIGN).filter(|rest| !rest.is_empty()).map_or((false, token), |rest| (true, rest)),
        }
    }
}

/// Whether the words of a vocabulary have capital letters. A few stray capitals do not count.
pub(super) fn is_cased(tokens: &[String]) -> bool {
    let is_word = |token: &&String| token.starts_with(SPACE_SIGN) && !token.contains('[');
    let words = tokens.iter().filter(is_word).count();
    let capital = tokens.iter().filter(is_word).filter(|token| token.contains(|c: char| c.is_ascii_uppercase())).count();
    capital * 100 > words
}

/// The steps of normalisation, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BertText {
    /// Removes control characters, formats, private characters and U+FFFD.
    pub(super) clean: bool,
    /// Puts spaces around CJK ideographs.
    pub(super) isolate_ideographs: bool,
    /// Decomposes characters and removes nonspacing marks.
    pub(super) strip_accents: bool,
    pub(super) lowercase: bool,
}

impl BertText {
    /// Leaves texts as they are.
    pub(super) const NONE: Self = Self { clean: false, isolate_ideographs: false, strip_accents: false, lowercase: false };

    /// The rules of a model's own `tokenizer.json`, which differ in case only.
    pub(super) fn cased(is_cased: bool) -> Self {
        Self { clean: true, isolate_ideographs: true, strip_accents: !is_cased, lowercase: !is_cased }
    }

    pub(super) fn normalise(self, text: &str) -> String {
        if text.is_ascii() {
            return text.chars().filter(|&c| !self.clean || !is_dropped(c)).map(|c| self.lower_ascii(c)).collect();
        }
        let mut out = String::with_capacity(text.len() + text.len() / 8);
        for c in text.chars().filter(|&c| !self.clean || !is_dropped(c)) {
            if self.isolate_ideographs && is_ideograph(c) {
                out.extend([' ', c, ' ']);
            } else {
                out.push(c);
            }
        }
        if self.strip_accents {
            out = decomposed(&out);
            out.retain(|c| !is_accent(c));
        }
        // Each character alone: a sigma at the end of a word is not an exception.
        if self.lowercase { out.chars().flat_map(char::to_lowercase).collect() } else { out }
    }

    fn lower_ascii(self, c: char) -> char {
        if self.lowercase { c.to_ascii_lowercase() } else { c }
    }
}

/// Converts a text to Unicode's form NFD.
fn decomposed(text: &str) -> String {
    let nfd = DecomposingNormalizerBorrowed::new_nfd();
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    for part in text.split_inclusive(has_no_normal_form) {
        let end = part.chars().next_back().filter(|&c| has_no_normal_form(c));
        out.push_str(&nfd.normalize(&part[..part.len() - end.map_or(0, char::len_utf8)]));
        out.extend(end);
    }
    out
}

/// Cuts a normalised text at white space and around punctuation. White space is dropped.
pub(super) fn words<'a>(text: &'a str, mut emit: impl FnMut(&'a str)) {
    let mut start = 0;
    for (at, c) in text.char_indices() {
        let (is_space, end) = (c.is_whitespace(), at + c.len_utf8());
        if !is_space && !is_punctuation(c) {
            continue;
        }
        if start < at {
            emit(&text[start..at]);
        }
        if !is_space {
            emit(&text[at..end]);
        }
        start = end;
    }
    if start < text.len() {
        emit(&text[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(rules: BertText, text: &str) -> Vec<String> {
        let text = rules.normalise(text);
        let mut out = Vec::new();
        words(&text, |word| out.push(word.to_owned()));
        out
    }

    #[test]
    fn texts_are_cleaned_and_cut_into_words() {
        let (cased, uncased) = (BertText::cased(true), BertText::cased(false));
        assert_eq!(cut(uncased, "Héllo,\tWORLD!\u{7} co\u{ad}op"), ["hello", ",", "world", "!", "coop"]);
        assert_eq!(cut(cased, "Héllo, WORLD"), ["Héllo", ",", "WORLD"]);
        assert_eq!(cut(uncased, "日本語 の $x~"), ["日", "本", "語", "の", "$", "x", "~"]);
        assert_eq!(cut(uncased, "ΟΔΟΣ İx"), ["οδοσ", "ix"]);
        assert_eq!(cut(uncased, "\u{0}\u{fffd}\u{200b}\u{feff} \u{85}\u{3000}"), [""; 0]);
        assert_eq!(cut(uncased, "¿qué? a\u{300}\u{61d}b"), ["¿", "que", "?", "a\u{61d}b"]);
    }
}
