//! Fill in the middle: prefix, suffix and then what stands between (Bavarian et al., "Efficient training of language models to fill in
//! the middle", 2022, its PSM order).

use super::Tokenizer;
use super::vocab::{TokenType, VocabData};

/// Names of the three tokens, family by family.
const TEXTS: [[&str; 3]; 7] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<PRE>", "<SUF>", "<MID>"],
];
/// What else ends a piece of code: padding, the next file, the next repository.
const ENDS: [&str; 7] = ["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>", "<|repo_name|>", "<repo_name>"];

/// A vocabulary's tokens for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    prefix: u32,
    suffix: u32,
    middle: u32,
    ends: Vec<u32>,
}

impl Infill {
    /// As the file names them, else by their texts.
    pub(super) fn find(data: &VocabData) -> Option<Self> {
        let is_special = |id: usize| matches!(data.types[id], TokenType::Control | TokenType::UserDefined);
        let id = |text: &str| (0..data.tokens.len()).find(|&id| data.tokens[id] == text && is_special(id)).map(|id| id as u32);
        let by_text = || {
            let named = TEXTS.iter().map(|texts| texts.map(id));
            named.into_iter().find_map(|ids| match ids {
                [Some(prefix), Some(suffix), Some(middle)] => Some([prefix, suffix, middle]),
                _ => None,
            })
        };
        let [prefix, suffix, middle] = match data.infill {
            [Some(prefix), Some(suffix), Some(middle)] => [prefix, suffix, middle],
            _ => by_text()?,
        };
        Some(Self { prefix, suffix, middle, ends: ENDS.into_iter().filter_map(id).collect() })
    }

    /// Every id that has no place in what is filled in.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        [self.prefix, self.suffix, self.middle].into_iter().chain(self.ends.iter().copied())
    }
}

impl Tokenizer {
    /// None: the vocabulary has no tokens for it.
    pub fn infill(&self) -> Option<&Infill> {
        self.infill.as_ref()
    }

    /// The prompt for what stands between two texts. Control tokens' texts in them are control tokens, as in any prompt.
    pub fn encode_infill(&self, infill: &Infill, prefix: &str, suffix: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = self.bos.filter(|_| self.starts_with_bos).into_iter().collect();
        ids.push(infill.prefix);
        ids.extend(self.encode(prefix, true));
        ids.push(infill.suffix);
        ids.extend(self.encode(suffix, true));
        ids.push(infill.middle);
        ids
    }
}
