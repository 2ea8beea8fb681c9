//! Threads with a large stack. On a server's thread, whose stack has 2 MiB, a deep syntax tree or a deeply nested value could overflow the
//! stack and abort the process. To start a thread takes as long as a short render, so a thread waits a while for another one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::TemplateError;

/// In bytes of address space. Only the pages that a render touches take memory.
const STACK: usize = 256 << 20;
/// The most threads that wait. More may work.
const MAX_IDLE: usize = 4;
/// How long a thread waits. With it, the memory of its stack goes.
const PATIENCE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that waits.
struct Idle {
    thread: ThreadId,
    jobs: Sender<Job>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// Runs `f` on a thread with a large stack.
pub fn on_large_stack<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T, TemplateError> {
    let (sender, result) = sync_channel(1);
    let job: Job = Box::new(move || {
        // The caller waits for it.
        let _ = sender.send(f());
    });
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let jobs = match idle {
        Some(idle) => idle.jobs,
        None => start().map_err(|e| TemplateError::Invalid(format!("the rendering thread did not start: {e}")))?,
    };
    // A thread takes every job that it is sent, so this fails only as the next line does.
    let _ = jobs.send(job);
    result.recv().map_err(|_| TemplateError::Invalid("the renderer panicked".into()))
}

fn start() -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    let own = sender.clone();
    thread::Builder::new().name("chat-template".into()).stack_size(STACK).spawn(move || work(&jobs, &own))?;
    Ok(sender)
}

/// Runs jobs until one panics, none comes for a while, or enough threads wait already.
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
                    // Somebody has taken this thread, whose job is on its way.
                    None => continue,
                }
            }
        };
        // A panic may have left anything behind on this thread.
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
