//! Threads that advance grammars and compute their masks while the engine runs the forward pass.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::event::Event;
use logits::{Allowed, Constraint, Grammar};

/// A mask takes about ten microseconds, so few threads serve many sequences.
const MAX_THREADS: usize = 4;
/// Stack per thread, because grammars are followed recursively. Costs address space only [bytes].
const STACK: usize = 64 << 20;

/// The step of a grammar before its next mask is computed.
pub enum Work {
    Start(Arc<dyn Grammar>),
    Accept(Box<dyn Constraint>, u32),
}

pub struct Reply {
    /// None if following the grammar panicked. Its sequence will end.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The mask of the next token, or the sequence's last event.
    pub allowed: Result<Allowed, Event>,
    pub took: Duration,
}

impl Reply {
    /// The reply on behalf of a thread that panicked or never ran.
    pub fn lost() -> Self {
        Self { constraint: None, allowed: Err(Event::Failed("its grammar could not be followed".into())), took: Duration::ZERO }
    }
}

struct Job {
    work: Work,
    reply: Sender<Reply>,
}

/// The mask threads, which start with the first job. Slow grammars share one separate thread, so that they do not delay other grammars and
/// take at most one core from the engine.
#[derive(Default)]
pub struct MaskThreads {
    quick: Option<Sender<Job>>,
    slow: Option<Sender<Job>>,
}

impl MaskThreads {
    /// Queues `work`. The channel closes without a reply if no thread runs.
    pub fn request(&mut self, work: Work, is_slow: bool) -> Receiver<Reply> {
        let (jobs, most) = if is_slow { (&mut self.slow, 1) } else { (&mut self.quick, MAX_THREADS) };
        // Determined once, because the answer costs reads of files.
        let jobs = jobs.get_or_insert_with(|| spawn(std::thread::available_parallelism().map_or(1, usize::from).min(most)));
        let (reply, receiver) = crossbeam_channel::bounded(1);
        // A failed send drops the job and with it the reply's sender.
        let _ = jobs.send(Job { work, reply });
        receiver
    }
}

fn spawn(num_threads: usize) -> Sender<Job> {
    let (sender, receiver) = crossbeam_channel::unbounded();
    for _ in 0..num_threads {
        let jobs: Receiver<Job> = receiver.clone();
        let thread = std::thread::Builder::new().name("masks".into()).stack_size(STACK).spawn(move || serve(&jobs));
        if let Err(error) = thread {
            tracing::error!("a thread for masks did not start: {error}");
        }
    }
    sender
}

fn serve(jobs: &Receiver<Job>) {
    for Job { work, reply } in jobs {
        let result = catch_unwind(AssertUnwindSafe(|| compute(work)));
        // The send fails if the sequence has ended.
        let _ = reply.send(result.unwrap_or_else(|_| Reply::lost()));
    }
}

fn compute(work: Work) -> Reply {
    let start = Instant::now();
    let (mut constraint, accepted) = match work {
        Work::Start(grammar) => (grammar.start(), Ok(())),
        Work::Accept(mut constraint, id) => {
            let accepted = constraint.accept(id);
            (constraint, accepted)
        }
    };
    let allowed = accepted.and_then(|()| constraint.allowed()).map_err(Event::Unfollowable);
    Reply { constraint: Some(constraint), allowed, took: start.elapsed() }
}
