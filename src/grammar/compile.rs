//! [`Compiler`]: compiles grammars within limits on time, stack and number, and keeps those that were used last.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use llguidance::{Matcher, ParserFactory};

use crate::error::GrammarError;
use crate::locate::locate;
use crate::matcher::{Compiled, reason};
use crate::permit::{Permit, Permits};
use crate::source::Source;
use crate::vocab;
use logits::Grammar;
use tokenizer::Tokenizer;

/// Stack of a compiling thread, in bytes of address space. llguidance recurses over schemas and their references.
const STACK: usize = 256 << 20;
/// Longest time to wait for a permit, and longest time to compile. A grammar that takes longer is refused; its thread still ends by itself,
/// because each part of its work is limited.
const TIME: Duration = Duration::from_secs(5);
/// Most positions in the grammar (Earley items) that one position in a text may correspond to.
const MAX_ITEMS: usize = 8000;
/// Most states of the lexer's automaton. They are created while a text is followed and take about 400 bytes each, per text.
const MAX_LEXER_STATES: usize = 50_000;
/// Number of compiled grammars that are kept.
const MAX_KEPT: usize = 64;

/// Compiles grammars for one model. The first compilation builds the tables of the vocabulary.
pub struct Compiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    /// Compiled grammars by the text of their source. The one used last is at the end.
    kept: Mutex<VecDeque<(String, Arc<Compiled>)>>,
    /// Results of [`Compiler::crossing`] by byte.
    crossing: Mutex<HashMap<u8, Arc<[u32]>>>,
    permits: Arc<Permits>,
}

impl Compiler {
    /// A compiler for a model that samples ids below `vocab_size`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self {
            tokenizer,
            vocab_size,
            factory: OnceLock::new(),
            kept: Mutex::default(),
            crossing: Mutex::default(),
            permits: Arc::default(),
        }
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The ids of all tokens with `byte` before their last byte, except control tokens. Computed once per byte, because the vocabulary is
    /// large.
    pub fn crossing(&self, byte: u8) -> Arc<[u32]> {
        let crosses = |id: &u32| {
            let bytes = self.tokenizer.token_bytes(*id, true).unwrap_or_default();
            !self.tokenizer.is_control(*id) && bytes.split_last().is_some_and(|(_, rest)| rest.contains(&byte))
        };
        let mut crossing = self.crossing.lock().unwrap_or_else(PoisonError::into_inner);
        crossing.entry(byte).or_insert_with(|| (0..self.tokenizer.vocab_size() as u32).filter(crosses).collect()).clone()
    }

    /// Compiles a grammar, unless it is among those kept. May take seconds, so do not call it on the event loop.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] says what is not supported, and where in a schema. [`GrammarError::Busy`] if too many grammars compile.
    pub fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>, GrammarError> {
        let key = source.key();
        if let Some(found) = self.find(&key) {
            return Ok(found);
        }
        let factory = self.factory.get_or_init(|| self.factory()).clone().map_err(GrammarError::Invalid)?;
        let permit = Permit::acquire(&self.permits, TIME).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::channel();
        let (source, vocab_size) = (source.clone(), self.vocab_size);
        let work = move || {
            let _permit = permit;
            // Fails if the caller has given up waiting, which is no problem.
            let _ = sender.send(compile(&factory, &source, vocab_size));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(work);
        thread.map_err(|_| GrammarError::Busy)?;
        let compiled = match receiver.recv_timeout(TIME) {
            Ok(result) => Arc::new(result?),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(GrammarError::Invalid(format!("the grammar takes more than {} s to compile", TIME.as_secs())));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::Invalid("the grammar cannot be compiled: the compiler panicked".into()));
            }
        };
        self.keep(key, compiled.clone());
        Ok(compiled)
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, String> {
        let factory = ParserFactory::new_simple(&vocab::environment(&self.tokenizer, self.vocab_size));
        let mut factory = factory.map_err(|error| format!("the model's vocabulary does not support grammars: {error}"))?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        // Each optional member of an object adds a few items, so these limits must permit an object with the most members allowed.
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
        Some(schema) => format!("{} cannot be used: {error}", locate(schema, &error, of_schema)),
        None => error,
    }))
}
