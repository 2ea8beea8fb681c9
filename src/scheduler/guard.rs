//! Faults that only a new process cures: a device that is lost, and a step that does not return.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Event;
use super::sequence::Shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step took longer than it may.
    Stuck,
    DeviceLost,
}

/// What watches over an engine whose faults outlive it.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// The longest that a step may take.
    pub step_timeout: Duration,
    /// Called once, after everyone was told; it must not wait.
    pub on_fault: fn(Fault),
}

/// When the step that runs began.
pub(super) struct Pulse {
    started: Instant,
    /// Milliseconds from `started`, plus one; 0: no step runs.
    step_began: AtomicU64,
}

impl Pulse {
    pub fn new() -> Self {
        Self { started: Instant::now(), step_began: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    pub fn begin(&self) {
        self.step_began.store(self.now(), Ordering::Release);
    }

    pub fn end(&self) {
        self.step_began.store(0, Ordering::Release);
    }

    /// How long the step that runs has taken.
    fn age(&self) -> Option<Duration> {
        let began = self.step_began.load(Ordering::Acquire);
        (began > 0).then(|| Duration::from_millis(self.now().saturating_sub(began)))
    }
}

/// Starts the thread that looks for an overdue step. It ends with the engine thread, which holds the other end of `pulse`.
pub(super) fn watch(guard: Guard, pulse: &Arc<Pulse>, shared: Arc<Shared>) -> std::io::Result<()> {
    let pulse = Arc::downgrade(pulse);
    let period = (guard.step_timeout / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let run = move || {
        while let Some(pulse) = pulse.upgrade() {
            if pulse.age().is_some_and(|age| age > guard.step_timeout) {
                let reason = format!("the engine failed: a step did not return within {:.1} s", guard.step_timeout.as_secs_f64());
                tracing::error!("{reason}");
                shared.lose();
                shared.tell_all(&Event::Failed(reason));
                (guard.on_fault)(Fault::Stuck);
                return;
            }
            drop(pulse);
            std::thread::sleep(period);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
}
