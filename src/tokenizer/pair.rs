//! Encodes two texts as one prompt: a question and a document, which a model ranks.

use crate::tokenizer::Tokenizer;

/// The ids of two texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub ids: Vec<u32>,
    /// The index of the second text's first id, where BERT's second segment begins. Tokens that end the first text belong to the first
    /// segment.
    pub second: usize,
}

impl Tokenizer {
    /// Encodes two texts as one prompt, with the special tokens that the model was trained with before, between and after them
    /// (`[CLS] first [SEP] second [SEP]`). Texts of control tokens stay text.
    ///
    /// None if the pair has more than `most` tokens. Encoding stops soon after that many.
    pub fn encode_pair(&self, first: &str, second: &str, most: usize) -> Option<Pair> {
        let mut ids: Vec<u32> = self.bos().filter(|_| self.starts_with_bos).into_iter().collect();
        ids.extend(self.encode_text(first, most)?);
        ids.extend(&self.between);
        let start = ids.len();
        ids.extend(self.encode_text(second, most)?);
        ids.extend(self.eos().filter(|_| self.add_eos));
        (ids.len() <= most).then_some(Pair { ids, second: start })
    }
}
