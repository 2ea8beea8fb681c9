//! Compiles a grammar on trial, in a process of its own.
//!
//! llguidance cannot be stopped while it compiles, and neither the time nor the memory that it needs follows from the size of a grammar.
//! So a grammar is compiled twice: first by a child process, which ends itself when it has used up its budget of time or memory, and then,
//! if that went well, by this process. A stack overflow ends the child alone as well.
//!
//! The child is the program itself with the argument [`ARG`]. It reads a request from stdin, `[OUTLINE, SOURCE, BUDGET]`: an outline of
//! the vocabulary, the grammar's source, and `{"milliseconds", "bytes"}`. It writes lines to stdout, the last of which counts: `compiled
//! BYTES` or `refused "REASON"`. Programs that do not call [`enable`], such as tests, compile without a trial.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::error::GrammarError;
use crate::factory::{explain, factory, reason};
use crate::source::Source;
use crate::vocab::Vocabulary;

/// The first argument of a process that compiles a grammar on trial.
const ARG: &str = "compile-grammar-on-trial";
/// Stack of a compiling thread, in bytes of address space. llguidance recurses over schemas and their references.
pub const STACK: usize = 256 << 20;
/// The processor time that compiling may take.
const TIME: Duration = Duration::from_secs(1);
/// The same on the clock, for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(8);
/// The memory that compiling may take, in bytes.
const MEMORY: usize = 64 << 20;
/// How often the child compares its use with its budget.
const PERIOD: Duration = Duration::from_millis(5);
/// Longest answer of a child that is read.
const MAX_ANSWER: u64 = 64 << 10;

/// Exit codes of a child that ended itself.
const OUT_OF_TIME: i32 = 3;
const OUT_OF_MEMORY: i32 = 4;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Lets this program compile grammars on trial. If the program was started as such a trial, runs it and ends the process. To be called
/// first in `main`.
pub fn enable() {
    if std::env::args_os().nth(1).is_some_and(|arg| arg == ARG) {
        std::process::exit(serve());
    }
    ENABLED.store(true, Ordering::Relaxed);
}

/// Compiles a grammar on trial. Returns the bytes of memory that it needs, or None if this program has no trials. `vocabulary` is an
/// outline.
pub fn run(vocabulary: &Value, source: &Source) -> Result<Option<usize>, GrammarError> {
    if !ENABLED.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let child = Command::new(program()).arg(ARG).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|error| {
        tracing::error!("the process that compiles a grammar on trial did not start: {error}");
        GrammarError::Busy
    })?;
    let budget = json!({ "milliseconds": TIME.as_millis() as u64, "bytes": MEMORY });
    let answer = converse(&mut child, &json!([vocabulary, source.parts(), budget]).to_string());
    let status = child.wait().map_err(|_| GrammarError::Busy)?;
    let last = answer.lines().last().unwrap_or_default();
    if let Some(refusal) = last.strip_prefix("refused ").and_then(|text| serde_json::from_str::<String>(text).ok()) {
        return Err(GrammarError::Invalid(refusal));
    }
    match (last.strip_prefix("compiled ").and_then(|bytes| bytes.parse().ok()), status.code()) {
        (Some(bytes), Some(0)) => Ok(Some(bytes)),
        (_, Some(OUT_OF_TIME)) => Err(GrammarError::Expensive(format!("more than {} s", TIME.as_secs()))),
        (_, Some(OUT_OF_MEMORY)) => Err(GrammarError::Expensive(format!("more than {} MiB of memory", MEMORY >> 20))),
        _ => Err(GrammarError::Invalid("the grammar cannot be compiled: the compiler ended unexpectedly".into())),
    }
}

/// This program, even if its file was replaced since it started.
fn program() -> std::path::PathBuf {
    let own = std::path::PathBuf::from("/proc/self/exe");
    if own.exists() { own } else { std::env::current_exe().unwrap_or_default() }
}

/// Writes the request and reads the answer. The child reads the whole request before it answers. If it ends before, its status says why.
fn converse(child: &mut Child, request: &str) -> String {
    if let Some(mut pipe) = child.stdin.take() {
        let _ = pipe.write_all(request.as_bytes());
    }
    let mut answer = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        let _ = pipe.take(MAX_ANSWER).read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The child's work. Returns its exit code.
fn serve() -> i32 {
    let mut text = String::new();
    let request = std::io::stdin().read_to_string(&mut text).ok().and_then(|_| serde_json::from_str::<Value>(&text).ok());
    let Some((vocabulary, source, time, most)) = request.and_then(|request| read(&request)) else { return 1 };
    let Ok(factory) = factory(&vocabulary.environment(), &[]) else { return 1 };
    let before = memory();
    let work = move || {
        // The first grammar takes what later ones reuse, so it is not the one that is measured.
        drop(Source::new("start: \"a\"").parser(&factory));
        let before = memory();
        match source.parser(&factory) {
            // It is not dropped, which would take time.
            Ok(parser) => {
                say(&format!("compiled {}", memory().saturating_sub(before)));
                std::mem::forget(parser);
            }
            Err(error) => {
                let refusal = reason(&error.to_string());
                // Said twice, because the search for the place may exceed the budget.
                say(&format!("refused {}", json!(refusal)));
                say(&format!("refused {}", json!(explain(&factory, &source, refusal))));
            }
        }
    };
    let Ok(thread) = std::thread::Builder::new().stack_size(STACK).spawn(work) else { return 1 };
    let start = Instant::now();
    while !thread.is_finished() {
        if processor_time() > time || start.elapsed() > PATIENCE {
            return OUT_OF_TIME;
        }
        if memory().saturating_sub(before) > most {
            return OUT_OF_MEMORY;
        }
        std::thread::park_timeout(PERIOD);
    }
    i32::from(thread.join().is_err())
}

/// A request's vocabulary, source, and budget of time and bytes.
fn read(request: &Value) -> Option<(Vocabulary, Source, Duration, usize)> {
    let time = Duration::from_millis(request[2]["milliseconds"].as_u64()?);
    let bytes = usize::try_from(request[2]["bytes"].as_u64()?).ok()?;
    Some((Vocabulary::of_outline(&request[0])?, Source::of_parts(&request[1])?, time, bytes))
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The most memory that this process has used so far, in bytes. 0 where the system does not tell.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib << 10)
}

#[cfg(test)]
#[path = "trial_tests.rs"]
mod tests;
