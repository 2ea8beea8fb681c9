//! Measures one input, in this process or in a separate one.

use std::fmt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use chat::Format;
use nix::time::{ClockId, clock_gettime};

use crate::input::Input;
use crate::places::Place;
use grammar::testing::compiler;

/// What an input costs the serving process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Size of the input [bytes].
    pub length: usize,
    /// Growth of the process while it handles the input [bytes].
    pub bytes: usize,
    /// Processor time [µs].
    pub micros: usize,
    pub compiles: bool,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {} {} {}", self.length, self.bytes, self.micros, u8::from(self.compiles))
    }
}

impl FromStr for Cost {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let numbers: Vec<usize> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [length, bytes, micros, compiles] = numbers[..] else { return Err(()) };
        Ok(Self { length, bytes, micros, compiles: compiles == 1 })
    }
}

/// Measures an input in this process.
pub fn once(place: &Place, numbers: &[u32]) -> Cost {
    let input = (place.build)(numbers);
    let (compiler, tokenizer) = compiler(fixtures::vocabulary("smollm2").path());
    // Warms up: the cost of the first grammar must not count for a later one.
    assert!(Input::Format(Format::Regex("a".into())).compile(&compiler, &tokenizer), "a grammar");
    // Resets the high-water mark.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let (before, start) = (status("VmRSS:"), processor_time());
    let compiles = input.compile(&compiler, &tokenizer);
    let micros = processor_time().saturating_sub(start).as_micros() as usize;
    Cost { length: input.len(), bytes: status("VmHWM:").saturating_sub(before), micros, compiles }
}

/// Measures an input in a separate process. Returns `None` if that process ended without a result, which is the worst outcome.
pub fn apart(place: &Place, numbers: &[u32]) -> Option<Cost> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["once", place.name]).args(numbers.iter().map(u32::to_string)).stderr(Stdio::null());
    let output = command.output().expect("a process");
    String::from_utf8_lossy(&output.stdout).parse().ok()
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn status(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib << 10)
}
