//! Masks of sequences that follow a grammar, computed on threads of their own while the engine runs the forward pass.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::Event;
use crate::logits::{Allowed, Constraint, Grammar};

/// A mask takes some ten microseconds: few threads serve many sequences.
const MAX_THREADS: usize = 4;
/// A step waits this long for masks. What takes longer holds up its own sequence only.
pub const PATIENCE: Duration = Duration::from_millis(20);
/// Address space: grammars are followed recursively.
const STACK: usize = 64 << 20;

/// What is behind a sequence's next mask.
struct Job {
    work: Work,
    reply: Sender<Reply>,
}

enum Work {
    Start(Arc<dyn Grammar>),
    Accept(Box<dyn Constraint>, u32),
}

struct Reply {
    /// None: it is broken, and its sequence will end.
    constraint: Option<Box<dyn Constraint>>,
    /// Or the sequence's last event.
    allowed: Result<Allowed, Event>,
    took: Duration,
}

const LOST: &str = "its grammar could not be followed";

impl Reply {
    fn lost() -> Self {
        Self { constraint: None, allowed: Err(Event::Failed(LOST.into())), took: Duration::ZERO }
    }
}

/// Threads that compute masks, started with the first sequence that needs one. Slow ones have a thread of their own: none waits behind
/// them, and they take one core of the engine's at most.
#[derive(Default)]
pub struct MaskWorkers {
    quick: Option<Sender<Job>>,
    slow: Option<Sender<Job>>,
}

impl MaskWorkers {
    fn send(&mut self, job: Job, is_slow: bool) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (jobs, num_threads) = if is_slow { (&mut self.slow, 1) } else { (&mut self.quick, cores.min(MAX_THREADS)) };
        let jobs = jobs.get_or_insert_with(|| spawn(num_threads));
        // Where no thread listens, the reply's channel closes with the job: the sequence hears of it.
        let _ = jobs.send(job);
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
        // The sequence may have gone.
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

/// A sequence's place in its grammar and its next mask, which may still be on its way.
pub struct Masked {
    state: State,
    /// Masks take longer than a step should wait.
    pub is_slow: bool,
}

enum State {
    New(Arc<dyn Grammar>),
    Waiting(Receiver<Reply>),
    Ready(Reply),
}

impl std::fmt::Debug for Masked {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Masked")
    }
}

impl Masked {
    pub fn new(grammar: Arc<dyn Grammar>) -> Self {
        Self { state: State::New(grammar), is_slow: false }
    }

    /// Has the first mask computed.
    pub fn start(&mut self, workers: &mut MaskWorkers) {
        if let State::New(grammar) = &self.state {
            self.state = request(Work::Start(grammar.clone()), workers, self.is_slow);
        }
    }

    /// Has the mask behind `id` computed.
    pub fn accept(&mut self, id: u32, workers: &mut MaskWorkers) {
        let State::Ready(reply) = std::mem::replace(&mut self.state, State::Ready(Reply::lost())) else { return };
        if let Some(constraint) = reply.constraint {
            self.state = request(Work::Accept(constraint, id), workers, self.is_slow);
        }
    }

    /// Waits for the next mask, not longer than to `deadline`: is it there?
    pub fn is_ready_by(&mut self, deadline: Instant) -> bool {
        if let State::Waiting(reply) = &self.state {
            let reply = match reply.recv_deadline(deadline) {
                Ok(reply) => reply,
                Err(RecvTimeoutError::Timeout) => {
                    self.is_slow = true;
                    return false;
                }
                // A worker that took the job always answers; a job that nobody took closes its channel.
                Err(RecvTimeoutError::Disconnected) => Reply::lost(),
            };
            self.is_slow = reply.took > PATIENCE;
            self.state = State::Ready(reply);
        }
        true
    }

    /// What may be sampled next, or the sequence's last event; the same until [`Masked::accept`]. Its mask must be there.
    pub fn allowed(&self) -> Result<&Allowed, Event> {
        match &self.state {
            State::Ready(reply) => reply.allowed.as_ref().map_err(Event::clone),
            State::New(_) | State::Waiting(_) => Err(Event::Failed(LOST.into())),
        }
    }
}

fn request(work: Work, workers: &mut MaskWorkers, is_slow: bool) -> State {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    workers.send(Job { work, reply: sender }, is_slow);
    State::Waiting(receiver)
}
