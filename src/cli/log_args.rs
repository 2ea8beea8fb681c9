//! Flags of the log.

use crate::config::{Config, LogFormat, Overrides};
use crate::telemetry::Log;

#[derive(clap::Args, Debug)]
pub struct LogArgs {
    /// The log level: off, error, warn, info, debug or trace, or a list such as warn,penstock::access=info
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Log warnings and errors only
    #[arg(short, long, conflicts_with_all = ["log", "verbose"])]
    quiet: bool,
    /// Also log probes and details
    #[arg(short, long, conflicts_with = "log")]
    verbose: bool,
    /// The format: text, or json with one object per line
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Adds these flags to the settings.
    pub fn add_to(&self, overrides: Overrides) -> Overrides {
        let level = if self.quiet { Some("warn") } else { self.verbose.then_some("debug") };
        Overrides { log: self.log.clone().or(level.map(str::to_owned)), log_format: self.log_format, ..overrides }
    }

    /// The log's settings, from a configuration that already includes these flags.
    pub fn of<'a>(&self, config: &'a Config) -> Log<'a> {
        let is_flag = self.log.is_some() || self.quiet || self.verbose;
        Log { filter: &config.server.log, is_flag, format: config.server.log_format }
    }
}
