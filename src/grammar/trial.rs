//! Compiles a grammar on trial, in a process of its own.
//!
//! llguidance cannot be stopped while it compiles, and neither the time nor the memory that it needs follows from the size of a grammar.
//! The same holds for what rewrites a client's text in Lark's syntax: GBNF, regular expressions, and texts inside JSON's strings. So a
//! source is finished and compiled by a child process first (`trial_child.rs`), which ends itself when it has used up its budget of time or
//! memory. If that went well, this process compiles the finished source, which takes what it took there. A stack overflow ends the child
//! alone as well.
//!
//! A child compiles one grammar. A server keeps one ready (`trial_worker.rs`), which has started and knows the vocabulary of the last
//! grammar, so that a request does not wait for a start. Programs that do not call [`enable`], such as tests, compile without a trial.

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
/// The memory that it may take, in bytes.
const MEMORY: usize = 64 << 20;
/// Most trials at once, of all models.
const MAX_TRIALS: usize = 4;

static ENABLED: AtomicBool = AtomicBool::new(false);
static PERMITS: LazyLock<Arc<Permits>> = LazyLock::new(|| Arc::new(Permits::new(MAX_TRIALS)));

/// Lets this program compile grammars on trial. If the program was started as such a trial, runs it and ends the process. To be called
/// first in `main`.
pub fn enable() {
    if std::env::args_os().nth(1).is_some_and(|arg| arg == trial_worker::ARG) {
        std::process::exit(trial_child::serve());
    }
    ENABLED.store(true, Ordering::Relaxed);
}

/// Keeps a process ready for the next trial, from here on.
pub fn keep_ready() {
    if ENABLED.load(Ordering::Relaxed) {
        trial_worker::keep_one();
    }
}

/// What a trial has found.
#[derive(Debug, PartialEq)]
pub struct TrialResult {
    /// The bytes of memory that the compiled grammar takes.
    pub bytes: usize,
    /// The finished source. None: the source was finished before.
    pub finished: Option<Source>,
}

/// Finishes and compiles a source, which `text` holds, on trial. None if this program has no trials. `vocabulary` is an outline as JSON.
///
/// # Errors
/// [`GrammarError::Part`] for a text that cannot be rewritten, [`GrammarError::Invalid`] for a source that does not compile.
/// [`GrammarError::Expensive`], of a part or of the whole, beyond the budget. [`GrammarError::Busy`] if no process can be had.
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

/// What an answer says.
fn read(answer: &str, code: Option<i32>) -> Result<TrialResult, GrammarError> {
    let found = |kind: &str| answer.lines().rev().find_map(|line| line.strip_prefix(kind));
    let text = |kind: &str| found(kind).and_then(|text| serde_json::from_str::<String>(text).ok());
    // What it was about, if it was a part.
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
        // The system ended it, or its stack did.
        (_, None) => Err(named(GrammarError::Expensive(format!("more stack, or more than {} MiB of memory,", MEMORY >> 20)))),
        _ => Err(named(GrammarError::Invalid("the grammar cannot be compiled: the compiler ended unexpectedly".into()))),
    }
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;
