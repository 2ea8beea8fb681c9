//! The child process that compiles a grammar on trial. `trial_worker.rs` is the parent's side.
//!
//! The child reads lines from stdin, each a list in JSON:
//! - `["vocabulary", OUTLINE]`: the vocabulary for what follows. Its tables are built at once, before a grammar arrives.
//! - `["grammar", SOURCE, {"milliseconds", "bytes"}]`: a source as `Source::text` writes it, and its budget. This is the last line.
//!
//! The child answers in lines on stdout, and ends:
//! - `part "NAME"`: the grammar of this name is being rewritten in Lark's syntax, or has been refused. An empty name means that the whole
//!   source is being compiled.
//! - `refused "REASON"`: the last of these counts.
//! - `finished SOURCE` if the source was rewritten, and then `compiled BYTES`: the memory of the compiled grammar.
//!
//! If the child has used up its budget, its exit code says which part of the budget. In addition, the system bounds the child's address
//! space and its processor time.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use llguidance::ParserFactory;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::factory::{explain, factory, reason};
use crate::source::Source;
use crate::vocab::Vocabulary;

/// The stack of a compiling thread [bytes of address space]. llguidance recurses over schemas and their references.
pub const STACK: usize = 256 << 20;
/// The wall-clock time that a trial may take, longer than its processor time because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// The interval at which the process compares its use with its budget.
const PERIOD: Duration = Duration::from_millis(5);
/// Address space beyond the budget, which allocators reserve without using it [bytes].
const RESERVED: usize = 1 << 30;

/// How far the process's priority is lowered while it compiles: a third of the share of a busy engine's threads, and a whole core where one
/// is idle.
const NICE: i32 = 5;

/// Exit codes of a process that ended itself.
pub const OUT_OF_TIME: i32 = 3;
pub const OUT_OF_MEMORY: i32 = 4;

/// Runs the child process. Returns its exit code.
pub fn serve() -> i32 {
    // While it compiles, it does not look at its stdin. The thread that started it waits for its end.
    if set_pdeathsig(Signal::SIGKILL).is_err() {
        return 1;
    }
    let mut tables: Option<ParserFactory> = None;
    for line in std::io::stdin().lock().lines() {
        let Some(Value::Array(message)) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { return 1 };
        match (message.first().and_then(Value::as_str), tables.take()) {
            (Some("vocabulary"), _) => tables = made(&message),
            (Some("grammar"), Some(factory)) => {
                let mut parts = message.into_iter().skip(1);
                let (Some(source), Some(budget)) = (parts.next().and_then(Source::of_value), parts.next()) else { return 1 };
                let Some(budget) = TrialBudget::read(&budget) else { return 1 };
                return run(factory, source, budget);
            }
            _ => return 1,
        }
    }
    // The parent has ended, or no longer needs this process.
    0
}

/// Builds the tables over a vocabulary.
fn made(message: &[Value]) -> Option<ParserFactory> {
    let factory = factory(&Vocabulary::of_outline(message.get(1)?)?.environment(), &[]).ok()?;
    // The first grammar allocates memory that later ones reuse, so a measured grammar must not be the first.
    drop(Source::new("start: \"a\"").parser(&factory));
    Some(factory)
}

struct TrialBudget {
    time: Duration,
    bytes: usize,
}

impl TrialBudget {
    fn read(value: &Value) -> Option<Self> {
        let time = Duration::from_millis(value["milliseconds"].as_u64()?);
        Some(Self { time, bytes: usize::try_from(value["bytes"].as_u64()?).ok()? })
    }
}

/// Compiles on a thread of its own, and watches its use of time and memory.
fn run(factory: ParserFactory, source: Source, budget: TrialBudget) -> i32 {
    // If the system refuses, the process keeps its priority.
    let _ = rustix::process::nice(NICE);
    let (before, used) = (memory(), processor_time());
    bound_by_system(&budget, used);
    let Ok(thread) = std::thread::Builder::new().stack_size(STACK).spawn(move || compile(&factory, source)) else { return 1 };
    let start = Instant::now();
    let is_over_memory = || memory().saturating_sub(before) > budget.bytes;
    while !thread.is_finished() {
        if processor_time().saturating_sub(used) > budget.time || start.elapsed() > PATIENCE {
            return OUT_OF_TIME;
        }
        if is_over_memory() {
            return OUT_OF_MEMORY;
        }
        std::thread::park_timeout(PERIOD);
    }
    let joined = thread.join();
    // Memory that was used between two checks counts too, so that a busy machine refuses the same grammars as an idle one.
    if is_over_memory() {
        return OUT_OF_MEMORY;
    }
    i32::from(joined.is_err())
}

fn compile(factory: &ParserFactory, source: Source) {
    let rewritten = !source.is_finished();
    let source = match source.finished(&mut |name| say(&format!("part {}", json!(name)))) {
        Ok(source) => source,
        Err(error) => return say(&format!("refused {}", json!(error.to_string()))),
    };
    say("part \"\"");
    let before = memory();
    match source.parser(factory) {
        // The parser is not dropped, because that would take time.
        Ok(parser) => {
            let bytes = memory().saturating_sub(before);
            if rewritten {
                say(&format!("finished {}", source.text()));
            }
            say(&format!("compiled {bytes}"));
            std::mem::forget(parser);
        }
        Err(error) => {
            let refusal = reason(&error.to_string());
            // Report first: the search for the position may exceed the budget. A second report with the position follows if it does not.
            say(&format!("refused {}", json!(refusal)));
            let (name, refusal) = explain(factory, &source, refusal);
            name.iter().for_each(|name| say(&format!("part {}", json!(name))));
            say(&format!("refused {}", json!(refusal)));
        }
    }
}

/// Lets the system end this process if it takes much more than its budget between two checks. If the system refuses, only the process's own
/// checks remain.
fn bound_by_system(budget: &TrialBudget, used: Duration) {
    let space = space().map(|space| (space + STACK + budget.bytes + RESERVED) as u64);
    let bounds = [(Resource::RLIMIT_AS, space), (Resource::RLIMIT_CPU, Some((used + budget.time).as_secs() + 2))];
    for (resource, most) in bounds {
        if let Some(most) = most {
            let _ = setrlimit(resource, most, most);
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The most memory that this process has used so far [bytes]. 0 if the system does not tell.
fn memory() -> usize {
    status("VmHWM:").unwrap_or(0)
}

/// The address space of this process [bytes].
fn space() -> Option<usize> {
    status("VmSize:")
}

fn status(key: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<usize>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_this_process_is_known() {
        assert!(processor_time() > Duration::ZERO);
        assert!(memory() > 1 << 20 && space().unwrap() >= memory());
    }
}
