//! Reads a vocabulary from Hugging Face's `tokenizer.json`, and the BOS and EOS tokens from `tokenizer_config.json` in the same directory.

use std::borrow::Cow;
use std::path::Path;

use outside::read_regular;
use serde::Deserialize;
use serde_json::Value;

use crate::bert_text::{BertText, WordRules};
use crate::error::{TokenizerError, fault};
use crate::hf_pipeline::Pipeline;
use crate::spm;
use crate::vocab::{Model, TokenType, VocabData};

/// The most bytes of a file. The largest known one has 33 MB.
const MAX_BYTES: u64 = 128 << 20;
const MAX_TOKENS: usize = 4 << 20;

#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: JsonModel,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct JsonModel {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    vocab: JsonTokens,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonTokens {
    Ids(std::collections::HashMap<String, u32>),
    Scores(Vec<(String, f32)>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Self::Line(line) => line.split_once(' '),
            Self::Pair(left, right) => Some((left, right)),
        }
    }
}

/// A `tokenizer.json`, read and checked.
pub(super) struct JsonVocab {
    model: Model,
    pipeline: Pipeline,
    tokens: Vec<String>,
    types: Vec<TokenType>,
    scores: Vec<f32>,
    merges: Vec<Merge>,
    ignore_merges: bool,
    greedy: Vec<u32>,
    /// The prefix of tokens that continue a word.
    continuing: String,
    longest_word: usize,
    between: Vec<u32>,
    unknown: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Tokens that include the white space before them.
    pub(super) left: Vec<String>,
}

impl JsonVocab {
    pub(super) fn open(path: &Path) -> Result<Self, TokenizerError> {
        let shown = path.display();
        let vocab = Self::open_any(path)?;
        match vocab.left.first() {
            Some(token) => fault(format!(
                "{shown}: added_tokens: `{}` includes the white space before it (lstrip), which is not supported",
                token.escape_debug()
            )),
            None => Ok(vocab),
        }
    }

    /// Opens a file like `open`, but accepts tokens that include the white space before them.
    pub(super) fn open_any(path: &Path) -> Result<Self, TokenizerError> {
        let shown = path.display();
        let json: Json = read(path)?.ok_or_else(|| TokenizerError(format!("{shown} does not exist")))?;
        let config: Value = read(&path.with_file_name("tokenizer_config.json"))?.unwrap_or_default();
        Self::new(json, &config).map_err(|TokenizerError(text)| TokenizerError(format!("{shown}: {text}")))
    }

    fn new(json: Json, config: &Value) -> Result<Self, TokenizerError> {
        let parts = [&json.normalizer, &json.pre_tokenizer, &json.post_processor, &json.decoder];
        let pipeline = Pipeline::read(parts).map_err(TokenizerError)?;
        let model = match (json.model.kind.as_deref(), &json.model.vocab) {
            (Some("WordPiece"), JsonTokens::Ids(_)) => Model::WordPiece,
            (Some("BPE") | None, JsonTokens::Ids(_)) if pipeline.byte_level => Model::ByteBpe,
            (Some("BPE") | None, JsonTokens::Ids(_)) => Model::CharBpe,
            (Some("Unigram") | None, JsonTokens::Scores(_)) => Model::Unigram,
            (kind, _) => return fault(format!("model.type: `{}` is not supported", kind.unwrap_or("(none)"))),
        };
        let is_word_piece = model == Model::WordPiece;
        let prefix = json.model.continuing_subword_prefix.unwrap_or_default();
        check_words(&pipeline, is_word_piece, &prefix)?;
        if json.model.end_of_word_suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return fault("model.end_of_word_suffix is not supported".into());
        }
        let (mut tokens, scores) = listed(json.model.vocab)?;
        let mut types = vec![TokenType::Normal; tokens.len()];
        for (kind, token) in types.iter_mut().zip(&tokens) {
            match token.as_str() {
                "" => *kind = TokenType::Unused,
                token if json.model.byte_fallback && spm::byte_of(token).is_some() => *kind = TokenType::Byte,
                _ => {}
            }
        }
        let by_text = |text: &str, tokens: &[String]| tokens.iter().position(|token| token == text).map(|id| id as u32);
        let unknown = json.model.unk_id.or_else(|| by_text(json.model.unk_token.as_deref()?, &tokens));
        let greedy = add(&json.added_tokens, &mut tokens, &mut types)?;
        if let Some(id) = unknown.filter(|&id| id as usize >= tokens.len()) {
            return fault(format!("model.unk_id is {id}, but the vocabulary has {} tokens", tokens.len()));
        }
        let left = json.added_tokens.iter().filter(|token| token.lstrip).map(|token| token.content.clone()).collect();
        let is_in_texts = |kind: &TokenType| is_word_piece && *kind == TokenType::Control;
        if let Some(kind) = unknown.and_then(|id| types.get_mut(id as usize)).filter(|kind| !is_in_texts(kind)) {
            *kind = TokenType::Unknown;
        }
        let named = |key: &str| {
            let value = &config[key];
            by_text(value.as_str().or_else(|| value["content"].as_str())?, &tokens)
        };
        let bos = pipeline.start.as_deref().and_then(|text| by_text(text, &tokens)).or_else(|| named("bos_token"));
        let eos = named("eos_token").or_else(|| by_text(pipeline.end.as_deref()?, &tokens));
        if let Some(rank) = json.model.merges.iter().position(|merge| merge.pair().is_none()) {
            return fault(format!("model.merges: entry {rank} is not a pair"));
        }
        let between = pipeline.between.iter().filter_map(|text| by_text(text, &tokens)).collect();
        let longest_word = json.model.max_input_chars_per_word.unwrap_or(WordRules::LONGEST_WORD);
        let (merges, ignore_merges) = (json.model.merges, json.model.ignore_merges);
        let scores = if model == Model::Unigram { padded(scores, tokens.len()) } else { Vec::new() };
        Ok(Self {
            model,
            pipeline,
            tokens,
            types,
            scores,
            merges,
            ignore_merges,
            greedy,
            continuing: prefix,
            longest_word,
            between,
            unknown,
            bos,
            eos,
            left,
        })
    }

    pub(super) fn data(&self) -> VocabData<'_> {
        VocabData {
            model: self.model,
            from_json: true,
            patterns: self.pipeline.patterns.iter().map(String::as_str).collect(),
            ignore_merges: self.ignore_merges,
            tokens: &self.tokens,
            types: self.types.clone(),
            merges: self.merges.iter().filter_map(Merge::pair).collect(),
            scores: Cow::Borrowed(&self.scores),
            words: WordRules {
                text: self.pipeline.bert_text.unwrap_or(BertText::NONE),
                continuing: Some(&self.continuing),
                longest_word: self.longest_word,
            },
            between: self.between.clone(),
            bos: self.bos,
            eos: self.eos,
            unknown: self.unknown,
            infill: [None; 3],
            other_ends: Vec::new(),
            add_bos: self.pipeline.start.is_some(),
            starts_with_bos: self.pipeline.start.is_some(),
            add_eos: self.pipeline.end.is_some(),
            add_space_prefix: self.pipeline.add_space_prefix,
            drops_spaces: false,
            lowercase: false,
            squeeze_spaces: self.pipeline.squeeze_spaces,
            charsmap: Cow::Borrowed(&self.pipeline.charsmap),
            form: self.pipeline.form,
            greedy: self.greedy.clone(),
        }
    }
}

/// Checks that WordPiece's parts only occur with WordPiece, and that WordPiece has no other pipeline.
fn check_words(pipeline: &Pipeline, is_word_piece: bool, prefix: &str) -> Result<(), TokenizerError> {
    let parts = [
        ("model.continuing_subword_prefix", !prefix.is_empty()),
        ("normalizer: `BertNormalizer`", pipeline.bert_text.is_some()),
        ("pre_tokenizer: `BertPreTokenizer`", pipeline.bert_words),
    ];
    match parts.into_iter().find(|(_, is_there)| *is_there && !is_word_piece) {
        Some((part, _)) => fault(format!("{part} is supported for WordPiece only")),
        None if is_word_piece && (!pipeline.bert_words || !pipeline.patterns.is_empty() || prefix.is_empty()) => {
            fault("model.type: `WordPiece` is supported with `BertPreTokenizer` and a prefix of tokens that continue a word".into())
        }
        None => Ok(()),
    }
}

/// Parses a JSON file. None if there is no such file.
fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let shown = path.display();
    let text = match read_regular(path, MAX_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.or_else(|error| fault(format!("{shown}: {error}")))?,
    };
    serde_json::from_slice(&text).map(Some).or_else(|error| fault(format!("{shown}: {error}")))
}

/// The tokens by id, and their scores if the vocabulary has any. Ids that the vocabulary leaves out get empty tokens.
fn listed(vocab: JsonTokens) -> Result<(Vec<String>, Vec<f32>), TokenizerError> {
    match vocab {
        JsonTokens::Scores(pairs) if pairs.iter().any(|(_, score)| score.is_nan()) => fault("model.vocab holds NaN".into()),
        JsonTokens::Scores(pairs) => Ok(pairs.into_iter().unzip()),
        JsonTokens::Ids(ids) => {
            let mut tokens = Vec::new();
            for (token, id) in ids {
                set_token(&mut tokens, id, token)?;
            }
            Ok((tokens, Vec::new()))
        }
    }
}

fn set_token(tokens: &mut Vec<String>, id: u32, token: String) -> Result<(), TokenizerError> {
    let index = id as usize;
    if index >= MAX_TOKENS {
        return fault(format!("the id {id} of `{}` is too large, expected an id below {MAX_TOKENS}", token.escape_debug()));
    }
    if index >= tokens.len() {
        tokens.resize(index + 1, String::new());
    }
    tokens[index] = token;
    Ok(())
}

/// Adds the `added_tokens`. Returns the ids of tokens that include the white space after them.
fn add(added: &[Added], tokens: &mut Vec<String>, types: &mut Vec<TokenType>) -> Result<Vec<u32>, TokenizerError> {
    let mut greedy = Vec::new();
    for token in added {
        set_token(tokens, token.id, token.content.clone())?;
        types.resize(tokens.len(), TokenType::Unused);
        types[token.id as usize] = if token.special { TokenType::Control } else { TokenType::UserDefined };
        greedy.extend(token.rstrip.then_some(token.id));
    }
    Ok(greedy)
}

fn padded(mut scores: Vec<f32>, count: usize) -> Vec<f32> {
    scores.resize(count, 0.0);
    scores
}
