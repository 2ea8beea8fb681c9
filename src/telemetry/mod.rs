//! Telemetry: the log on stderr, and OpenTelemetry spans.

mod lines;
mod shorten;
pub mod traces;

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::{EnvFilter, reload};

pub use lines::flush;

use config::{LogFormat, log_filter};

/// Whether log lines are JSON objects.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Settings of the log.
pub struct Log<'a> {
    /// A level or a list of directives (`info`, `warn,penstock::access=info`).
    pub filter: &'a str,
    /// Whether the filter comes from a flag. Otherwise `RUST_LOG` overrides it.
    pub is_flag: bool,
    pub format: LogFormat,
}

/// Starts logging. A second call has no effect.
pub fn init(log: &Log) -> anyhow::Result<()> {
    let filter = filter(log, std::env::var("RUST_LOG").ok())?;
    let is_coloured = std::io::stderr().is_terminal() && log.format == LogFormat::Text;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_coloured)
        // The layer would report a failed write with `eprintln!`, which panics if stderr is what failed.
        .log_internal_errors(false);
    let started = match log.format {
        LogFormat::Text => {
            let builder = builder.with_writer(if is_coloured { lines::coloured } else { lines::text }).with_filter_reloading();
            keep(builder.reload_handle());
            builder.try_init()
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false).with_span_list(false);
            let builder = builder.with_writer(lines::json).with_filter_reloading();
            keep(builder.reload_handle());
            builder.try_init()
        }
    };
    // Fails if logging has started already: in tests, or if one command runs another.
    if started.is_ok() {
        IS_JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// Replaces the filter of the log.
static REPLACE: OnceLock<Box<dyn Fn(EnvFilter) -> bool + Send + Sync>> = OnceLock::new();

fn keep<S: 'static>(handle: reload::Handle<EnvFilter, S>) {
    // If a log exists already, that log and its handle stay.
    let _ = REPLACE.set(Box::new(move |filter| handle.reload(filter).is_ok()));
}

/// Checks new settings of the log. Returns a function that applies their filter.
///
/// # Errors
/// The filter is wrong.
pub fn change(log: &Log) -> anyhow::Result<impl FnOnce() + use<>> {
    let filter = filter(log, std::env::var("RUST_LOG").ok())?;
    Ok(move || {
        // None if the process has no log.
        let _ = REPLACE.get().map(|replace| replace(filter));
    })
}

fn filter(log: &Log, variable: Option<String>) -> anyhow::Result<EnvFilter> {
    match variable.filter(|text| !text.is_empty() && !log.is_flag) {
        Some(text) => log_filter(&text).map_err(|fault| anyhow::anyhow!("environment variable RUST_LOG: {fault}")),
        None => log_filter(log.filter).map_err(|fault| anyhow::anyhow!(fault)),
    }
}

/// Queues a line for stderr. Never blocks.
pub fn print_line(text: &str) {
    lines::print(text);
}

/// Queues an error that ends the command. Never blocks.
pub fn print_error(text: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        tracing::error!("{}", outside::visible(text));
    } else {
        lines::print(&format!("penstock: {text}"));
    }
}

/// Logs a panic. The default hook writes to stderr directly, which may block for ever.
fn log_panic(panic: &std::panic::PanicHookInfo) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    let (text, place) = (text.unwrap_or("no text").escape_debug(), panic.location().map(ToString::to_string).unwrap_or_default());
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        tracing::error!("the thread `{name}` panicked at {place}: {text}\n{trace}");
    } else {
        tracing::error!("the thread `{name}` panicked at {place}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_goes_before_the_variable_and_the_variable_before_the_configuration() {
        let of = |text: &'static str, is_flag, variable: Option<&str>| {
            filter(&Log { filter: text, is_flag, format: LogFormat::Text }, variable.map(str::to_owned)).map(|filter| filter.to_string())
        };
        assert_eq!(of("warn", false, None).unwrap(), "actix_http=off,warn");
        assert_eq!(of("warn", false, Some("")).unwrap(), "actix_http=off,warn");
        assert_eq!(of("warn", false, Some("debug")).unwrap(), "debug");
        assert_eq!(of("warn", true, Some("debug")).unwrap(), "actix_http=off,warn");
        let error = of("warn", false, Some("bogus")).unwrap_err().to_string();
        assert!(error.contains("RUST_LOG") && error.contains("bogus"), "{error}");
    }
}
