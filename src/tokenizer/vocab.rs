//! [`VocabData`]: a checked vocabulary, and its reader for GGUF files.

use std::borrow::Cow;

use gguf::{GgufFile, Value};

use crate::bert_text::{BertText, WordRules, is_cased};
use crate::charsmap::CharsMap;
use crate::error::{TokenizerError, fault};
use crate::pretokenize::{habits, over_chars, patterns};

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
    /// `gpt2`: BPE over bytes, with merges
    ByteBpe,
    /// `gemma4`: BPE over characters, with merges and `▁` for spaces
    CharBpe,
    /// `llama`: SentencePiece's BPE by scores
    Spm,
    /// `t5`: SentencePiece's unigram model
    Unigram,
    /// `bert`: WordPiece
    WordPiece,
}

/// A checked vocabulary: `merges` and `scores` fit the model, `types` has one entry per token, and every id is in the vocabulary.
#[derive(Clone, Debug)]
pub(super) struct VocabData<'a> {
    pub(super) model: Model,
    /// Whether the vocabulary comes from a `tokenizer.json`.
    pub(super) from_json: bool,
    /// The patterns of the pre-tokenizer.
    pub(super) patterns: Vec<&'a str>,
    /// Whether a word that is a token is encoded as that token, regardless of the merges.
    pub(super) ignore_merges: bool,
    pub(super) tokens: &'a [String],
    pub(super) types: Vec<TokenType>,
    pub(super) merges: Vec<(&'a str, &'a str)>,
    pub(super) scores: Cow<'a, [f32]>,
    /// The text rules of [`Model::WordPiece`].
    pub(super) words: WordRules<'a>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// EOT and EOM.
    pub(super) other_ends: Vec<u32>,
    /// The tokens before the prefix, the suffix and the middle of a text to fill in.
    pub(super) infill: [Option<u32>; 3],
    pub(super) add_bos: bool,
    /// As `add_bos`, or the default of the pre-tokenizer if the file does not say.
    pub(super) starts_with_bos: bool,
    pub(super) add_eos: bool,
    /// The tokens between the two texts of a pair.
    pub(super) between: Vec<u32>,
    pub(super) add_space_prefix: bool,
    /// Whether white space is dropped, as by the pre-tokenizer `whitespace`.
    pub(super) drops_spaces: bool,
    /// Whether BPE converts capital letters to lower case.
    pub(super) lowercase: bool,
    /// Whether several spaces in a row become one.
    pub(super) squeeze_spaces: bool,
    /// SentencePiece's compiled normalisation rules. Empty if there are none.
    pub(super) charsmap: Cow<'a, [u8]>,
    /// The Unicode normalisation form that texts are first converted to.
    pub(super) form: Option<Form>,
    /// The ids of special tokens that include the white space after them, ascending.
    pub(super) greedy: Vec<u32>,
}

/// A Unicode normalisation form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Nfc,
    Nfkc,
}

impl Form {
    pub(super) fn normalise(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Nfc => icu_normalizer::ComposingNormalizerBorrowed::new_nfc().normalize(text),
            Self::Nfkc => icu_normalizer::ComposingNormalizerBorrowed::new_nfkc().normalize(text),
        }
    }
}

impl<'a> VocabData<'a> {
    pub(super) fn read(file: &'a GgufFile) -> Result<Self, TokenizerError> {
        let reader = Reader { file };
        let pre = reader.text("tokenizer.ggml.pre")?;
        let (model, pre) = match reader.text("tokenizer.ggml.model")? {
            Some("gpt2") if pre.is_some_and(over_chars) => (Model::CharBpe, pre.unwrap_or_default()),
            Some("gpt2") => (Model::ByteBpe, pre.unwrap_or("default")),
            Some("whitespace") => (Model::CharBpe, "whitespace"),
            Some("gemma4") => (Model::CharBpe, "gemma4"),
            Some("llama") => (Model::Spm, ""),
            Some("t5") => (Model::Unigram, ""),
            Some("bert") => (Model::WordPiece, ""),
            Some(other) => return fault(format!("tokenizer.ggml.model: `{other}` is not supported")),
            None => return fault("tokenizer.ggml.model is missing".into()),
        };
        let scored = matches!(model, Model::Spm | Model::Unigram);
        let patterns = match patterns(pre) {
            _ if scored || model == Model::WordPiece => &[],
            Some(patterns) => patterns,
            None => return fault(format!("tokenizer.ggml.pre: `{pre}` is not supported")),
        };
        let tokens = reader.strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        if tokens.is_empty() {
            return fault("tokenizer.ggml.tokens is missing or empty".into());
        }
        let count = tokens.len();
        let mut types = reader.types(count)?;
        let id = |name: &str| reader.id(&format!("tokenizer.ggml.{name}_token_id"), count);
        let other_ends = ["eot", "eom"].into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
        let mut infill = [None; 3];
        for (slot, names) in infill.iter_mut().zip([["fim_pre", "prefix"], ["fim_suf", "suffix"], ["fim_mid", "middle"]]) {
            *slot = id(names[0])?.or(id(names[1])?);
        }
        let Ends { bos, eos, separator, unknown } = reader.ends(model, tokens)?;
        if model == Model::WordPiece {
            let others = [id("padding")?, id("mask")?, id("cls")?];
            mark_special(&mut types, others.into_iter().chain([bos, eos, separator, unknown]).flatten());
        }
        let flag = |name: &str, default: bool| reader.flag(&format!("tokenizer.ggml.{name}"), default);
        let between = reader.between(model, habits(pre).separates, eos, separator)?;
        let charsmap = reader.charsmap()?;
        Ok(Self {
            model,
            from_json: false,
            patterns: patterns.to_vec(),
            ignore_merges: habits(pre).ignore_merges,
            tokens,
            merges: reader.merges(matches!(model, Model::ByteBpe | Model::CharBpe))?,
            scores: reader.scores(scored, count)?,
            words: reader.words(model, tokens)?,
            bos,
            eos,
            unknown,
            other_ends: other_ends.into_iter().flatten().collect(),
            infill,
            add_bos: flag("add_bos_token", matches!(model, Model::Spm | Model::WordPiece))?,
            starts_with_bos: flag("add_bos_token", matches!(model, Model::Spm | Model::WordPiece) || habits(pre).adds_bos)?,
            add_eos: flag("add_eos_token", matches!(model, Model::Unigram | Model::WordPiece))?,
            between,
            add_space_prefix: flag("add_space_prefix", model == Model::Spm)?,
            drops_spaces: pre == "whitespace",
            lowercase: flag("normalizer.lowercase", false)? && pre == "whitespace",
            squeeze_spaces: flag("remove_extra_whitespaces", false)? && model == Model::Unigram,
            charsmap: if model == Model::Unigram { charsmap } else { Cow::default() },
            form: None,
            greedy: greedy(file, tokens, &types),
            types,
        })
    }

    /// The name of a part of the vocabulary in error messages. Depends on the format of the file.
    pub(super) fn key(&self, gguf: &str, json: &str) -> String {
        if self.from_json { json.to_owned() } else { format!("tokenizer.ggml.{gguf}") }
    }
}

/// The ids of special tokens that include the white space after them: all of Phi-3's special tokens except three, because its GGUF files do
/// not list them. Empty for other models.
fn greedy(file: &GgufFile, tokens: &[String], types: &[TokenType]) -> Vec<u32> {
    let name = file.get_str("general.name").unwrap_or_default().to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return Vec::new();
    }
    let is_special = |kind: &TokenType| matches!(kind, TokenType::Control | TokenType::UserDefined);
    let special = (0u32..).zip(tokens.iter().zip(types)).filter(|(_, (_, kind))| is_special(kind));
    special.filter(|(_, (text, _))| !["<unk>", "<s>", "<|endoftext|>"].contains(&text.as_str())).map(|(id, _)| id).collect()
}

/// Turns ordinary tokens that the metadata names into control tokens, for files that list no types.
fn mark_special(types: &mut [TokenType], ids: impl Iterator<Item = u32>) {
    for id in ids {
        let kind = &mut types[id as usize];
        *kind = if *kind == TokenType::Normal { TokenType::Control } else { *kind };
    }
}

/// Special tokens at the ends of texts and between them.
struct Ends {
    bos: Option<u32>,
    eos: Option<u32>,
    separator: Option<u32>,
    unknown: Option<u32>,
}

struct Reader<'a> {
    file: &'a GgufFile,
}

impl<'a> Reader<'a> {
    /// Fails if the key exists but its value has another type, so that no default replaces it.
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

    fn charsmap(&self) -> Result<Cow<'a, [u8]>, TokenizerError> {
        let key = "tokenizer.ggml.precompiled_charsmap";
        let Some(value) = self.file.get(key) else { return Ok(Cow::default()) };
        match value.bytes() {
            Ok(bytes) if CharsMap::is_whole(&bytes) => Ok(bytes),
            Ok(_) => fault(format!("{key} is not a compiled table of normalisation rules")),
            Err(found) => fault(format!("{key} is {found}, expected an array of bytes")),
        }
    }

    /// The tokens that begin and end a text, separate texts, and represent unknown words. BERT's files use other names for them, and older
    /// files do not name all of them.
    fn ends(&self, model: Model, tokens: &[String]) -> Result<Ends, TokenizerError> {
        let id = |name: &str| self.id(&format!("tokenizer.ggml.{name}_token_id"), tokens.len());
        let (bos, eos, separator, unknown) = (id("bos")?, id("eos")?, id("seperator")?, id("unknown")?);
        if model != Model::WordPiece {
            return Ok(Ends { bos, eos, separator, unknown });
        }
        let named = |texts: [&str; 2]| tokens.iter().position(|token| texts.contains(&token.as_str())).map(|id| id as u32);
        let bos = bos.or(id("cls")?).or_else(|| named(["[CLS]", "<s>"]));
        let separator = separator.or(eos).or_else(|| named(["[SEP]", "</s>"]));
        Ok(Ends { bos, eos: separator, separator, unknown: unknown.or_else(|| named(["[UNK]", "<unk>"])) })
    }

    /// The tokens between the two texts of a pair. If a file does not say whether an end token precedes the separator, there is one token.
    fn between(&self, model: Model, separates: bool, eos: Option<u32>, separator: Option<u32>) -> Result<Vec<u32>, TokenizerError> {
        let ends_first = self.flag("tokenizer.ggml.add_eos_token", model == Model::Unigram)?;
        let separates = self.flag("tokenizer.ggml.add_sep_token", model == Model::WordPiece || separates)?;
        Ok([eos.filter(|_| ends_first), separator.or(eos).filter(|_| separates)].into_iter().flatten().collect())
    }

    /// The text rules of WordPiece. If a file does not say whether case counts, the vocabulary is uncased unless its words have capital
    /// letters.
    fn words(&self, model: Model, tokens: &[String]) -> Result<WordRules<'static>, TokenizerError> {
        let flag = |name: &str, default: bool| self.flag(&format!("tokenizer.ggml.normalizer.{name}"), default);
        let lowercase = flag("lowercase", !(model == Model::WordPiece && is_cased(tokens)))?;
        let text = BertText { lowercase, strip_accents: flag("strip_accents", lowercase)?, ..BertText::cased(false) };
        Ok(WordRules { text, continuing: None, longest_word: WordRules::LONGEST_WORD })
    }

    fn merges(&self, merged: bool) -> Result<Vec<(&'a str, &'a str)>, TokenizerError> {
        let key = "tokenizer.ggml.merges";
        let lines = self.strings(key)?.unwrap_or_default();
        if !merged {
            return Ok(Vec::new());
        }
        if lines.is_empty() {
            return fault(format!("{key} is missing or empty"));
        }
        let pair = |(rank, line): (usize, &'a String)| match line.split_once(' ') {
            Some(pair) => Ok(pair),
            None => fault(format!("{key}: entry {rank} (`{}`) is not a pair", line.escape_debug())),
        };
        lines.iter().enumerate().map(pair).collect()
    }

    fn scores(&self, scored: bool, count: usize) -> Result<Cow<'a, [f32]>, TokenizerError> {
        let key = "tokenizer.ggml.scores";
        let floats =
            |value: &'a Value| value.floats().or_else(|found| fault(format!("{key} is {found}, expected an array of 32-bit floats")));
        let scores = self.file.get(key).map(floats).transpose()?;
        match scores {
            None if scored => fault(format!("{key} is missing")),
            Some(scores) if scores.len() != count => fault(format!("{key} has {} entries for {count} tokens", scores.len())),
            Some(scores) if scores.iter().any(|s| s.is_nan()) => fault(format!("{key} holds NaN")),
            scores => Ok(scores.unwrap_or_default()),
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
