//! [`Compiler`]: compiles grammars within limits on time, stack and number, and caches the most recently used ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use crate::compiled_cache::CompiledCache;
use crate::error::GrammarError;
use crate::factory::{explain, factory, reason};
use crate::matcher::Compiled;
use crate::permit::{Permit, Permits};
use crate::source::Source;
use crate::trial;
use crate::trial_child::{PATIENCE, STACK};
use crate::vocab::Vocabulary;
use llguidance::earley::SlicedBiasComputer;
use llguidance::{Matcher, ParserFactory};
use logits::Grammar;
use tokenizer::Tokenizer;

/// The most threads per model that compile at once, including threads whose result is no longer awaited. The rest of the processor is for
/// inference.
const MAX_COMPILING: usize = 2;
/// The longest wait for a permit: as long as a trial may hold one.
const WAIT: Duration = PATIENCE;
/// The longest wait for a grammar that has a permit. Trials end earlier on their own.
const TIME: Duration = Duration::from_secs(20);
/// The assumed size of a compiled grammar if no trial has measured it [bytes].
const UNMEASURED: usize = 1 << 20;

/// The tables that are built once per vocabulary.
struct Tables {
    factory: ParserFactory,
    /// The vocabulary's outline as JSON, for trials.
    outline: Arc<str>,
}

/// Compiles grammars for one model. The first compilation builds the tables of the vocabulary.
pub struct Compiler {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    tables: OnceLock<Result<Arc<Tables>, String>>,
    kept: Mutex<CompiledCache>,
    /// Results of [`Compiler::crossing`] by byte.
    crossing: Mutex<HashMap<u8, Arc<[u32]>>>,
    /// Results of [`Compiler::beginning`] by byte.
    beginning: Mutex<HashMap<u8, Arc<[u32]>>>,
    permits: Arc<Permits>,
}

impl Compiler {
    /// A compiler for a model that samples ids below `vocab_size`.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        let (crossing, beginning, permits) = (Mutex::default(), Mutex::default(), Arc::new(Permits::new(MAX_COMPILING)));
        Self { tokenizer, vocab_size, tables: OnceLock::new(), kept: Mutex::default(), crossing, beginning, permits }
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
        let crosses = |bytes: &[u8]| bytes.split_last().is_some_and(|(_, rest)| rest.contains(&byte));
        self.find(&self.crossing, byte, crosses)
    }

    /// The ids of all tokens that begin with `byte`, except control tokens. Also computed once per byte.
    pub fn beginning(&self, byte: u8) -> Arc<[u32]> {
        self.find(&self.beginning, byte, |bytes| bytes.first() == Some(&byte))
    }

    fn find(&self, found: &Mutex<HashMap<u8, Arc<[u32]>>>, byte: u8, fits: impl Fn(&[u8]) -> bool) -> Arc<[u32]> {
        let fits = |id: &u32| !self.tokenizer.is_control(*id) && fits(self.tokenizer.token_bytes(*id, true).unwrap_or_default());
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.entry(byte).or_insert_with(|| (0..self.tokenizer.vocab_size() as u32).filter(fits).collect()).clone()
    }

    /// Compiles a grammar, or returns it from the cache. May take seconds, so do not call this on the event loop.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] says what is not supported, and where in a schema. [`GrammarError::Expensive`] if compiling exceeds its
    /// budget. [`GrammarError::Busy`] if too many grammars are being compiled.
    pub fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>, GrammarError> {
        source.check()?;
        let key: Arc<str> = source.text().into();
        if let Some(found) = self.kept().find(&key) {
            found.check()?;
            return Ok(found);
        }
        let tables = self.tables.get_or_init(|| self.tables()).clone().map_err(GrammarError::Invalid)?;
        let permit = Permit::acquire(&self.permits, WAIT).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::channel();
        let (source, text, vocab_size) = (source.clone(), key.clone(), self.vocab_size);
        let work = move || {
            let _permit = permit;
            // Sending fails if the caller has given up waiting, which does no harm.
            let _ = sender.send(compile(&tables, source, &text, vocab_size));
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
            outline: vocabulary.outline().to_string().into(),
        }))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, CompiledCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn compiled(&self, lark: &str) -> Arc<Compiled> {
        let tables = self.tables().expect("a vocabulary");
        let source = Source::new(lark);
        let text = source.text();
        Arc::new(compile(&tables, source, &text, self.vocab_size).expect("a grammar").0)
    }

    #[cfg(test)]
    pub(super) fn num_kept(&self) -> usize {
        self.kept().len()
    }
}

/// Compiles a source, whose text is `text`, and returns the compiled grammar's size [bytes]. A trial comes first, and bounds the time and
/// the memory of the compilation.
fn compile(tables: &Tables, source: Source, text: &str, vocab_size: usize) -> Result<(Compiled, usize), GrammarError> {
    let Tables { factory, outline } = tables;
    let tried = trial::run(outline, text)?;
    let (measured, source) = match tried {
        Some(tried) => (Some(tried.bytes), tried.finished.unwrap_or(source)),
        None => (None, source.finished(&mut |_| ())?),
    };
    let bytes = measured.unwrap_or(UNMEASURED);
    let ends = factory.tok_env().tok_trie().eos_token_set();
    let matcher = Matcher::new(source.parser(factory));
    let refusal = match matcher.get_error() {
        None => match Compiled::new(matcher, ends, vocab_size, bytes) {
            Ok(compiled) => return Ok((compiled, bytes)),
            Err(GrammarError::Invalid(refusal)) => refusal,
            Err(other) => return Err(other),
        },
        Some(error) => reason(&error),
    };
    // Finding the place in a schema means compiling many parts, and no trial has bounded that.
    let (part, refusal) = if measured.is_some() { (None, refusal) } else { explain(factory, &source, refusal) };
    let error = GrammarError::Invalid(refusal);
    Err(if let Some(part) = part { error.of_part(&part) } else { error })
}
