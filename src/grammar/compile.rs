//! Compiling within bounds of time, stack and number; what was compiled lately is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use llguidance::{Matcher, ParserFactory};

use super::locate::locate;
use super::matcher::{Compiled, reason};
use super::source::Source;
use super::{GrammarError, vocab};
use crate::logits::Grammar;
use crate::tokenizer::Tokenizer;

/// Address space: the library recurses over schemas and their references.
const STACK: usize = 256 << 20;
/// What takes longer is refused; its thread ends by itself, since every part of its work is bounded.
const TIME: Duration = Duration::from_secs(5);
/// Threads that compile at once, those that nobody waits for any more included: others need the processor, too.
const MAX_COMPILING: usize = 2;
/// Places in a grammar that a text may be at.
const MAX_ITEMS: usize = 8000;
/// States of the automaton that splits a text, made as it is followed: some 400 bytes each, for each text.
const MAX_LEXER_STATES: usize = 50_000;
/// Compiled grammars that are kept.
const MAX_KEPT: usize = 64;

/// Compiles grammars for one model. What the vocabulary takes is built with the first.
pub struct Compiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    /// By their text; the one that was used last stands last.
    kept: Mutex<VecDeque<(String, Arc<Compiled>)>>,
    /// By a byte, the tokens of [`Compiler::crossing`].
    crossing: Mutex<HashMap<u8, Arc<[u32]>>>,
    places: Arc<Places>,
}

/// How many compile.
#[derive(Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of the places; dropping it gives it back.
struct Place(Arc<Places>);

impl Place {
    /// Waits for a place; None where none gets free in time.
    fn take(places: &Arc<Places>) -> Option<Self> {
        let taken = places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = places.freed.wait_timeout_while(taken, TIME, |taken| *taken >= MAX_COMPILING);
        let (mut taken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        *taken += 1;
        Some(Self(places.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

impl Compiler {
    /// For a model that samples ids below `vocab_size`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, factory: OnceLock::new(), kept: Mutex::default(), crossing: Mutex::default(), places: Arc::default() }
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Tokens of a text that hold `byte` elsewhere than at their end. Looked for once: the vocabulary is large, requests are many.
    pub fn crossing(&self, byte: u8) -> Arc<[u32]> {
        let crosses = |id: &u32| {
            let bytes = self.tokenizer.token_bytes(*id, true).unwrap_or_default();
            !self.tokenizer.is_control(*id) && bytes.split_last().is_some_and(|(_, rest)| rest.contains(&byte))
        };
        let mut crossing = self.crossing.lock().unwrap_or_else(PoisonError::into_inner);
        crossing.entry(byte).or_insert_with(|| (0..self.tokenizer.vocab_size() as u32).filter(crosses).collect()).clone()
    }

    /// Compiles a grammar, or finds it among those kept. It may take seconds: call it off the event loop.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] says what cannot be honoured, and where in a schema.
    pub fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>, GrammarError> {
        let key = source.key();
        if let Some(found) = self.find(&key) {
            return Ok(found);
        }
        let factory = self.factory.get_or_init(|| self.factory()).clone().map_err(GrammarError::Invalid)?;
        let place = Place::take(&self.places).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::channel();
        let (source, vocab_size) = (source.clone(), self.vocab_size);
        let work = move || {
            let _place = place;
            // Whoever asked may have given up.
            let _ = sender.send(compile(&factory, &source, vocab_size));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(work);
        thread.map_err(|_| GrammarError::Busy)?;
        let compiled = match receiver.recv_timeout(TIME) {
            Ok(result) => Arc::new(result?),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(GrammarError::Invalid(format!("it takes more than {} s to compile", TIME.as_secs())));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(GrammarError::Invalid("it cannot be compiled".into())),
        };
        self.keep(key, compiled.clone());
        Ok(compiled)
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, String> {
        let factory = ParserFactory::new_simple(&vocab::environment(&self.tokenizer, self.vocab_size));
        let mut factory = factory.map_err(|error| format!("the vocabulary cannot follow grammars: {error}"))?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        // An object of as many optional members as are allowed takes some of them each.
        limits.max_items_in_row = MAX_ITEMS;
        limits.step_max_items = 25 * MAX_ITEMS;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(Arc::new(factory))
    }

    fn find(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(other, _)| other == key)?;
        let found = kept.remove(at)?;
        kept.push_back(found.clone());
        Some(found.1)
    }

    fn keep(&self, key: String, compiled: Arc<Compiled>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, compiled));
        while kept.len() > MAX_KEPT {
            kept.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn num_kept(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn compile(factory: &ParserFactory, source: &Source, vocab_size: usize) -> Result<Compiled, GrammarError> {
    let ends = factory.tok_env().tok_trie().eos_token_set();
    let matcher = Matcher::new(factory.create_parser(source.grammar()));
    let error = match matcher.get_error() {
        None => match Compiled::new(matcher, ends, vocab_size) {
            Ok(compiled) => return Ok(compiled),
            Err(GrammarError::Invalid(error)) => error,
            Err(busy) => return Err(busy),
        },
        Some(error) => reason(&error),
    };
    let of_schema = |schema: &serde_json::Value| {
        let alone = Source::new("start: @schema").with_schema("schema", schema).ok()?;
        factory.create_parser(alone.grammar()).err().map(|error| reason(&error.to_string()))
    };
    let culprit = source.schemas().find(|schema| of_schema(schema).as_ref() == Some(&error));
    Err(GrammarError::Invalid(match culprit {
        Some(schema) => format!("{} cannot be honoured: {error}", locate(schema, &error, of_schema)),
        None => error,
    }))
}
