//! Metrics of the files of KV blocks.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntGauge, Opts};

use super::registry::{PREFIX, registered};

/// The metrics of the folder of KV blocks (`cache.disk`), which all models of this process share.
pub struct TierMetrics {
    pub bytes: IntGauge,
    pub files: IntGauge,
    pub saved_bytes_total: IntCounter,
    pub evictions_total: IntCounter,
    pub refused_total: IntCounter,
    pub failures_total: IntCounter,
}

impl TierMetrics {
    pub fn of_process() -> &'static Self {
        static METRICS: LazyLock<TierMetrics> = LazyLock::new(TierMetrics::new);
        &METRICS
    }

    fn new() -> Self {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let counter = |name, help| registered(IntCounter::with_opts(opts(name, help)));
        let gauge = |name, help| registered(IntGauge::with_opts(opts(name, help)));
        Self {
            bytes: gauge("cache_disk_bytes", "Files of KV blocks on disk"),
            files: gauge("cache_disk_files", "Number of files of KV blocks on disk"),
            saved_bytes_total: counter("cache_disk_saved_bytes_total", "Bytes of KV blocks that were written to disk"),
            evictions_total: counter("cache_disk_evictions_total", "Files of KV blocks that left the disk for others"),
            refused_total: counter("cache_disk_refused_total", "Files of KV blocks that were cut, changed or unreadable, and were removed"),
            failures_total: counter("cache_disk_failures_total", "Writes and looks at the folder of KV blocks that failed"),
        }
    }
}
