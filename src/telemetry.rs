//! Logging: `tracing` to stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `filter` is a level or a list of directives (`info`, `warn,penstock::access=info`). `RUST_LOG` overrides it.
/// A second call has no effect.
pub fn init(filter: &str) -> anyhow::Result<()> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            EnvFilter::try_new(&text).map_err(|error| anyhow::anyhow!("RUST_LOG is not a log filter: {error}"))?
        }
        _ => EnvFilter::try_new(filter).map_err(|error| anyhow::anyhow!("`{filter}` is not a log filter: {error}"))?,
    };
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // This fails if logging has started already: in tests, or if one command runs another.
    let _ = subscriber.try_init();
    Ok(())
}
