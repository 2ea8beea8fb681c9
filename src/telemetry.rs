//! Logs: `tracing` to stderr.
