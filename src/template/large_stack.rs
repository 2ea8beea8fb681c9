//! Runs jobs on threads with a large stack. On a server's thread with a stack of 2 MiB, a deep syntax tree or a deeply nested value could
//! overflow the stack and abort the process. Starting a thread takes as long as a short render, so an idle thread waits a while for another
//! job.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::TemplateError;

/// The size of a stack [bytes of address space]. Only the pages that a render touches take memory.
const STACK: usize = 256 << 20;
/// The most idle threads. More may be working.
const MAX_IDLE: usize = 4;
/// The time after which an idle thread ends, which frees its stack's memory.
const PATIENCE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// An idle thread.
struct Idle {
    thread: ThreadId,
    jobs: Sender<Job>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// Runs `f` on a thread with a large stack.
pub fn on_large_stack<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T, TemplateError> {
    let (sender, result) = sync_channel(1);
    let job: Job = Box::new(move || {
        // The caller is waiting for the result.
        let _ = sender.send(f());
    });
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let jobs = match idle {
        Some(idle) => idle.jobs,
        None => start().map_err(|e| TemplateError::Invalid(format!("the rendering thread did not start: {e}")))?,
    };
    // A thread runs every job that it is sent, so this fails only if the next line fails too.
    let _ = jobs.send(job);
    result.recv().map_err(|_| TemplateError::Invalid("the renderer panicked".into()))
}

fn start() -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    let own = sender.clone();
    thread::Builder::new().name("chat-template".into()).stack_size(STACK).spawn(move || work(&jobs, &own))?;
    Ok(sender)
}

/// Runs jobs until one panics, none arrives for a while, or enough other threads are idle.
fn work(jobs: &Receiver<Job>, own: &Sender<Job>) {
    let thread = thread::current().id();
    loop {
        let job = match jobs.recv_timeout(PATIENCE) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
                match idle.iter().position(|idle| idle.thread == thread) {
                    Some(at) => {
                        idle.remove(at);
                        return;
                    }
                    // This thread was just taken, and its job is on the way.
                    None => continue,
                }
            }
        };
        // After a panic, the state of this thread is unknown, so the thread ends.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            return;
        }
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MAX_IDLE {
            return;
        }
        idle.push(Idle { thread, jobs: own.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_used_again_and_a_panic_ends_one() {
        let id = || thread::current().id();
        let used: Vec<ThreadId> = (0..50).map(|_| on_large_stack(id).unwrap()).collect();
        let distinct = used.iter().collect::<std::collections::HashSet<_>>().len();
        assert!(distinct < 50 && !used.contains(&id()), "{distinct} threads");
        let panicked: Result<(), _> = on_large_stack(|| std::panic::resume_unwind(Box::new("a bug in a renderer")));
        assert!(panicked.unwrap_err().to_string().contains("the renderer panicked"));
        assert!(IDLE.lock().unwrap().len() <= MAX_IDLE);
        assert_eq!(on_large_stack(|| 7).unwrap(), 7);
    }

    #[test]
    fn many_may_work_at_once() {
        let threads: Vec<_> = (0..20).map(|i| thread::spawn(move || on_large_stack(move || i).unwrap())).collect();
        let sum: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(sum, 190);
    }
}
