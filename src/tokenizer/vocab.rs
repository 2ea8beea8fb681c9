//! A GGUF file's vocabulary as plain data, and its checks.

use crate::gguf::GgufFile;

use super::TokenizerError;
use super::pretokenize::is_llama3;

/// `tokenizer.ggml.token_type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    /// `gpt2`: merges of bytes
    Bpe,
    /// `llama`: SentencePiece's scores
    Spm,
}

/// What `tokenizer.ggml.*` says, checked: `merges` and `scores` fit the model, `types` has one entry a token, every id is in the vocabulary.
#[derive(Clone, Debug)]
pub(super) struct VocabData<'a> {
    pub(super) model: Model,
    pub(super) pre: &'a str,
    pub(super) tokens: &'a [String],
    pub(super) types: Vec<TokenType>,
    pub(super) merges: &'a [String],
    pub(super) scores: &'a [f32],
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// EOT, EOM and the like
    pub(super) other_ends: Vec<u32>,
    /// Prefix, suffix and middle of a text to fill in.
    pub(super) infill: [Option<u32>; 3],
    pub(super) add_bos: bool,
    /// As `add_bos`; where the file is silent, what its kind of tokenizer does.
    pub(super) starts_with_bos: bool,
    pub(super) add_eos: bool,
    pub(super) add_space_prefix: bool,
}

pub(super) fn fault<T>(text: String) -> Result<T, TokenizerError> {
    Err(TokenizerError(text))
}

impl<'a> VocabData<'a> {
    pub(super) fn read(file: &'a GgufFile) -> Result<Self, TokenizerError> {
        let reader = Reader { file };
        let model = match reader.text("tokenizer.ggml.model")? {
            Some("gpt2") => Model::Bpe,
            Some("llama") => Model::Spm,
            Some(other) => return fault(format!("tokenizer.ggml.model: `{other}` is not supported")),
            None => return fault("tokenizer.ggml.model is missing".into()),
        };
        let tokens = reader.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        if tokens.is_empty() {
            return fault("tokenizer.ggml.tokens is missing or empty".into());
        }
        let count = tokens.len();
        let types = reader.types(count)?;
        let scores = reader.scores(model, count)?;
        let merges = reader.strings("tokenizer.ggml.merges")?.unwrap_or_default();
        if model == Model::Bpe && merges.is_empty() {
            return fault("tokenizer.ggml.merges is missing or empty".into());
        }
        let id = |name: &str| reader.id(&format!("tokenizer.ggml.{name}_token_id"), count);
        let mut other_ends = Vec::new();
        for name in ["eot", "eom"] {
            other_ends.extend(id(name)?);
        }
        let mut infill = [None; 3];
        for (place, names) in infill.iter_mut().zip([["fim_pre", "prefix"], ["fim_suf", "suffix"], ["fim_mid", "middle"]]) {
            *place = id(names[0])?.or(id(names[1])?);
        }
        let flag = |name: &str, default: bool| reader.flag(&format!("tokenizer.ggml.{name}"), default);
        let pre = reader.text("tokenizer.ggml.pre")?.unwrap_or("default");
        Ok(Self {
            model,
            pre,
            tokens,
            types,
            merges,
            scores,
            bos: id("bos")?,
            eos: id("eos")?,
            unknown: id("unknown")?,
            other_ends,
            infill,
            add_bos: flag("add_bos_token", model == Model::Spm)?,
            starts_with_bos: flag("add_bos_token", model == Model::Spm || is_llama3(pre))?,
            add_eos: flag("add_eos_token", false)?,
            add_space_prefix: flag("add_space_prefix", model == Model::Spm)?,
        })
    }
}

struct Reader<'a> {
    file: &'a GgufFile,
}

impl<'a> Reader<'a> {
    /// A key that is there but of another type is an error, not a default.
    fn typed<T>(&self, key: &str, value: Option<T>, wanted: &str) -> Result<Option<T>, TokenizerError> {
        match value {
            None if self.file.get(key).is_some() => fault(format!("{key} is not {wanted}")),
            value => Ok(value),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, TokenizerError> {
        self.typed(key, self.file.get_str(key), "a string")
    }

    fn strings(&self, key: &str) -> Result<Option<&'a [String]>, TokenizerError> {
        self.typed(key, self.file.get_strs(key), "an array of strings")
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, TokenizerError> {
        Ok(self.typed(key, self.file.get_bool(key), "a boolean")?.unwrap_or(default))
    }

    fn id(&self, key: &str, count: usize) -> Result<Option<u32>, TokenizerError> {
        match self.typed(key, self.file.get_u32(key), "a token id")? {
            Some(id) if id as usize >= count => fault(format!("{key} is {id}, but the vocabulary has {count} tokens")),
            id => Ok(id),
        }
    }

    fn scores(&self, model: Model, count: usize) -> Result<&'a [f32], TokenizerError> {
        let key = "tokenizer.ggml.scores";
        let scores = self.typed(key, self.file.get_f32s(key), "an array of 32-bit floats")?;
        match (scores, model) {
            (None, Model::Spm) => fault(format!("{key} is missing")),
            (Some(scores), _) if scores.len() != count => fault(format!("{key} has {} entries for {count} tokens", scores.len())),
            (Some(scores), _) if scores.iter().any(|s| s.is_nan()) => fault(format!("{key} holds NaN")),
            (scores, _) => Ok(scores.unwrap_or_default()),
        }
    }

    fn types(&self, count: usize) -> Result<Vec<TokenType>, TokenizerError> {
        let key = "tokenizer.ggml.token_type";
        let Some(types) = self.typed(key, self.file.get_ints(key), "an array of integers")? else {
            return Ok(vec![TokenType::Normal; count]);
        };
        if types.len() != count {
            return fault(format!("{key} has {} entries for {count} tokens", types.len()));
        }
        let parse = |(id, value): (usize, &i64)| {
            Ok(match value {
                1 => TokenType::Normal,
                2 => TokenType::Unknown,
                3 => TokenType::Control,
                4 => TokenType::UserDefined,
                5 => TokenType::Unused,
                6 => TokenType::Byte,
                other => return fault(format!("{key}: token {id} has the unknown type {other}")),
            })
        };
        types.iter().enumerate().map(parse).collect()
    }
}
