//! Runs indexed tasks on the engine's own threads, by fork and join. An idle worker spins for a bounded time and then parks.
//!
//! A decode step joins about 200 times, so waking a sleeping thread each time would cost more than the work. On a busy machine a worker may
//! not get a processor for milliseconds. The caller then runs the tasks itself, and waits only for tasks that a worker has started.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::Progress;

/// How long an idle worker spins before it parks.
const IDLE_SPIN: Duration = Duration::from_micros(100);
/// How long the caller spins for tasks that workers have started, before it yields its processor.
const JOIN_SPIN: Duration = Duration::from_micros(20);

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The most tasks per job: a ticket has 20 bits for them.
const MAX_TASKS: usize = (1 << 20) - 1;

/// A job's number, its number of tasks and its next task, in one word. A thread that adds one to the word learns which task it has taken
/// and whether any was left. It reads nothing that a newer job may have changed.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn new(job: u64, num_tasks: usize) -> Self {
        Self(job << 42 | (num_tasks as u64) << 22)
    }

    fn job(self) -> u64 {
        self.0 >> 42
    }

    /// The task that was taken. None if no task is left.
    fn task(self) -> Option<usize> {
        let (num_tasks, next) = ((self.0 >> 22) & MAX_TASKS as u64, self.0 & 0x3f_ffff);
        (next < num_tasks).then_some(next as usize)
    }
}

struct Shared {
    ticket: AtomicU64,
    /// A reference to the job's closure, which outlives every taken task.
    task: AtomicPtr<&'static Task<'static>>,
    /// The number of finished tasks of all jobs.
    done: Progress,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    /// Runs tasks until none is left.
    fn drain(&self, thread: usize) {
        while let Some(index) = Ticket(self.ticket.fetch_add(1, AcqRel)).task() {
            // SAFETY: a job does not end before its taken tasks do, so the pointer is this job's and `run` keeps its referent alive.
            let task = unsafe { *self.task.load(Acquire) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(index, thread))) {
                *self.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(panic);
            }
            self.done.add();
        }
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let idle = Instant::now();
            while Ticket(self.ticket.load(Acquire)).job() == seen {
                if !spin(idle, IDLE_SPIN) {
                    self.parked[index].store(true, Relaxed);
                    // Either this thread sees a new job, or the job's publisher sees the flag. The publisher has the other fence.
                    fence(SeqCst);
                    if Ticket(self.ticket.load(Relaxed)).job() == seen {
                        thread::park();
                    }
                    self.parked[index].store(false, Relaxed);
                }
            }
            seen = Ticket(self.ticket.load(Acquire)).job();
            if self.stop.load(Relaxed) {
                return;
            }
            self.drain(index + 1);
        }
    }
}

/// Spins for a moment. Returns false if `limit` has passed.
fn spin(since: Instant, limit: Duration) -> bool {
    for _ in 0..32 {
        std::hint::spin_loop();
    }
    since.elapsed() < limit
}

/// A pool of `num_threads - 1` workers and the calling thread.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    job: u64,
}

impl ThreadPool {
    /// Starts the workers.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(num_threads: usize) -> io::Result<Self> {
        let num_workers = num_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            done: Progress::default(),
            parked: (0..num_workers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        // filled one by one, so that dropping the pool after an error stops the threads that did start
        let mut pool = Self { shared, workers: Vec::with_capacity(num_workers), job: 0 };
        for i in 0..num_workers {
            let shared = pool.shared.clone();
            pool.workers.push(thread::Builder::new().name(format!("engine-{}", i + 1)).spawn(move || shared.work(i))?);
        }
        Ok(pool)
    }

    /// The number of threads that run tasks, including the caller.
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// A counter that grows with every finished task.
    pub fn progress(&self) -> Progress {
        self.shared.done.clone()
    }

    /// Calls `task(index, thread)` for every index below `num_tasks`, spread over the threads. Returns when all calls have returned. Raises
    /// the panic of any task again.
    pub fn run(&mut self, num_tasks: usize, task: &Task) {
        if num_tasks <= 1 || self.workers.is_empty() {
            return (0..num_tasks).for_each(|i| {
                task(i, 0);
                self.shared.done.add();
            });
        }
        assert!(num_tasks <= MAX_TASKS, "a job has at most {MAX_TASKS} tasks");
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Only threads that took a task use the pointer, and this function does not return (nor unwind)
        // before `done` has counted every task.
        let task: &'static Task<'static> = unsafe { std::mem::transmute::<&Task, &'static Task<'static>>(task) };
        // No task of an earlier job is left.
        let all_done = shared.done.count() + num_tasks as u64;
        shared.task.store((&raw const task).cast_mut(), Release);
        self.publish(num_tasks);
        self.shared.drain(0);
        let waiting = Instant::now();
        while self.shared.done.count() != all_done {
            if !spin(waiting, JOIN_SPIN) {
                thread::yield_now();
            }
        }
        let panic = self.shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Announces a job and wakes the parked workers.
    fn publish(&mut self, num_tasks: usize) {
        self.job = (self.job + 1) & ((1 << 22) - 1);
        self.shared.ticket.store(Ticket::new(self.job, num_tasks).0, Release);
        fence(SeqCst);
        for (flag, worker) in self.shared.parked.iter().zip(&self.workers) {
            if flag.load(Relaxed) {
                Thread::unpark(worker.thread());
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.publish(0);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// A buffer that tasks write in parallel. Each task writes its own part.
#[derive(Clone, Copy)]
pub struct Disjoint<T>(*mut T, usize);

// SAFETY: all access goes through `slice` and `at`, whose contract is that parts do not overlap.
unsafe impl<T: Send> Send for Disjoint<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<T> {}

impl<T> Disjoint<T> {
    pub fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr(), buffer.len())
    }

    /// Borrows `len` items that start at `start`.
    ///
    /// # Safety
    /// The buffer is alive, and no other live slice overlaps `start..start + len`.
    #[allow(clippy::mut_from_ref, reason = "callers promise that slices do not overlap")]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.1), "a task stays within its buffer");
        // SAFETY: within the buffer by the assertion, disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// A pointer to the item at `start`.
    ///
    /// # Safety
    /// The conditions of [`Disjoint::slice`], for everything that is written through the pointer.
    pub unsafe fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.1, "a task stays within its buffer");
        // SAFETY: the pointer is within the buffer or one past its end.
        unsafe { self.0.add(start) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn progress_counts_every_task_while_the_job_runs() {
        for threads in [1, 3] {
            let mut pool = ThreadPool::new(threads).unwrap();
            let (progress, most) = (pool.progress(), AtomicU64::new(0));
            pool.run(20, &|_, _| {
                most.fetch_max(progress.count(), Relaxed);
                thread::sleep(Duration::from_millis(1));
            });
            assert!(most.load(Relaxed) >= 10, "{} of 20 tasks were counted before the job's end", most.load(Relaxed));
            pool.run(1, &|_, _| {});
            assert_eq!(progress.count(), 21);
        }
    }

    #[test]
    fn every_task_runs_once_and_the_caller_sees_a_panic() {
        let mut pool = ThreadPool::new(3).unwrap();
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
