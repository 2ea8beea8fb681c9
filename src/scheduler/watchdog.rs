//! Detects faults that only a new process cures: a lost device, and an engine that hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine_fault::EngineFault;
use crate::engine_state::EngineState;
use crate::event::Event;
use engine::Progress;
use metrics::EngineGauges;

/// Settings for watching an engine whose faults only a new process cures.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    /// The longest time without progress while there is work. Progress is a submitted or collected step and, if the engine reports it, the
    /// end of a piece of a step. A step of many tokens may take minutes on a slow processor. A piece of it takes milliseconds.
    pub step_timeout: Duration,
    /// Called once, after every client was told and if the model has no other engine left. It must not block.
    pub on_fault: fn(EngineFault),
}

/// The engine thread's activity, as the watchdog sees it. A thread that has work but neither submits nor collects steps counts as stuck,
/// like a thread that waits for its device.
pub struct Heartbeat {
    /// Number of steps submitted or collected. [`IDLE`] while there is no work.
    num_turns: AtomicU64,
    progress: Option<Progress>,
}

const IDLE: u64 = u64::MAX;

impl Heartbeat {
    pub fn new(progress: Option<Progress>) -> Self {
        Self { num_turns: AtomicU64::new(0), progress }
    }

    /// Records that there is work, and the number of steps submitted or collected so far.
    pub fn work(&self, num_turns: u64) {
        self.num_turns.store(num_turns, Ordering::Release);
    }

    /// Records that there is nothing to do.
    pub fn rest(&self) {
        self.num_turns.store(IDLE, Ordering::Release);
    }

    /// Counts as progress, for a step that waits for something other than its engine.
    pub fn tick(&self) {
        self.num_turns.fetch_add(1, Ordering::Release);
    }

    /// A value that changes with any progress. None if there is no work.
    fn beat(&self) -> Option<(u64, u64)> {
        let num_turns = self.num_turns.load(Ordering::Acquire);
        (num_turns != IDLE).then(|| (num_turns, self.progress.as_ref().map_or(0, Progress::count)))
    }
}

/// Measures how long a heartbeat has not changed while there was work.
struct StallDetector {
    beat: Option<(u64, u64)>,
    looked: Instant,
    silent: Duration,
}

impl StallDetector {
    /// Samples the heartbeat and returns how long it has been silent. At most `most` of the time since the last call is counted. If more
    /// time has passed, the process was stopped, and its engine too.
    fn look(&mut self, beat: Option<(u64, u64)>, now: Instant, most: Duration) -> Duration {
        let since = now.saturating_duration_since(self.looked).min(most);
        let is_silent = beat.is_some() && beat == self.beat;
        self.silent = if is_silent { self.silent + since } else { Duration::ZERO };
        (self.beat, self.looked) = (beat, now);
        self.silent
    }
}

/// Starts the thread that detects a hanging engine. The thread ends when the engine thread drops its `heartbeat`.
pub fn watch(watchdog: Watchdog, heartbeat: &Arc<Heartbeat>, state: Arc<EngineState>, gauges: &Arc<EngineGauges>) -> std::io::Result<()> {
    let (heartbeat, gauges) = (Arc::downgrade(heartbeat), Arc::downgrade(gauges));
    let period = (watchdog.step_timeout / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let run = move || {
        let mut stall = StallDetector { beat: None, looked: Instant::now(), silent: Duration::ZERO };
        while let Some(heartbeat) = heartbeat.upgrade() {
            if stall.look(heartbeat.beat(), Instant::now(), 2 * period) > watchdog.step_timeout {
                let reason = format!("the engine failed: it made no progress within {:.1} s", watchdog.step_timeout.as_secs_f64());
                tracing::error!("{reason}");
                state.lose();
                state.tell_all(&Event::Failed(reason));
                gauges.upgrade().iter().for_each(|gauges| gauges.leave());
                if let Some(fault) = state.fail(Some(EngineFault::Stuck)) {
                    (watchdog.on_fault)(fault);
                }
                return;
            }
            drop(heartbeat);
            std::thread::sleep(period);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_without_progress_is_silent_and_a_stopped_process_is_not() {
        let start = Instant::now();
        let mut stall = StallDetector { beat: None, looked: start, silent: Duration::ZERO };
        let mut look = |beat, at: u64| stall.look(beat, start + Duration::from_secs(at), Duration::from_secs(2)).as_secs();
        assert_eq!([look(None, 1), look(None, 2)], [0, 0], "nothing to do");
        assert_eq!([look(Some((1, 0)), 3), look(Some((1, 0)), 4), look(Some((1, 0)), 5)], [0, 1, 2]);
        assert_eq!([look(Some((1, 1)), 6), look(Some((1, 1)), 7)], [0, 1], "a piece of the step has ended");
        assert_eq!([look(Some((3, 1)), 8), look(Some((3, 1)), 9)], [0, 1], "another step");
        assert_eq!([look(Some((3, 1)), 100), look(Some((3, 1)), 101)], [3, 4], "a minute and a half in which nobody looked");
    }
}
