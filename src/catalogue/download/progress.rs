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
            return Self { bar: None, lines: true, meter: None };
        }
        let bar = ProgressBar::new(total.unwrap_or(0)).with_prefix(in_line(name).into_owned());
        set_style(&bar, if total.is_some() { BAR } else { NO_TOTAL });
        Self { bar: Some(bar), lines: false, meter: None }
    }

    pub fn silent() -> Self {
        Self { bar: None, lines: false, meter: None }
    }

    /// Shows nothing and updates `meter`.
    pub fn metered(meter: Arc<Meter>) -> Self {
        Self { bar: None, lines: false, meter: Some(meter) }
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

    pub fn set_total(&self, bytes: u64) {
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

    /// Sets the number of bytes received.
    pub fn set(&self, bytes: u64) {
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
