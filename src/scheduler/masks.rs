//! Masks of sequences that follow a grammar, computed on threads of their own while the engine runs the forward pass.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::logits::{Allowed, Constraint, Grammar};

/// A mask takes some ten microseconds: few threads serve many sequences.
const MAX_THREADS: usize = 4;
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

/// None: it is broken, and its sequence will end.
struct Reply(Option<Box<dyn Constraint>>, Result<Allowed, String>);

const LOST: &str = "its grammar could not be followed";

impl Reply {
    fn lost() -> Self {
        Self(None, Err(LOST.into()))
    }
}

/// Threads that compute masks, started with the first sequence that needs one.
#[derive(Default)]
pub struct MaskWorkers(Option<Sender<Job>>);

impl MaskWorkers {
    fn send(&mut self, job: Job) {
        let jobs = self.0.get_or_insert_with(|| {
            let (sender, receiver) = crossbeam_channel::unbounded();
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..cores.min(MAX_THREADS) {
                let jobs = receiver.clone();
                let thread = std::thread::Builder::new().name("masks".into()).stack_size(STACK).spawn(move || serve(&jobs));
                if let Err(error) = thread {
                    tracing::error!("a thread for masks did not start: {error}");
                }
            }
            sender
        });
        // Where no thread listens, the reply's channel closes with the job: the sequence hears of it.
        let _ = jobs.send(job);
    }
}

fn serve(jobs: &Receiver<Job>) {
    for Job { work, reply } in jobs {
        let result = catch_unwind(AssertUnwindSafe(|| compute(work)));
        // The sequence may have gone.
        let _ = reply.send(result.unwrap_or_else(|_| Reply::lost()));
    }
}

fn compute(work: Work) -> Reply {
    let (mut constraint, accepted) = match work {
        Work::Start(grammar) => (grammar.start(), Ok(())),
        Work::Accept(mut constraint, id) => {
            let accepted = constraint.accept(id);
            (constraint, accepted)
        }
    };
    let allowed = accepted.and_then(|()| constraint.allowed());
    Reply(Some(constraint), allowed)
}

/// A sequence's place in its grammar and its next mask, which may still be on its way.
pub struct Masked(State);

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
        Self(State::New(grammar))
    }

    /// Has the first mask computed.
    pub fn start(&mut self, workers: &mut MaskWorkers) {
        if let State::New(grammar) = &self.0 {
            self.0 = request(Work::Start(grammar.clone()), workers);
        }
    }

    /// Has the mask behind `id` computed.
    pub fn accept(&mut self, id: u32, workers: &mut MaskWorkers) {
        self.wait();
        if let State::Ready(Reply(Some(constraint), _)) = std::mem::replace(&mut self.0, State::Ready(Reply::lost())) {
            self.0 = request(Work::Accept(constraint, id), workers);
        }
    }

    /// Waits for what may be sampled next; the same until [`Masked::accept`].
    pub fn allowed(&mut self) -> Result<&Allowed, &str> {
        self.wait();
        match &self.0 {
            State::Ready(Reply(_, allowed)) => allowed.as_ref().map_err(String::as_str),
            State::New(_) | State::Waiting(_) => Err(LOST),
        }
    }

    fn wait(&mut self) {
        if let State::Waiting(reply) = &self.0 {
            // A worker that took the job always answers; a job that nobody took closes its channel.
            self.0 = State::Ready(reply.recv().unwrap_or_else(|_| Reply::lost()));
        }
    }
}

fn request(work: Work, workers: &mut MaskWorkers) -> State {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    workers.send(Job { work, reply: sender });
    State::Waiting(receiver)
}
