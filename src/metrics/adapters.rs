//! Metrics of adapters in the host's memory.

use std::sync::{LazyLock, Mutex, PoisonError};

use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Opts};

use super::registry::{PREFIX, WAIT_BUCKETS, registered};

/// The adapters of running and waiting requests, as vLLM's metric lists them.
#[derive(Clone, Debug, Default)]
pub(super) struct AdapterTraffic {
    /// The most adapters that one engine holds at once.
    pub most: usize,
    /// Names with commas between them.
    pub running: String,
    pub waiting: String,
}

static TRAFFIC: Mutex<Option<AdapterTraffic>> = Mutex::new(None);

/// Sets the adapters of running and of waiting requests. `most`: how many one engine holds at once.
pub fn set_adapter_traffic(most: usize, running: &[String], waiting: &[String]) {
    let traffic = AdapterTraffic { most, running: running.join(","), waiting: waiting.join(",") };
    *TRAFFIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(traffic);
}

pub(super) fn traffic() -> AdapterTraffic {
    TRAFFIC.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

/// The metrics of all adapters of this process.
pub struct AdapterMetrics {
    pub host_bytes: IntGauge,
    pub in_host_memory: IntGauge,
    pub loads_total: IntCounter,
    pub load_failures_total: IntCounter,
    pub evictions_total: IntCounter,
    pub load_seconds: Histogram,
}

impl AdapterMetrics {
    pub fn of_process() -> &'static Self {
        static METRICS: LazyLock<AdapterMetrics> = LazyLock::new(AdapterMetrics::new);
        &METRICS
    }

    fn new() -> Self {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let counter = |name, help| registered(IntCounter::with_opts(opts(name, help)));
        let gauge = |name, help| registered(IntGauge::with_opts(opts(name, help)));
        let seconds = opts("adapter_load_seconds", "Reading an adapter from its file to the host's memory");
        Self {
            host_bytes: gauge("adapter_host_bytes", "The host's memory that adapters take"),
            in_host_memory: gauge("adapters_in_host_memory", "Adapters in the host's memory"),
            loads_total: counter("adapter_loads_total", "Adapters that were read from their files"),
            load_failures_total: counter("adapter_load_failures_total", "Adapters that could not be read, or did not fit their model"),
            evictions_total: counter("adapter_evictions_total", "Adapters that left the host's memory for others"),
            load_seconds: registered(Histogram::with_opts(HistogramOpts::from(seconds).buckets(WAIT_BUCKETS.to_vec()))),
        }
    }
}
