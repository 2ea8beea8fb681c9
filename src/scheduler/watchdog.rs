//! Faults that only a new process cures: a lost device, and an engine that hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::shared::Shared;
use engine::Progress;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step made no progress within its time limit.
    Stuck,
    DeviceLost,
}

/// How to watch an engine whose faults only a new process cures.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    /// The longest time without progress while a step runs. Progress is the end of a step, and for an engine that can tell, the end of a
    /// piece of one: a step of many tokens may take minutes on a slow processor, a piece of it takes milliseconds.
    pub step_timeout: Duration,
    /// Called once, after every client was told. It must not block.
    pub on_fault: fn(Fault),
}

/// What the engine thread does, as the watchdog sees it.
pub struct Pulse {
    /// Steps that began or ended: odd while one runs.
    num_turns: AtomicU64,
    progress: Option<Progress>,
}

impl Pulse {
    pub fn new(progress: Option<Progress>) -> Self {
        Self { num_turns: AtomicU64::new(0), progress }
    }

    pub fn begin_step(&self) {
        self.num_turns.fetch_add(1, Ordering::Release);
    }

    pub fn end_step(&self) {
        self.num_turns.fetch_add(1, Ordering::Release);
    }

    /// The step waits for something that is not its engine.
    pub fn tick(&self) {
        self.num_turns.fetch_add(2, Ordering::Release);
    }

    /// Changes with every turn and with all progress. None if no step runs.
    fn beat(&self) -> Option<(u64, u64)> {
        let num_turns = self.num_turns.load(Ordering::Acquire);
        (num_turns % 2 == 1).then(|| (num_turns, self.progress.as_ref().map_or(0, Progress::count)))
    }
}

/// How long a pulse has not changed while a step ran, seen from outside.
struct Silence {
    beat: Option<(u64, u64)>,
    looked: Instant,
    silent: Duration,
}

impl Silence {
    /// Looks at the pulse. Of the time since the last look, at most `most` counts: if the watchdog did not run for longer, the process was
    /// stopped, and the engine with it.
    fn look(&mut self, beat: Option<(u64, u64)>, now: Instant, most: Duration) -> Duration {
        let since = now.saturating_duration_since(self.looked).min(most);
        let is_silent = beat.is_some() && beat == self.beat;
        self.silent = if is_silent { self.silent + since } else { Duration::ZERO };
        (self.beat, self.looked) = (beat, now);
        self.silent
    }
}

/// Starts the thread that looks for an engine that hangs. The thread ends when the engine thread drops its `pulse`.
pub fn watch(watchdog: Watchdog, pulse: &Arc<Pulse>, shared: Arc<Shared>) -> std::io::Result<()> {
    let pulse = Arc::downgrade(pulse);
    let period = (watchdog.step_timeout / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    let run = move || {
        let mut silence = Silence { beat: None, looked: Instant::now(), silent: Duration::ZERO };
        while let Some(pulse) = pulse.upgrade() {
            if silence.look(pulse.beat(), Instant::now(), 2 * period) > watchdog.step_timeout {
                let reason = format!("the engine failed: a step made no progress within {:.1} s", watchdog.step_timeout.as_secs_f64());
                tracing::error!("{reason}");
                shared.lose();
                shared.tell_all(&Event::Failed(reason));
                (watchdog.on_fault)(Fault::Stuck);
                return;
            }
            drop(pulse);
            std::thread::sleep(period);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_step_without_progress_is_silent_and_a_stopped_process_is_not() {
        let start = Instant::now();
        let mut silence = Silence { beat: None, looked: start, silent: Duration::ZERO };
        let mut look = |beat, at: u64| silence.look(beat, start + Duration::from_secs(at), Duration::from_secs(2)).as_secs();
        assert_eq!([look(None, 1), look(None, 2)], [0, 0], "no step runs");
        assert_eq!([look(Some((1, 0)), 3), look(Some((1, 0)), 4), look(Some((1, 0)), 5)], [0, 1, 2]);
        assert_eq!([look(Some((1, 1)), 6), look(Some((1, 1)), 7)], [0, 1], "a piece of the step has ended");
        assert_eq!([look(Some((3, 1)), 8), look(Some((3, 1)), 9)], [0, 1], "another step");
        assert_eq!([look(Some((3, 1)), 100), look(Some((3, 1)), 101)], [3, 4], "a minute and a half in which nobody looked");
    }
}
