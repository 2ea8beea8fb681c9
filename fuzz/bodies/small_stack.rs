//! A thread with the stack size of a server's thread. It is reused, because starting one per input would take longer than most bodies.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

/// Stack size of the standard library's and the server's threads [bytes].
const STACK: usize = 2 << 20;

type Work = (fn(&[u8]), Vec<u8>);

struct Worker {
    work: Sender<Work>,
    done: Receiver<thread::Result<()>>,
}

static WORKER: LazyLock<Mutex<Worker>> = LazyLock::new(|| {
    let (work, of_work) = channel::<Work>();
    let (of_done, done) = channel();
    let follow = move || {
        for (body, input) in of_work {
            let result = catch_unwind(AssertUnwindSafe(|| body(&input)));
            if of_done.send(result).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("small stack".into()).stack_size(STACK).spawn(follow).expect("a thread");
    Mutex::new(Worker { work, done })
});

/// Runs `body` on the thread. A panic continues in the caller.
pub fn run(body: fn(&[u8]), input: &[u8]) {
    let worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    worker.work.send((body, input.to_vec())).expect("the thread waits for work");
    if let Err(panic) = worker.done.recv().expect("the thread answers") {
        resume_unwind(panic);
    }
}
