//! Progress on stderr: a bar on a terminal, otherwise one line per stage.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use outside::{in_line, visible};

use super::error::PullError;

const BAR: &str = "{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
const NO_TOTAL: &str = "{prefix} {spinner} {bytes} {bytes_per_sec} {msg}";

/// The progress of one download.
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    meter: Option<Arc<Meter>>,
    /// The bytes of the files before the current one.
    before: AtomicU64,
    /// The size of all files, if it is known [bytes]. 0 otherwise.
    whole: AtomicU64,
}

/// The progress of a download in numbers, for another thread.
#[derive(Debug, Default)]
pub struct Meter {
    done: AtomicU64,
    /// 0 if unknown.
    total: AtomicU64,
    is_given_up: AtomicBool,
}

impl Meter {
    /// Ends the download at its next step.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// The number of bytes received.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The total number of bytes, if known.
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }
}

impl Progress {
    /// `total`: the size, if known [bytes].
    pub fn new(name: &str, total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::of(None, true, None);
        }
        let bar = ProgressBar::new(total.unwrap_or(0)).with_prefix(in_line(name).into_owned());
        set_style(&bar, if total.is_some() { BAR } else { NO_TOTAL });
        Self::of(Some(bar), false, None)
    }

    fn of(bar: Option<ProgressBar>, lines: bool, meter: Option<Arc<Meter>>) -> Self {
        Self { bar, lines, meter, before: AtomicU64::default(), whole: AtomicU64::default() }
    }

    pub fn silent() -> Self {
        Self::of(None, false, None)
    }

    /// Shows nothing and updates `meter`.
    pub fn metered(meter: Arc<Meter>) -> Self {
        Self::of(None, false, Some(meter))
    }

    /// Shows the current stage.
    pub fn stage(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(in_line(text).into_owned());
        } else if self.lines {
            let _ = writeln!(std::io::stderr(), "{}", visible(text));
        }
    }

    /// Shows a message that stays on the screen.
    pub fn note(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.suspend(|| drop(writeln!(std::io::stderr(), "{}", visible(text))));
        } else if self.lines {
            let _ = writeln!(std::io::stderr(), "{}", visible(text));
        }
    }

    /// Begins the next of several files. `before`: the bytes of those before it. `whole`: those of all, if known.
    pub fn begin_file(&self, before: u64, whole: Option<u64>) {
        self.before.store(if whole.is_some() { before } else { 0 }, Ordering::Relaxed);
        self.whole.store(whole.unwrap_or(0), Ordering::Relaxed);
        whole.iter().for_each(|bytes| self.show_total(*bytes));
        self.set(0);
    }

    /// Sets the size of the current file.
    pub fn set_total(&self, bytes: u64) {
        if self.whole.load(Ordering::Relaxed) == 0 {
            self.show_total(bytes);
        }
    }

    fn show_total(&self, bytes: u64) {
        self.meter.iter().for_each(|meter| meter.total.store(bytes, Ordering::Relaxed));
        if let Some(bar) = &self.bar {
            set_style(bar, BAR);
            bar.set_length(bytes);
        }
    }

    /// # Errors
    /// The download was given up.
    pub fn check(&self) -> Result<(), PullError> {
        if self.meter.as_ref().is_some_and(|meter| meter.is_given_up()) { Err(PullError::GivenUp) } else { Ok(()) }
    }

    /// Sets the number of bytes received of the current file.
    pub fn set(&self, bytes: u64) {
        let bytes = bytes.saturating_add(self.before.load(Ordering::Relaxed));
        self.meter.iter().for_each(|meter| meter.done.store(bytes, Ordering::Relaxed));
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
