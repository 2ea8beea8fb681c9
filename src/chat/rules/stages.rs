//! [`Staged`]: rules that begin once a tag has been written. The text before the tag is free, and following it costs almost nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::bare_calls::{BareCall, beginning, goes_on};
use grammar::Compiler;
use logits::{Allowed, Constraint, Grammar, mask_words};
use tokenizer::Tokenizer;

/// The bytes that may follow a tag inside the token that completes the tag.
#[derive(Clone, Debug)]
pub enum Tail {
    /// Anything, because no rules begin with this tag.
    Any,
    /// At most this many line breaks.
    Lines(usize),
    /// The beginning of this text.
    Text(String),
    /// The continuation of a bare call after the function's name.
    Call,
}

/// A stretch of free text up to a tag.
#[derive(Clone, Debug)]
pub struct Until {
    pub tag: String,
    pub tail: Tail,
}

/// Reasoning that may precede rules which otherwise hold from the start.
#[derive(Clone, Debug)]
pub struct Preface {
    pub open: String,
    pub until: Until,
}

/// Stages of free text, each of which ends with its tag, and then a grammar.
pub struct Staged {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    /// The ids that open the preface, and the preface as a stage.
    preface: Option<(Vec<u32>, Stage)>,
    stages: Vec<Stage>,
    bare: Option<BareCalls>,
    grammar: Option<Arc<dyn Grammar>>,
    separator: Separator,
    /// Tokens that must not come before the grammar begins.
    early_ends: Arc<[u32]>,
}

/// The line breaks between a stage's tag and the grammar, as many as the model likes up to a limit. They do not belong to the grammar,
/// which may begin with white space of its own: up to the limit, a line break belongs to the separator.
#[derive(Clone, Default)]
struct Separator {
    most: usize,
    /// The number of line breaks that may still come. 0 until the tag is complete.
    left: usize,
    /// Tokens that begin with a line break.
    tokens: Arc<[u32]>,
}

/// The number of line breaks if these bytes hold nothing else.
fn lines(bytes: &[u8]) -> Option<usize> {
    bytes.iter().all(|byte| *byte == b'\n').then_some(bytes.len())
}

impl Separator {
    /// Begins after the tag. Returns the bytes of the tag's last token that belong neither to the tag nor to the separator.
    fn begin<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let taken = rest.iter().take(self.most).take_while(|byte| **byte == b'\n').count();
        self.left = if taken == rest.len() { self.most - taken } else { 0 };
        &rest[taken..]
    }

    /// Takes a token. `false`: this token and all further ones belong to the grammar.
    fn takes(&mut self, bytes: &[u8]) -> bool {
        let count = lines(bytes).filter(|count| (1..=self.left).contains(count));
        self.left = count.map_or(0, |count| self.left - count);
        count.is_some()
    }

    /// While line breaks are left: permits the tokens of line breaks that fit, and forbids all others that begin with a line break.
    fn permit(&self, tokenizer: &Tokenizer, words: &mut [u32]) {
        for &id in self.tokens.iter().filter(|_| self.left > 0) {
            let count = lines(tokenizer.token_bytes(id, true).unwrap_or_default());
            if let Some(word) = words.get_mut(id as usize / 32) {
                let bit = 1 << (id % 32);
                *word = if count.is_some_and(|count| count <= self.left) { *word | bit } else { *word & !bit };
            }
        }
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Staged").field("preface", &self.preface).field("stages", &self.stages).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct Stage {
    until: Until,
    /// Tokens that may complete the tag and continue: those with the tag's last byte before their end.
    crossing: Arc<[u32]>,
    /// The crossing tokens that hold the whole tag.
    whole: Arc<[u32]>,
}

/// Bare calls that may begin the last stage.
#[derive(Clone)]
struct BareCalls {
    functions: Arc<[String]>,
    /// The rules that begin at the function's name.
    grammar: Arc<dyn Grammar>,
    /// Tokens that may end a name and continue.
    crossing: Arc<[u32]>,
    /// The permitted continuations of the crossing tokens.
    tail: Tail,
    /// The number of stages left during the last one: 1 if a tag may come instead of a bare call, 0 if none may.
    stages_left: usize,
    /// The text of the last stage, while it may still be a bare call.
    text: Vec<u8>,
}

impl Stage {
    fn new(grammars: &Compiler, until: Until) -> Self {
        let tag = until.tag.as_bytes();
        let bytes = |id: &u32| grammars.tokenizer().token_bytes(*id, true).unwrap_or_default();
        // If no rules follow the tag, any text may follow it.
        let last = tag.last().filter(|_| !matches!(until.tail, Tail::Any));
        let crossing = last.map(|last| grammars.crossing(*last)).unwrap_or_default();
        let whole = crossing.iter().copied().filter(|id| bytes(id).windows(tag.len().max(1)).any(|window| window == tag)).collect();
        Self { crossing, whole, until }
    }
}

impl Staged {
    /// An optional `preface`, then `stages` in order, then `grammar`. Without a grammar, the rest is free text.
    pub fn new(grammars: &Compiler, preface: Option<Preface>, stages: Vec<Until>, grammar: Option<Arc<dyn Grammar>>) -> Self {
        let tokenizer = grammars.tokenizer().clone();
        let stages = stages.into_iter().map(|until| Stage::new(grammars, until)).collect();
        let preface = preface.map(|preface| (tokenizer.encode(&preface.open, true), Stage::new(grammars, preface.until)));
        let (vocab_size, separator, early_ends) = (grammars.vocab_size(), Separator::default(), Arc::default());
        Self { tokenizer, vocab_size, preface, stages, bare: None, grammar, separator, early_ends }
    }

    /// Allows up to `most` line breaks between the last stage and the grammar.
    pub fn with_separator(mut self, grammars: &Compiler, most: usize) -> Self {
        self.separator = Separator { most, left: 0, tokens: grammars.beginning(b'\n') };
        self
    }

    /// Keeps the answer from ending before the grammar has begun.
    pub fn without_early_end(mut self) -> Self {
        // A token that ends other families' answers may be a part of this family's tags.
        let stages = self.stages.iter().chain(self.preface.iter().map(|(_, stage)| stage));
        let tags: Vec<u32> = stages.flat_map(|stage| self.tokenizer.control_pieces(&stage.until.tag)).filter_map(Result::ok).collect();
        self.early_ends = self.tokenizer.end_ids().iter().copied().filter(|id| !tags.contains(id)).collect();
        self
    }

    /// Allows the last stage to begin with a bare call of one of `functions`. The call follows `grammar` from the function's name.
    pub fn with_bare_calls(mut self, grammars: &Compiler, functions: Vec<String>, grammar: Arc<dyn Grammar>, tail: Tail) -> Self {
        let crossing = grammars.crossing(b'"');
        let stages_left = usize::from(self.grammar.is_some());
        self.bare = Some(BareCalls { functions: functions.into(), grammar, crossing, tail, stages_left, text: Vec::new() });
        self
    }
}

impl Grammar for Staged {
    fn start(&self) -> Box<dyn Constraint> {
        let (ids, preface) = self.preface.clone().unzip();
        let rules = self.grammar.as_ref().filter(|_| self.stages.is_empty()).map(|grammar| grammar.start());
        Box::new(StageState {
            tokenizer: self.tokenizer.clone(),
            vocab_size: self.vocab_size,
            opening: Opening { ids: ids.unwrap_or_default().into(), begun: false, only: false, bare: self.bare.clone() },
            preface,
            stages: self.stages.iter().cloned().collect(),
            text: Vec::new(),
            bare: self.bare.clone(),
            grammar: self.grammar.clone(),
            separator: self.separator.clone(),
            early_ends: self.early_ends.clone(),
            rules,
        })
    }
}

/// The ids that open the preface.
#[derive(Clone)]
struct Opening {
    /// The ids that have not come yet.
    ids: VecDeque<u32>,
    begun: bool,
    /// Whether the ids so far cannot begin anything else.
    only: bool,
    /// The bare calls that may begin after the preface.
    bare: Option<BareCalls>,
}

/// The state of one answer.
struct StageState {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    opening: Opening,
    preface: Option<Stage>,
    stages: VecDeque<Stage>,
    /// The end of the current stage's text that may be the beginning of a tag.
    text: Vec<u8>,
    /// `None` once the answer cannot begin with a bare call.
    bare: Option<BareCalls>,
    grammar: Option<Arc<dyn Grammar>>,
    separator: Separator,
    early_ends: Arc<[u32]>,
    /// `None` until the rules begin.
    rules: Option<Box<dyn Constraint>>,
}

/// The length of the longest end of `text` that is a beginning of `tag` or the whole tag [bytes].
fn overlap(text: &[u8], tag: &[u8]) -> usize {
    (0..=text.len().min(tag.len())).rev().find(|&len| text.ends_with(&tag[..len])).unwrap_or(0)
}

/// The text after the stage's tag, if `text` holds the tag.
fn after_tag<'a>(text: &'a [u8], until: &Until) -> Option<&'a [u8]> {
    let tag = until.tag.as_bytes();
    text.windows(tag.len()).position(|window| window == tag).map(|at| &text[at + tag.len()..])
}

impl Tail {
    fn allows(&self, rest: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Lines(most) => lines(rest).is_some_and(|count| count <= *most),
            Self::Text(text) => text.as_bytes().starts_with(rest),
            Self::Call => goes_on(&String::from_utf8_lossy(rest)),
        }
    }
}

impl BareCalls {
    /// Whether the text so far and `more` begin with a bare call.
    fn beginning(&self, more: &[u8]) -> BareCall {
        beginning(&String::from_utf8_lossy(&[&self.text[..], more].concat()), &self.functions)
    }

    fn may_be_in_name(&self) -> bool {
        self.text.len() >= "{\"name\":".len()
    }

    /// Whether a token may come next. If the token ends the function's name, the rest of the token must continue the call.
    fn allows(&self, more: &[u8]) -> bool {
        let BareCall::At(at) = self.beginning(more) else { return true };
        let text = [&self.text[..], more].concat();
        let name_end = text[at..].iter().position(|byte| *byte == b'"');
        name_end.is_none_or(|end| self.tail.allows(&text[at + end + 1..]))
    }
}

impl StageState {
    /// Takes free text. If it completes the stage's tag, the next stage begins.
    fn free(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut new = bytes.to_vec();
        self.text.extend_from_slice(bytes);
        while let Some(stage) = self.stages.front() {
            let Some(rest) = after_tag(&self.text, &stage.until).map(<[u8]>::to_vec) else {
                self.forget();
                return self.may_be_bare(&new);
            };
            self.stages.pop_front();
            self.text = rest;
            new.clone_from(&self.text);
        }
        let rest = std::mem::take(&mut self.text);
        match self.grammar.take() {
            Some(grammar) => {
                let rest = self.separator.begin(&rest);
                self.follow(&*grammar, rest)
            }
            None => self.may_be_bare(&rest),
        }
    }

    /// Makes the answer follow `grammar`. `text` is the part of it that has already been written.
    fn follow(&mut self, grammar: &dyn Grammar, text: &[u8]) -> Result<(), String> {
        let mut rules = grammar.start();
        let text = String::from_utf8_lossy(text).into_owned();
        self.tokenizer.encode_within(&text).into_iter().try_for_each(|id| rules.accept(id))?;
        self.rules = Some(rules);
        Ok(())
    }

    /// Takes text of the last stage, which may belong to a bare call.
    fn may_be_bare(&mut self, new: &[u8]) -> Result<(), String> {
        let Some(mut bare) = self.bare.take() else { return Ok(()) };
        if self.stages.len() > bare.stages_left {
            self.bare = Some(bare);
            return Ok(());
        }
        bare.text.extend_from_slice(if bare.text.is_empty() { new.trim_ascii_start() } else { new });
        match bare.beginning(&[]) {
            BareCall::Open => self.bare = Some(bare),
            BareCall::No => {}
            BareCall::At(at) => return self.follow(&*bare.grammar, &bare.text[at..]),
        }
        Ok(())
    }

    /// Drops text that can no longer be a part of a tag.
    fn forget(&mut self) {
        let Some(stage) = self.stages.front() else { return };
        let keep = overlap(&self.text, stage.until.tag.as_bytes());
        self.text.drain(..self.text.len() - keep);
    }

    /// Forbids the tokens that would end the answer too early, and those that would complete the stage's tag or a bare call's name and then
    /// break the rules.
    fn free_mask(&self) -> Allowed {
        let mut mask = None;
        let mut forbid = |id: u32| {
            let words: &mut Vec<u32> = mask.get_or_insert_with(|| vec![u32::MAX; mask_words(self.vocab_size)]);
            words[id as usize / 32] &= !(1 << (id % 32));
        };
        self.early_ends.iter().copied().for_each(&mut forbid);
        let bytes = |id: u32| self.tokenizer.token_bytes(id, true).unwrap_or_default();
        if let Some(stage) = self.stages.front() {
            let may_complete = if self.text.is_empty() { &stage.whole } else { &stage.crossing };
            for &id in may_complete.iter() {
                let text = [&self.text[..], bytes(id)].concat();
                if after_tag(&text, &stage.until).is_some_and(|rest| !rest.is_empty() && !stage.until.tail.allows(rest)) {
                    forbid(id);
                }
            }
        }
        for bare in self.bare.iter().filter(|bare| bare.may_be_in_name()) {
            bare.crossing.iter().filter(|id| !bare.allows(bytes(**id))).for_each(|id| forbid(*id));
        }
        mask.map_or(Allowed::All, Allowed::Mask)
    }

    fn only(&self, id: u32) -> Vec<u32> {
        let mut words = vec![0; mask_words(self.vocab_size)];
        if let Some(word) = words.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
        words
    }
}

impl StageState {
    /// Takes a token as if there were no preface.
    fn besides(&mut self, id: u32) -> Result<(), String> {
        let bytes = self.tokenizer.token_bytes(id, true).unwrap_or_default().to_vec();
        match &mut self.rules {
            Some(_) if self.separator.takes(&bytes) => Ok(()),
            Some(rules) => rules.accept(id),
            None => self.free(&bytes),
        }
    }
}

impl Constraint for StageState {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        let Some(stage) = self.preface.take() else { return self.besides(id) };
        if self.opening.ids.pop_front_if(|due| *due == id).is_none() {
            return match self.opening.only {
                true => Err("the tag that opens the reasoning must go on".into()),
                false => self.besides(id),
            };
        }
        self.opening.begun = true;
        if self.opening.ids.is_empty() {
            self.stages.push_front(stage);
            self.text.clear();
            (self.rules, self.bare) = (None, self.opening.bare.take());
        } else {
            self.preface = Some(stage);
            // The first tokens of the tag may also begin something else.
            self.opening.only = self.opening.only || self.besides(id).is_err();
        }
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        let due = self.opening.ids.front().copied().filter(|_| self.preface.is_some());
        if let Some(id) = due.filter(|_| self.opening.only) {
            return Ok(Allowed::Mask(self.only(id)));
        }
        let Some(rules) = &mut self.rules else { return Ok(self.free_mask()) };
        let mut allowed = rules.allowed()?;
        if let Allowed::Mask(words) = &mut allowed {
            self.separator.permit(&self.tokenizer, words);
        }
        match (allowed, due) {
            (Allowed::Mask(mut words), Some(id)) => {
                words.iter_mut().zip(self.only(id)).for_each(|(word, more)| *word |= more);
                Ok(Allowed::Mask(words))
            }
            (allowed, _) => Ok(allowed),
        }
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        let rules = match &self.rules {
            Some(rules) => Some(rules.fork()?),
            None => None,
        };
        Some(Box::new(Self {
            tokenizer: self.tokenizer.clone(),
            vocab_size: self.vocab_size,
            opening: self.opening.clone(),
            preface: self.preface.clone(),
            stages: self.stages.clone(),
            text: self.text.clone(),
            bare: self.bare.clone(),
            grammar: self.grammar.clone(),
            separator: self.separator.clone(),
            early_ends: self.early_ends.clone(),
            rules,
        }))
    }
}
