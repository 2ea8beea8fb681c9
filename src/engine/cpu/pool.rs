//! The engine's own threads: fork-join over indexed tasks, spinning for a bounded time and then parked.
//!
//! A decode step joins some 150 times, so waking a sleeping thread each time would cost more than the work;
//! spinning without bound would starve the other threads of a busy machine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

/// Rounds of `spin_loop` before a thread parks: some tens of microseconds.
const SPIN_ROUNDS: usize = 20_000;

type Task = dyn Fn(usize, usize) + Sync;

struct Shared {
    /// Raised by one for each job; its change is the signal to start.
    epoch: AtomicUsize,
    /// The job: only read between a raised epoch and the worker's check-out.
    task: Mutex<Option<*const Task>>,
    next: AtomicUsize,
    num_tasks: AtomicUsize,
    /// Workers that have not finished this epoch.
    busy: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the task pointer is only dereferenced while `run` keeps its referent alive (see there); all else is Sync.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// `num_threads - 1` workers beside the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
}

impl Pool {
    pub fn new(num_threads: usize) -> Self {
        let num_workers = num_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            task: Mutex::new(None),
            next: AtomicUsize::new(0),
            num_tasks: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            parked: (0..num_workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers: Vec<_> = (0..num_workers)
            .map(|i| {
                let shared = shared.clone();
                thread::Builder::new().name(format!("engine-{}", i + 1)).spawn(move || worker(&shared, i)).expect("a worker thread starts")
            })
            .collect();
        let handles = workers.iter().map(|w| w.thread().clone()).collect();
        Self { shared, workers, handles }
    }

    /// Threads that run tasks, the caller's included.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index, thread)` for every index below `num_tasks`, spread over the threads; returns when all are done.
    /// A panic of any task is raised again here.
    pub fn run(&mut self, num_tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if num_tasks <= 1 || self.workers.is_empty() {
            (0..num_tasks).for_each(|i| task(i, 0));
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the pointer between the epoch's rise and their decrement of `busy`,
        // and this function does not return (nor unwind) before `busy` is zero.
        let erased = unsafe { std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync), *const Task>(task) };
        *shared.task.lock().expect("no holder panics") = Some(erased);
        shared.next.store(0, Relaxed);
        shared.num_tasks.store(num_tasks, Relaxed);
        shared.busy.store(self.workers.len(), Relaxed);
        shared.epoch.fetch_add(1, SeqCst);
        for (flag, handle) in shared.parked.iter().zip(&self.handles) {
            if flag.load(SeqCst) {
                handle.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| drain(shared, task, 0)));
        let mut rounds = 0;
        while shared.busy.load(Acquire) != 0 {
            rounds += 1;
            if rounds < SPIN_ROUNDS { std::hint::spin_loop() } else { thread::yield_now() }
        }
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        if let Some(panic) = shared.panic.lock().expect("no holder panics").take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        self.handles.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn drain(shared: &Shared, task: &(dyn Fn(usize, usize) + Sync), thread: usize) {
    let num_tasks = shared.num_tasks.load(Relaxed);
    loop {
        let i = shared.next.fetch_add(1, Relaxed);
        if i >= num_tasks {
            return;
        }
        task(i, thread);
    }
}

fn worker(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut rounds = 0;
        while shared.epoch.load(Acquire) == seen {
            rounds += 1;
            if rounds < SPIN_ROUNDS {
                std::hint::spin_loop();
                continue;
            }
            shared.parked[index].store(true, SeqCst);
            if shared.epoch.load(SeqCst) == seen {
                thread::park();
            }
            shared.parked[index].store(false, SeqCst);
        }
        seen = shared.epoch.load(Acquire);
        if shared.stop.load(SeqCst) {
            return;
        }
        let task = shared.task.lock().expect("no holder panics").expect("an epoch has a task");
        // SAFETY: `run` keeps the task alive until `busy` is zero, which happens below.
        let task = unsafe { &*task };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drain(shared, task, index + 1))) {
            *shared.panic.lock().expect("no holder panics") = Some(panic);
        }
        shared.busy.fetch_sub(1, Release);
    }
}

/// A buffer that tasks write at once, each its own part.
#[derive(Clone, Copy)]
pub struct Disjoint<T>(*mut T, usize);

// SAFETY: only `slice` gives access, whose contract is that parts do not overlap.
unsafe impl<T: Send> Send for Disjoint<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    pub fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr(), buffer.len())
    }

    /// # Safety
    /// The buffer is alive, and no other live slice overlaps `start..start + len`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.1), "a task stays within its buffer");
        // SAFETY: within the buffer by the assertion, disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// # Safety
    /// As [`Disjoint::slice`], for what is written through the pointer.
    pub unsafe fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.1, "a task stays within its buffer");
        // SAFETY: within the buffer or one past its end.
        unsafe { self.0.add(start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_panics_come_back() {
        let mut pool = Pool::new(3);
        for n in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n, &|i, _| {
                counts[i].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Relaxed) == 1));
        }
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(64, &|i, _| assert!(i != 40, "task forty"))));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i, _| {
            sum.fetch_add(i, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 45);
    }
}
