//! Compiles a grammar on trial in a separate process.
//!
//! llguidance cannot be stopped while it compiles, and neither the time nor the memory that it needs follows from the size of a grammar.
//! The same holds for rewriting a client's text in Lark's syntax: GBNF, regular expressions, and texts inside JSON's strings. So a child
//! process finishes and compiles a source first (`trial_child.rs`), and ends itself when it has used up its budget of time or memory. If
//! the child succeeds, this process compiles the finished source, at the cost that the child has measured. A stack overflow also ends only
//! the child.
//!
//! A child compiles one grammar. A server keeps one child ready (`trial_worker.rs`), which has started and knows the vocabulary of the last
//! grammar, so a request need not wait for it to start. Programs that do not call [`enable`], such as tests, compile without a trial.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::json;

use crate::error::GrammarError;
use crate::permit::{Permit, Permits};
use crate::source::Source;
use crate::trial_child::{self, OUT_OF_MEMORY, OUT_OF_TIME};
use crate::trial_worker::{self, Worker};

/// The processor time that finishing and compiling a source may take.
const TIME: Duration = Duration::from_secs(1);
/// The memory that finishing and compiling a source may take [bytes].
const MEMORY: usize = 64 << 20;
/// The most concurrent trials of all models together.
const MAX_TRIALS: usize = 4;

static ENABLED: AtomicBool = AtomicBool::new(false);
static PERMITS: LazyLock<Arc<Permits>> = LazyLock::new(|| Arc::new(Permits::new(MAX_TRIALS)));

/// Lets this program compile grammars on trial. If the program was itself started for a trial, this runs the trial and ends the process.
/// Call this first in `main`.
pub fn enable() {
    if std::env::args_os().nth(1).is_some_and(|arg| arg == trial_worker::ARG) {
        std::process::exit(trial_child::serve());
    }
    ENABLED.store(true, Ordering::Relaxed);
}

/// Starts to keep a process ready for the next trial.
pub fn keep_ready() {
    if ENABLED.load(Ordering::Relaxed) {
        trial_worker::keep_one();
    }
}

/// The result of a successful trial.
#[derive(Debug, PartialEq)]
pub struct TrialResult {
    /// The memory of the compiled grammar [bytes].
    pub bytes: usize,
    /// The finished source. `None` if the source was already finished.
    pub finished: Option<Source>,
}

/// Finishes and compiles a source, whose text is `text`, on trial. `None` if trials are not enabled. `vocabulary` is an outline as JSON.
///
/// # Errors
/// [`GrammarError::Part`] for a text that cannot be rewritten. [`GrammarError::Invalid`] for a source that does not compile.
/// [`GrammarError::Expensive`], for a part or the whole, if the budget is exceeded. [`GrammarError::Busy`] if no process is available.
pub fn run(vocabulary: &Arc<str>, text: &str) -> Result<Option<TrialResult>, GrammarError> {
    if !ENABLED.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let _permit = Permit::acquire(&PERMITS, trial_child::PATIENCE).ok_or(GrammarError::Busy)?;
    let failed = |error| {
        tracing::error!("the process that compiles a grammar on trial failed: {error}");
        GrammarError::Busy
    };
    let budget = json!({ "milliseconds": TIME.as_millis() as u64, "bytes": MEMORY }).to_string();
    let answered = Worker::take(vocabulary).and_then(|worker| worker.compile(text, &budget));
    trial_worker::replace(Some(vocabulary.clone()));
    let (answer, status) = answered.map_err(failed)?;
    read(&answer, status.code()).map(Some)
}

/// Interprets the child's answer.
fn read(answer: &str, code: Option<i32>) -> Result<TrialResult, GrammarError> {
    let found = |kind: &str| answer.lines().rev().find_map(|line| line.strip_prefix(kind));
    let text = |kind: &str| found(kind).and_then(|text| serde_json::from_str::<String>(text).ok());
    // Attributes an error to the part that the child was working on, if any.
    let named = |error: GrammarError| match text("part ") {
        Some(name) if !name.is_empty() => error.of_part(&name),
        _ => error,
    };
    if let Some(refusal) = text("refused ") {
        return Err(named(GrammarError::Invalid(refusal)));
    }
    match (found("compiled ").and_then(|bytes| bytes.parse().ok()), code) {
        (Some(bytes), Some(0)) => Ok(TrialResult { bytes, finished: found("finished ").and_then(Source::of_text) }),
        (_, Some(OUT_OF_TIME)) => Err(named(GrammarError::Expensive(format!("more than {} s", TIME.as_secs())))),
        (_, Some(OUT_OF_MEMORY)) => Err(named(GrammarError::Expensive(format!("more than {} MiB of memory", MEMORY >> 20)))),
        // The system ended the child, or a stack overflow did.
        (_, None) => Err(named(GrammarError::Expensive(format!("more stack, or more than {} MiB of memory,", MEMORY >> 20)))),
        _ => Err(named(GrammarError::Invalid("the grammar cannot be compiled: the compiler ended unexpectedly".into()))),
    }
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;
