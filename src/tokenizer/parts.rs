//! [`Parts`]: the contents of a `tokenizer.json`, for programs that write them in another format.

use std::path::Path;

use crate::error::{TokenizerError, fault};
use crate::hugging_face::JsonVocab;
use crate::pretokenize::names_of;
use crate::vocab::{Model, TokenType};

/// The kind of a vocabulary's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// BPE over bytes, with merges
    Bytes,
    /// BPE over characters, with merges and `▁` for spaces
    Characters,
    /// SentencePiece's unigram model
    Unigram,
}

/// The contents of a `tokenizer.json`.
#[derive(Clone, Debug)]
pub struct Parts {
    pub kind: Kind,
    /// GGUF's names for the pre-tokenizer, the usual one first. Empty if GGUF has none.
    pub names: Vec<&'static str>,
    /// The pre-tokenizer's patterns.
    pub patterns: Vec<String>,
    pub ignore_merges: bool,
    /// The tokens by id. Ids that the vocabulary leaves out are empty.
    pub tokens: Vec<String>,
    /// The number of each token's type in GGUF.
    pub types: Vec<i32>,
    pub merges: Vec<(String, String)>,
    /// One score per token for [`Kind::Unigram`], else empty.
    pub scores: Vec<f32>,
    /// SentencePiece's compiled normalisation rules.
    pub charsmap: Vec<u8>,
    pub unknown: Option<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Whether a text begins with BOS.
    pub adds_bos: bool,
    /// Whether a text ends with EOS.
    pub adds_eos: bool,
    pub add_space_prefix: bool,
    pub squeeze_spaces: bool,
    /// Tokens that include the white space before or after them.
    pub stripping: Vec<String>,
}

impl Parts {
    /// Reads a `tokenizer.json` and, if it exists, the `tokenizer_config.json` in the same directory.
    ///
    /// # Errors
    /// If a part of the file is malformed or not supported. The error names the part.
    pub fn open(path: &Path) -> Result<Self, TokenizerError> {
        let vocab = JsonVocab::open_any(path)?;
        let data = vocab.data();
        let kind = match data.model {
            Model::ByteBpe => Kind::Bytes,
            Model::CharBpe => Kind::Characters,
            Model::Unigram => Kind::Unigram,
            Model::Spm | Model::WordPiece => return fault(format!("{}: model.type: `WordPiece` is not supported", path.display())),
        };
        let right = data.greedy.iter().filter_map(|&id| data.tokens.get(id as usize).cloned());
        let patterns: Vec<String> = data.patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Ok(Self {
            kind,
            names: names_of(&patterns, data.ignore_merges),
            patterns,
            ignore_merges: data.ignore_merges,
            tokens: data.tokens.to_vec(),
            types: data.types.iter().map(number).collect(),
            merges: data.merges.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect(),
            scores: data.scores.to_vec(),
            charsmap: data.charsmap.to_vec(),
            unknown: data.unknown,
            bos: data.bos,
            eos: data.eos,
            adds_bos: data.add_bos,
            adds_eos: data.add_eos,
            add_space_prefix: data.add_space_prefix,
            squeeze_spaces: data.squeeze_spaces,
            stripping: vocab.left.iter().cloned().chain(right).collect(),
        })
    }
}

/// The number of a type in GGUF.
fn number(kind: &TokenType) -> i32 {
    match kind {
        TokenType::Normal => 1,
        TokenType::Unknown => 2,
        TokenType::Control => 3,
        TokenType::UserDefined => 4,
        TokenType::Unused => 5,
        TokenType::Byte => 6,
    }
}
