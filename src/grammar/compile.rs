//! [`Compiler`]: compiles grammars within limits on time, stack and number, and keeps those that were used last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::error::GrammarError;
use crate::factory::{explain, factory, reason};
use crate::kept::Kept;
use crate::matcher::Compiled;
use crate::permit::{Permit, Permits};
use crate::source::Source;
use crate::trial::{self, STACK};
use crate::vocab::Vocabulary;
use logits::Grammar;
use tokenizer::Tokenizer;

/// Longest time to wait for a permit.
const WAIT: Duration = Duration::from_secs(5);
/// Longest time to wait for a grammar that has a permit. Trials end by themselves before.
const TIME: Duration = Duration::from_secs(20);
/// The bytes that a compiled grammar is taken to have if there was no trial to measure them.
const UNMEASURED: usize = 1 << 20;

/// What is made of a vocabulary once.
struct Tables {
    factory: ParserFactory,
    /// The vocabulary's outline, for trials.
    outline: Value,
}

/// Compiles grammars for one model. The first compilation builds the tables of the vocabulary.
pub struct Compiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    tables: OnceLock<Result<Arc<Tables>, String>>,
    kept: Mutex<Kept>,
    /// Results of [`Compiler::crossing`] by byte.
    crossing: Mutex<HashMap<u8, Arc<[u32]>>>,
    permits: Arc<Permits>,
}

impl Compiler {
    /// A compiler for a model that samples ids below `vocab_size`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        Self { tokenizer, vocab_size, tables: OnceLock::new(), kept: Mutex::default(), crossing: Mutex::default(), permits: Arc::default() }
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
    /// [`GrammarError::Invalid`] says what is not supported, and where in a schema. [`GrammarError::Expensive`] if compiling exceeds its
    /// budget. [`GrammarError::Busy`] if too many grammars compile.
    pub fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>, GrammarError> {
        let parts = source.parts();
        let key = parts.to_string();
        if let Some(found) = self.kept().find(&key) {
            return Ok(found);
        }
        let tables = self.tables.get_or_init(|| self.tables()).clone().map_err(GrammarError::Invalid)?;
        let permit = Permit::acquire(&self.permits, WAIT).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::channel();
        let (source, vocab_size) = (source.clone(), self.vocab_size);
        let work = move || {
            let _permit = permit;
            // Fails if the caller has given up waiting, which is no problem.
            let _ = sender.send(compile(&tables, &source, vocab_size));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(work);
        thread.map_err(|_| GrammarError::Busy)?;
        let (compiled, bytes) = match receiver.recv_timeout(TIME) {
            Ok(result) => result?,
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(GrammarError::Expensive(format!("more than {} s", TIME.as_secs()))),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::Invalid("the grammar cannot be compiled: the compiler panicked".into()));
            }
        };
        let compiled = Arc::new(compiled);
        self.kept().add(key, compiled.clone(), bytes);
        Ok(compiled)
    }

    fn tables(&self) -> Result<Arc<Tables>, String> {
        let vocabulary = Vocabulary::of(&self.tokenizer, self.vocab_size);
        Ok(Arc::new(Tables {
            factory: factory(&vocabulary.environment(), &SlicedBiasComputer::general_slices())?,
            outline: vocabulary.outline(),
        }))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn compiled(&self, lark: &str) -> Arc<Compiled> {
        let tables = self.tables().expect("a vocabulary");
        Arc::new(compile(&tables, &Source::new(lark), self.vocab_size).expect("a grammar").0)
    }

    #[cfg(test)]
    pub(super) fn num_kept(&self) -> usize {
        self.kept().len()
    }
}

/// Compiles a grammar, and tells how many bytes it has. A trial comes first, which bounds the time and the memory that this takes.
fn compile(tables: &Tables, source: &Source, vocab_size: usize) -> Result<(Compiled, usize), GrammarError> {
    let Tables { factory, outline } = tables;
    let measured = trial::run(outline, source)?;
    let ends = factory.tok_env().tok_trie().eos_token_set();
    let matcher = Matcher::new(source.parser(factory));
    let refusal = match matcher.get_error() {
        None => match Compiled::new(matcher, ends, vocab_size) {
            Ok(compiled) => return Ok((compiled, measured.unwrap_or(UNMEASURED))),
            Err(GrammarError::Invalid(refusal)) => refusal,
            Err(other) => return Err(other),
        },
        Some(error) => reason(&error),
    };
    // Finding the place means to compile many parts, which a trial has not bounded.
    Err(GrammarError::Invalid(if measured.is_some() { refusal } else { explain(factory, source, refusal) }))
}
