//! [`Tokenizer`]: a vocabulary and its encoder.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use gguf::GgufFile;

use crate::cache::{Bound, Cache};
use crate::ends::end_ids;
use crate::error::TokenizerError;
use crate::hugging_face::JsonVocab;
use crate::infill::{Gap, Infill};
use crate::merge::UNKNOWN;
use crate::pieces::Pieces;
use crate::special::Special;
use crate::vocab::{Form, Model, TokenType, VocabData};
use crate::{bpe, shield, spm, unigram, wordpiece};

enum Encoder {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    Unigram(Box<unigram::Unigram>),
    WordPiece(Box<wordpiece::WordPiece>),
}

/// A model's vocabulary. Immutable, so that many threads may share one.
pub struct Tokenizer {
    pieces: Pieces,
    pub(crate) types: Vec<TokenType>,
    special: Special,
    encoder: Encoder,
    form: Option<Form>,
    longest: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    pub(crate) add_bos: bool,
    pub(crate) starts_with_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) between: Vec<u32>,
    end_ids: Vec<u32>,
    infill: Option<Infill>,
}

impl Tokenizer {
    /// Reads the vocabulary from the keys `tokenizer.ggml.*` of a GGUF file.
    ///
    /// # Errors
    /// If a key is missing, malformed or not supported. The error names the key.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        Self::new(&VocabData::read(file)?)
    }

    /// Reads the vocabulary like [`Tokenizer::from_gguf`]. If the file has no vocabulary, or one that is not supported, reads the
    /// `tokenizer.json` in the same directory.
    pub fn open(file: &GgufFile) -> Result<Self, TokenizerError> {
        let own = Self::from_gguf(file);
        let beside = beside(file.path());
        match own {
            Err(fault) if beside.exists() => {
                tracing::info!("{fault}: using {} instead", beside.display());
                Self::from_json(&beside)
            }
            Err(fault) if file.get("tokenizer.ggml.model").is_none() => {
                Err(TokenizerError(format!("{}, and there is no {}", fault.0, beside.display())))
            }
            own => own,
        }
    }

    /// Reads a Hugging Face `tokenizer.json` and, if it exists, the `tokenizer_config.json` in the same directory.
    ///
    /// # Errors
    /// If a part of the file is malformed or not supported. The error names the part.
    pub fn from_json(path: &Path) -> Result<Self, TokenizerError> {
        Self::new(&JsonVocab::open(path)?.data())
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
            Model::WordPiece => (wordpiece::pieces(data), Encoder::WordPiece(Box::new(wordpiece::WordPiece::new(data)))),
        };
        Ok(Self {
            special: Special::new(&pieces, &data.types, &data.greedy),
            form: data.form,
            // A word of any length may become one unknown token.
            longest: if data.model == Model::WordPiece { usize::MAX } else { pieces.longest() },
            pieces,
            types: data.types.clone(),
            encoder,
            bos: data.bos,
            eos: data.eos,
            unknown: data.unknown.filter(|&id| stands_for_unknown(data, id)),
            add_bos: data.add_bos,
            starts_with_bos: data.starts_with_bos,
            add_eos: data.add_eos,
            between: data.between.clone(),
            end_ids: end_ids(data),
            infill: Infill::find(data),
        })
    }

    /// Encodes a text without adding BOS or EOS. With `parse_special`, the text of a control token becomes its id. Otherwise it is encoded
    /// like any other text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 8);
        self.encode_into(text, parse_special, true, self.bound(usize::MAX), &mut out);
        self.replace_unknown(out)
    }

    /// Encodes a text alone. Texts of control tokens stay text. None if the result has more than `most` tokens.
    pub(crate) fn encode_text(&self, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        self.encode_into(text, false, true, self.bound(most), &mut out);
        (out.len() <= most).then(|| self.replace_unknown(out))
    }

    /// Encodes a text that follows another text, so that no space is put before it. Control tokens are not parsed.
    pub fn encode_within(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_into(text, false, false, self.bound(usize::MAX), &mut out);
        self.replace_unknown(out)
    }

    /// Encodes a text like `encode`, and adds BOS and EOS if the file says so.
    pub fn encode_with_bos_eos(&self, text: &str, parse_special: bool) -> Vec<u32> {
        self.with_bos_eos(self.encode(text, parse_special), self.add_bos)
    }

    /// Encodes a text for the model to continue. Texts of control tokens become their ids. BOS is added if the model was trained with one,
    /// even if the file does not say so (Llama 3).
    ///
    /// None if the text has more than `most` tokens. Encoding stops soon after that number.
    pub fn encode_prompt(&self, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        self.encode_into(text, true, true, self.bound(most), &mut out);
        (out.len() <= most).then(|| self.with_bos_eos(self.replace_unknown(out), self.starts_with_bos))
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

    /// Encodes the output of a chat template. The template's own control tokens become ids. Control tokens inside text that passed
    /// [`Tokenizer::shield`] stay text. BOS is added as in [`Tokenizer::encode_prompt`], unless the template has written one.
    ///
    /// None if the text has more than `most` tokens.
    pub fn encode_rendered(&self, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut out = self.encode_rendered_part(text, most)?;
        if let Some(bos) = self.bos.filter(|&bos| self.starts_with_bos && out.first() != Some(&bos)) {
            out.insert(0, bos);
        }
        Some(out)
    }

    /// Like [`Tokenizer::encode_rendered`], for a part of a prompt: BOS is not added.
    pub fn encode_rendered_part(&self, text: &str, most: usize) -> Option<Vec<u32>> {
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
        Some(self.replace_unknown(out))
    }

    /// Marks the texts of control tokens inside a user's text, so that `encode_rendered` keeps them as text. Also marks the start of such a
    /// text at the end of `text`, with or without trailing white space, because the template's next characters could complete it.
    pub fn shield(&self, text: &str) -> String {
        let is_control = |id: u32| self.types[id as usize] == TokenType::Control;
        let after_first_char = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut offsets = Vec::new();
        let mut at = 0;
        while let Some(found) = self.special.find(&self.pieces, text, at, is_control) {
            at = after_first_char(found.start);
            offsets.push(at);
        }
        let open = self.special.open_ends(&self.pieces, text, is_control);
        offsets.extend(open.into_iter().map(after_first_char));
        offsets.sort_unstable();
        offsets.dedup();
        shield::mark(text, &offsets)
    }

    /// Whether prompts begin with BOS. Some vocabularies use BOS to begin every turn, and prompts have no other BOS.
    pub fn starts_with_bos(&self) -> bool {
        self.starts_with_bos
    }

    /// Removes the marks of [`Tokenizer::shield`] from a text that will not be encoded.
    pub fn unshield<'a>(&self, text: &'a str) -> Cow<'a, str> {
        shield::unmark(text)
    }

    /// The bytes of a token. Empty for control tokens unless `special` is set. None if there is no such id.
    pub fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        let hidden = matches!(self.types.get(id as usize)?, TokenType::Control | TokenType::Unknown) && !special;
        self.pieces.get(id).map(|piece| if hidden { &[] } else { piece })
    }

    /// Whether the token is a control, unknown or unused token, which no text contains.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.types.get(id as usize), Some(TokenType::Control | TokenType::Unknown | TokenType::Unused))
    }

    /// Splits a text into its control tokens (`Ok`) and the texts between them (`Err`).
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

    /// Decodes ids to text. Ids outside the vocabulary are skipped, and bytes that are not UTF-8 become U+FFFD. The space that
    /// SentencePiece puts before a text is kept.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let known = ids.iter().filter_map(|&id| Some((id, self.token_bytes(id, special)?)));
        let bytes = match &self.encoder {
            Encoder::WordPiece(_) => wordpiece::joined(known.map(|(id, bytes)| (self.types[id as usize] != TokenType::Normal, bytes))),
            _ => known.flat_map(|(_, bytes)| bytes).copied().collect(),
        };
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

    /// Every id that ends a generation (EOS, EOT, EOM and the control tokens known to end a turn), in ascending order.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// The text of a token, including control tokens (`<|im_end|>`). None if there is no such id or its bytes are not UTF-8.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.pieces.get(id)?).ok()
    }

    /// The approximate memory on the heap, in bytes.
    pub fn bytes_held(&self) -> usize {
        let encoder = match &self.encoder {
            Encoder::Bpe(bpe) => bpe.bytes_held(),
            Encoder::Spm(spm) => spm.bytes_held(),
            Encoder::Unigram(unigram) => unigram.bytes_held(),
            Encoder::WordPiece(words) => words.bytes_held(),
        };
        encoder + self.pieces.bytes_held() + self.types.capacity()
    }

    /// The class of `transformers` that reads vocabularies of this kind.
    pub fn class(&self) -> &'static str {
        match self.encoder {
            Encoder::Bpe(_) => "GPT2Tokenizer",
            Encoder::Spm(_) => "LlamaTokenizer",
            Encoder::Unigram(_) => "T5Tokenizer",
            Encoder::WordPiece(_) => "BertTokenizer",
        }
    }

    /// The tokens for filling in the middle of a text. None if the vocabulary has none.
    pub fn infill(&self) -> Option<&Infill> {
        self.infill.as_ref()
    }

    /// The prompt for the text in a gap. Texts of control tokens become their ids, as in any prompt. With other files, the prompt has at
    /// most `most` tokens: the first files are left out if there is no room for them.
    pub fn encode_infill(&self, infill: &Infill, gap: Gap<'_>, most: usize) -> Vec<u32> {
        let mut ids = vec![infill.prefix];
        ids.extend(self.encode(gap.prefix, true));
        ids.push(infill.suffix);
        ids.extend(self.encode(gap.suffix, true));
        ids.push(infill.middle);
        ids.extend(self.encode(gap.begun, true));
        let bos = self.bos.filter(|_| self.starts_with_bos);
        bos.into_iter().chain(self.files_before(infill, gap.files, most.saturating_sub(ids.len() + 1))).chain(ids).collect()
    }

    /// The last of some files that have at most `most` tokens together, in their order.
    fn files_before(&self, infill: &Infill, files: &[(String, String)], most: usize) -> Vec<u32> {
        let marked = |mark: Option<u32>, text: &str| mark.into_iter().chain(self.encode(text, true)).collect::<Vec<u32>>();
        let (repository, file) = infill.files.map_or((None, None), |[repository, file]| (Some(repository), Some(file)));
        let [head, own] = match infill.files {
            Some(_) => [marked(repository, "repository\n"), marked(file, "file\n")],
            None => [Vec::new(), Vec::new()],
        };
        let mut room = most.saturating_sub(head.len() + own.len());
        let mut kept = Vec::new();
        for (name, text) in files.iter().rev() {
            let ids = marked(file, &format!("{name}\n{text}\n"));
            let Some(rest) = room.checked_sub(ids.len()) else { break };
            room = rest;
            kept.push(ids);
        }
        if kept.is_empty() {
            return Vec::new();
        }
        [head].into_iter().chain(kept.into_iter().rev()).chain([own]).flatten().collect()
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

    /// The text in the form that the encoder expects. None if it does not change.
    fn normalised(&self, text: &str, at_start: bool) -> Option<String> {
        let formed = self.form.map(|form| form.normalise(text));
        let formed = formed.as_deref().filter(|formed| *formed != text);
        let changed = match &self.encoder {
            Encoder::Bpe(bpe) => bpe.normalised(formed.unwrap_or(text), at_start),
            Encoder::Spm(spm) => spm.normalised(formed.unwrap_or(text), at_start),
            Encoder::Unigram(unigram) => unigram.normalised(formed.unwrap_or(text), at_start),
            Encoder::WordPiece(words) => Some(words.normalised(text)),
        };
        changed.or_else(|| formed.map(str::to_owned))
    }

    fn encode_words<'a>(&self, text: &'a str, cache: &mut Cache<'a>, out: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::Bpe(bpe) => bpe.encode(&self.pieces, text, cache, out),
            Encoder::Spm(spm) => spm.encode(&self.pieces, text, cache, out),
            Encoder::Unigram(unigram) => unigram.encode(&self.pieces, text, cache, out),
            Encoder::WordPiece(words) => words.encode(text, cache, out),
        }
    }

    /// Replaces [`UNKNOWN`], the id of a text that the vocabulary cannot spell, by the unknown token. Removes it if there is no unknown
    /// token.
    fn replace_unknown(&self, mut ids: Vec<u32>) -> Vec<u32> {
        match self.unknown {
            Some(unknown) => ids.iter_mut().filter(|id| **id == UNKNOWN).for_each(|id| *id = unknown),
            None => ids.retain(|&id| id != UNKNOWN),
        }
        ids
    }
}

/// Whether the file's unknown token may represent text. Some files name a control token, such as the end of a text, which must not come
/// from text.
fn stands_for_unknown(data: &VocabData, id: u32) -> bool {
    data.model == Model::WordPiece
        || data.types[id as usize] != TokenType::Control
        || data.tokens[id as usize].to_lowercase().contains("unk")
}

/// The path of a model's `tokenizer.json`.
fn beside(model: &Path) -> PathBuf {
    model.with_file_name("tokenizer.json")
}
