//! Threads that advance grammars and compute their masks while the engine runs the forward pass.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::event::Event;
use logits::{Allowed, Constraint, Grammar};

/// A mask takes about ten microseconds, so few threads serve many sequences.
const MAX_THREADS: usize = 4;
/// The longest time that masks after drafts may take, besides the mask that the step needs.
const PATIENCE_AHEAD: Duration = Duration::from_millis(5);
/// Stack per thread, because grammars are followed recursively. Costs address space only [bytes].
const STACK: usize = 64 << 20;

/// The step of a grammar before its next mask is computed.
pub enum Work {
    Start(Arc<dyn Grammar>),
    /// Advance by `tokens`. Then follow `drafts` with a copy.
    Accept {
        constraint: Box<dyn Constraint>,
        tokens: Vec<u32>,
        drafts: Vec<u32>,
    },
}

pub struct Reply {
    /// None if following the grammar panicked. Its sequence will end.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The mask of the next token, or the sequence's last event.
    pub allowed: Result<Allowed, Event>,
    /// Present if drafts were followed.
    pub ahead: Option<Ahead>,
    /// Time until the next mask, without those after drafts.
    pub took: Duration,
}

/// A copy of a constraint that has followed drafts.
pub struct Ahead {
    /// The constraint after those drafts. None if it has followed a token whose mask is of no use.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The masks after the first drafts, one per draft that was followed.
    pub allowed: Vec<Allowed>,
}

impl Reply {
    /// The reply on behalf of a thread that panicked or never ran.
    pub fn lost() -> Self {
        Self {
            constraint: None,
            allowed: Err(Event::Failed("its grammar could not be followed".into())),
            ahead: None,
            took: Duration::ZERO,
        }
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

/// Gives up a priority that the thread has from an engine thread.
fn lower_priority() {
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0) {
        let _ = rustix::process::setpriority_process(None, 0);
    }
}

fn spawn(num_threads: usize) -> Sender<Job> {
    let (sender, receiver) = crossbeam_channel::unbounded();
    for _ in 0..num_threads {
        let jobs: Receiver<Job> = receiver.clone();
        let thread = std::thread::Builder::new().name("masks".into()).stack_size(STACK).spawn(move || {
            lower_priority();
            serve(&jobs);
        });
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
    let (mut constraint, accepted, drafts) = match work {
        Work::Start(grammar) => (grammar.start(), Ok(()), Vec::new()),
        Work::Accept { mut constraint, tokens, drafts } => {
            let accepted = tokens.into_iter().try_for_each(|id| constraint.accept(id));
            (constraint, accepted, drafts)
        }
    };
    let allowed = accepted.and_then(|()| constraint.allowed()).map_err(Event::Unfollowable);
    let took = start.elapsed();
    let followed = || follow(&*constraint, allowed.as_ref().ok()?, &drafts, Instant::now() + PATIENCE_AHEAD);
    // A bug that only a wrong draft meets must not end the request.
    let ahead = catch_unwind(AssertUnwindSafe(followed)).unwrap_or_default();
    Reply { constraint: Some(constraint), allowed, ahead, took }
}

/// Follows drafts with a copy of `constraint`, which allows `next`: up to the first that is forbidden, that ends the text or that takes
/// longer than `deadline`. An error here costs no request, because the draft may be wrong.
fn follow(constraint: &dyn Constraint, next: &Allowed, drafts: &[u32], deadline: Instant) -> Option<Ahead> {
    let is_allowed = |allowed: &Allowed, id: u32| match allowed {
        Allowed::All => true,
        Allowed::Mask(words) => words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1),
        Allowed::End => false,
    };
    if drafts.first().is_none_or(|&first| !is_allowed(next, first)) {
        return None;
    }
    let (mut copy, mut masks) = (constraint.fork()?, Vec::new());
    for &draft in drafts {
        if !is_allowed(masks.last().unwrap_or(next), draft) || Instant::now() > deadline {
            break;
        }
        match copy.accept(draft).and_then(|()| copy.allowed()) {
            Ok(Allowed::End) | Err(_) => return Some(Ahead { constraint: None, allowed: masks }),
            Ok(mask) => masks.push(mask),
        }
    }
    Some(Ahead { constraint: Some(copy), allowed: masks })
}
