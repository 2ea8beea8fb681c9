//! Faults that only a new process cures: a lost device, and a step that does not return.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::shared::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step exceeded its time limit.
    Stuck,
    DeviceLost,
}

/// How to watch an engine whose faults only a new process cures.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    /// The longest time a step may take.
    pub step_timeout: Duration,
    /// Called once, after every client was told. It must not block.
    pub on_fault: fn(Fault),
}

/// Measures how long the current step has been running.
pub struct StepTimer {
    started: Instant,
    /// Milliseconds from `started`, plus one. 0: no step runs.
    step_began: AtomicU64,
}

impl StepTimer {
    pub fn new() -> Self {
        Self { started: Instant::now(), step_began: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    pub fn begin_step(&self) {
        self.step_began.store(self.now(), Ordering::Release);
    }

    pub fn end_step(&self) {
        self.step_began.store(0, Ordering::Release);
    }

    /// Age of the current step; None if no step runs.
    fn age(&self) -> Option<Duration> {
        let began = self.step_began.load(Ordering::Acquire);
        (began > 0).then(|| Duration::from_millis(self.now().saturating_sub(began)))
    }
}

/// Starts the thread that looks for an overdue step. The thread ends when the engine thread drops its `timer`.
pub fn watch(watchdog: Watchdog, timer: &Arc<StepTimer>, shared: Arc<Shared>) -> std::io::Result<()> {
    let timer = Arc::downgrade(timer);
    let period = (watchdog.step_timeout / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let run = move || {
        while let Some(timer) = timer.upgrade() {
            if timer.age().is_some_and(|age| age > watchdog.step_timeout) {
                let reason = format!("the engine failed: a step did not return within {:.1} s", watchdog.step_timeout.as_secs_f64());
                tracing::error!("{reason}");
                shared.lose();
                shared.tell_all(&Event::Failed(reason));
                (watchdog.on_fault)(Fault::Stuck);
                return;
            }
            drop(timer);
            std::thread::sleep(period);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
}
