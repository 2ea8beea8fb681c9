//! Text ↔ token ids, from a GGUF file's vocabulary or a `tokenizer.json`: BPE over bytes or characters, SentencePiece's scores and unigram
//! models.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::gguf::GgufFile;

mod bpe;
mod chars;
mod charsmap;
mod hf_pipeline;
mod hugging_face;
mod infill;
mod merge;
mod pieces;
mod pretokenize;
mod regex;
mod scan;
mod shield;
mod space;
mod special;
mod spm;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_json;
mod unigram;
mod vocab;

pub use infill::Infill;
use merge::UNKNOWN;
use pieces::Pieces;
use special::Special;
use vocab::{Form, Model, TokenType, VocabData};

#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(pub String);

/// Texts of tokens that end a turn or a document, whatever the metadata's ids say.
const END_TEXTS: [&str; 16] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

enum Encoder {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    Unigram(Box<unigram::Unigram>),
}

/// How many ids a text may become.
#[derive(Clone, Copy, Debug)]
struct Bound {
    most: usize,
    /// The most bytes that one token stands for.
    longest: usize,
}

/// A model's vocabulary. Immutable: one may serve many threads.
pub struct Tokenizer {
    pieces: Pieces,
    types: Vec<TokenType>,
    special: Special,
    encoder: Encoder,
    form: Option<Form>,
    longest: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    add_bos: bool,
    starts_with_bos: bool,
    add_eos: bool,
    end_ids: Vec<u32>,
    infill: Option<Infill>,
}

impl Tokenizer {
    /// Reads `tokenizer.ggml.*`. An error names the key.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        Self::new(&VocabData::read(file)?)
    }

    /// As [`Tokenizer::from_gguf`]; where the file holds no vocabulary, or none that is supported, that of a `tokenizer.json` beside it.
    pub fn open(file: &GgufFile) -> Result<Self, TokenizerError> {
        let own = Self::from_gguf(file);
        let beside = beside(file.path());
        match own {
            Err(fault) if beside.is_file() => {
                tracing::info!("{fault}: {} is taken instead", beside.display());
                Self::from_json(&beside)
            }
            Err(fault) if file.get("tokenizer.ggml.model").is_none() => {
                Err(TokenizerError(format!("{}; {} would do, but is not there", fault.0, beside.display())))
            }
            own => own,
        }
    }

    /// Reads a Hugging Face `tokenizer.json`, and the `tokenizer_config.json` beside it if there is one. An error names the part that is
    /// not supported.
    pub fn from_json(path: &Path) -> Result<Self, TokenizerError> {
        Self::new(&hugging_face::JsonVocab::open(path)?.data())
    }

    fn new(data: &VocabData) -> Result<Self, TokenizerError> {
        let (pieces, encoder) = match data.model {
            Model::ByteBpe | Model::CharBpe => {
                let pieces = bpe::pieces(data);
                let encoder = Encoder::Bpe(Box::new(bpe::Bpe::new(data, &pieces)?));
                (pieces, encoder)
            }
            Model::Spm => {
                let pieces = spm::pieces(data);
                let encoder = Encoder::Spm(Box::new(spm::Spm::new(data, &pieces)));
                (pieces, encoder)
            }
            Model::Unigram => {
                let pieces = spm::pieces(data);
                let encoder = Encoder::Unigram(Box::new(unigram::Unigram::new(data, &pieces)));
                (pieces, encoder)
            }
        };
        Ok(Self {
            special: Special::new(&pieces, &data.types, &data.greedy),
            form: data.form,
            longest: pieces.longest(),
            pieces,
            types: data.types.clone(),
            encoder,
            bos: data.bos,
            eos: data.eos,
            unknown: data.unknown,
            add_bos: data.add_bos,
            starts_with_bos: data.starts_with_bos,
            add_eos: data.add_eos,
            end_ids: end_ids(data),
            infill: Infill::find(data),
        })
    }

    /// Text → ids, without BOS or EOS. With `parse_special` a control token's text becomes its id, else it stays plain text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 8);
        self.encode_into(text, parse_special, true, self.bound(usize::MAX), &mut out);
        self.settle_unknown(out)
    }

    /// As `encode`, for a text that stands behind another one: nothing is put before it.
    pub fn encode_within(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_into(text, false, false, self.bound(usize::MAX), &mut out);
        self.settle_unknown(out)
    }

    /// As `encode`, with BOS and EOS where the file says that they are added.
    pub fn encode_with_bos_eos(&self, text: &str, parse_special: bool) -> Vec<u32> {
        self.with_bos_eos(self.encode(text, parse_special), self.add_bos)
    }

    /// A text that a model continues → ids, control tokens' texts included. It begins as the model's training texts did: a file of Llama 3
    /// that is silent about BOS gets one, too. None: it has more than `most` tokens, which is told without encoding much more than those.
    pub fn encode_prompt(&self, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        self.encode_into(text, true, true, self.bound(most), &mut out);
        (out.len() <= most).then(|| self.with_bos_eos(self.settle_unknown(out), self.starts_with_bos))
    }

    fn bound(&self, most: usize) -> Bound {
        Bound { most, longest: self.longest }
    }

    fn with_bos_eos(&self, mut ids: Vec<u32>, add_bos: bool) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|_| add_bos) {
            ids.insert(0, bos);
        }
        ids.extend(self.eos.filter(|_| self.add_eos));
        ids
    }

    /// A rendered chat template → ids: control tokens' texts of the template's own become ids, those inside [`Tokenizer::shield`]ed text
    /// stay text; BOS is added as in [`Tokenizer::encode_prompt`], unless the template wrote it. None: it has more than `most` tokens.
    pub fn encode_rendered(&self, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        let (mut at, mut at_start) = (0, true);
        while at < text.len() && out.len() <= most {
            let found = self.special.find(&self.pieces, text, at, |_| true);
            let end = found.as_ref().map_or(text.len(), |f| f.start);
            if at < end {
                self.encode_into(&shield::unmark(&text[at..end]), false, at_start, self.bound(most), &mut out);
            }
            at_start = found.is_some();
            out.extend(found.as_ref().map(|f| f.id));
            at = found.map_or(text.len(), |f| f.end);
        }
        if out.len() > most {
            return None;
        }
        let mut out = self.settle_unknown(out);
        if let Some(bos) = self.bos.filter(|&bos| self.starts_with_bos && out.first() != Some(&bos)) {
            out.insert(0, bos);
        }
        Some(out)
    }

    /// Marks control tokens' texts inside a user's string, so that `encode_rendered` leaves them plain text. What could become one with the
    /// text that follows it (a control token's beginning at the end, whether or not a template trims spaces there) is marked too.
    pub fn shield(&self, text: &str) -> String {
        let is_control = |id: u32| self.types[id as usize] == TokenType::Control;
        let behind_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut places = Vec::new();
        let mut at = 0;
        while let Some(found) = self.special.find(&self.pieces, text, at, is_control) {
            at = behind_first(found.start);
            places.push(at);
        }
        let open = self.special.open_ends(&self.pieces, text, is_control);
        places.extend(open.into_iter().map(behind_first));
        places.sort_unstable();
        places.dedup();
        shield::mark(text, &places)
    }

    /// Takes the marks of [`Tokenizer::shield`] out of a text that nobody will encode.
    pub fn unshield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        shield::unmark(text)
    }

    /// The bytes that a token stands for (empty for control tokens unless `special`). None: no such id.
    pub fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        let hidden = matches!(self.types.get(id as usize)?, TokenType::Control | TokenType::Unknown) && !special;
        self.pieces.get(id).map(|piece| if hidden { &[] } else { piece })
    }

    /// Is it a control token, which no text spells?
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.types.get(id as usize), Some(TokenType::Control | TokenType::Unknown | TokenType::Unused))
    }

    /// A text as its control tokens, and what stands between them.
    pub fn control_pieces<'a>(&self, text: &'a str) -> Vec<Result<u32, &'a str>> {
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let found = self.special.find(&self.pieces, text, at, |id| self.is_control(id));
            let (start, end) = found.as_ref().map_or((text.len(), text.len()), |found| (found.start, found.end));
            if at < start {
                pieces.push(Err(&text[at..start]));
            }
            pieces.extend(found.map(|found| Ok(found.id)));
            at = end;
        }
        pieces
    }

    /// Ids → text; unknown ids give nothing, bytes that are not UTF-8 become U+FFFD. SentencePiece's leading space stays.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| self.token_bytes(id, special)).flatten().copied().collect();
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Every id that ends a generation (EOS, EOT, EOM and the control tokens known to end a turn), ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// A token's own text (`<|im_end|>`), for templates' bos_token and eos_token. None: no such id, or bytes that are not UTF-8.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.pieces.get(id)?).ok()
    }

    /// Bytes held on the heap, about: for budgets and logs.
    pub fn bytes_held(&self) -> usize {
        let encoder = match &self.encoder {
            Encoder::Bpe(bpe) => bpe.bytes_held(),
            Encoder::Spm(spm) => spm.bytes_held(),
            Encoder::Unigram(unigram) => unigram.bytes_held(),
        };
        encoder + self.pieces.bytes_held() + self.types.capacity()
    }

    fn encode_into(&self, text: &str, control: bool, mut at_start: bool, bound: Bound, out: &mut Vec<u32>) {
        let wanted = |id: u32| control || self.types[id as usize] == TokenType::UserDefined;
        let mut cache = Cache::new(bound);
        let mut at = 0;
        while at < text.len() && out.len() <= bound.most {
            let found = self.special.find(&self.pieces, text, at, wanted);
            let end = found.as_ref().map_or(text.len(), |f| f.start);
            if at < end {
                self.encode_plain(&text[at..end], at_start, &mut cache, out);
            }
            at_start = found.is_some();
            out.extend(found.as_ref().map(|f| f.id));
            at = found.map_or(text.len(), |f| f.end);
        }
    }

    fn encode_plain<'a>(&self, text: &'a str, at_start: bool, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        match self.normalised(text, at_start) {
            None => self.encode_words(text, cache, out),
            Some(text) => self.encode_words(&text, &mut Cache::new(cache.bound), out),
        }
    }

    /// None: the text stays as it is.
    fn normalised(&self, text: &str, at_start: bool) -> Option<String> {
        let formed = self.form.map(|form| form.of(text));
        let formed = formed.as_deref().filter(|formed| *formed != text);
        let changed = match &self.encoder {
            Encoder::Bpe(bpe) => bpe.normalised(formed.unwrap_or(text), at_start),
            Encoder::Spm(spm) => spm.normalised(formed.unwrap_or(text), at_start),
            Encoder::Unigram(unigram) => unigram.normalised(formed.unwrap_or(text), at_start),
        };
        changed.or_else(|| formed.map(str::to_owned))
    }

    fn encode_words<'a>(&self, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::Bpe(bpe) => bpe.encode(&self.pieces, text, cache, out),
            Encoder::Spm(spm) => spm.encode(&self.pieces, text, cache, out),
            Encoder::Unigram(unigram) => unigram.encode(&self.pieces, text, cache, out),
        }
    }

    /// What the vocabulary has no token for becomes its unknown token, or nothing where it has none.
    fn settle_unknown(&self, mut ids: Vec<u32>) -> Vec<u32> {
        match self.unknown {
            Some(unknown) => ids.iter_mut().filter(|id| **id == UNKNOWN).for_each(|id| *id = unknown),
            None => ids.retain(|&id| id != UNKNOWN),
        }
        ids
    }
}

fn end_ids(data: &VocabData) -> Vec<u32> {
    let mut ids: Vec<u32> = data.eos.into_iter().chain(data.other_ends.iter().copied()).collect();
    let special = (0u32..).zip(data.tokens.iter().zip(&data.types));
    let special = special.filter(|(_, (_, kind))| matches!(kind, TokenType::Control | TokenType::UserDefined));
    // a user-defined `</s>` is a tag of HTML
    let special = special.filter(|(_, (text, kind))| **kind == TokenType::Control || *text != "</s>");
    let special: Vec<(u32, &str)> = special.map(|(id, (text, _))| (id, text.as_str())).collect();
    // a vocabulary with `<|return|>` ends its messages with `<|end|>` and its turns otherwise
    let harmony = special.iter().any(|(_, text)| *text == "<|return|>");
    let ends = special.iter().filter(|(_, text)| END_TEXTS.contains(text) && !(harmony && *text == "<|end|>"));
    ids.extend(ends.map(|(id, _)| id));
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Where a model's `tokenizer.json` would be.
fn beside(model: &Path) -> PathBuf {
    model.with_file_name("tokenizer.json")
}

impl Form {
    fn of(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Nfc => icu_normalizer::ComposingNormalizerBorrowed::new_nfc().normalize(text),
            Self::Nfkc => icu_normalizer::ComposingNormalizerBorrowed::new_nfkc().normalize(text),
        }
    }
}

/// Words of the text at hand, and where in the output their ids stand.
struct Cache<'a> {
    words: FxHashMap<&'a str, (u32, u32)>,
    bound: Bound,
}

impl<'a> Cache<'a> {
    const MAX_WORDS: usize = 1 << 16;
    const MAX_LEN: usize = 64;

    fn new(bound: Bound) -> Self {
        Self { words: FxHashMap::default(), bound }
    }

    /// Once the output is longer than its bound, or would be, it is left a little longer than that and nothing more is encoded.
    fn or_encode(&mut self, word: &'a str, out: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        let Bound { most, longest } = self.bound;
        if out.len() > most {
            return;
        }
        if word.len() > Self::MAX_LEN {
            return if out.len() + word.len() / longest > most { out.resize(most + 1, UNKNOWN) } else { encode(out) };
        }
        if let Some(&(start, end)) = self.words.get(word) {
            return out.extend_from_within(start as usize..end as usize);
        }
        let start = out.len() as u32;
        encode(out);
        if self.words.len() < Self::MAX_WORDS {
            self.words.insert(word, (start, out.len() as u32));
        }
    }
}
