//! The registry of this process, and what all metrics share.

use std::sync::LazyLock;

use prometheus::Registry;
use prometheus::core::Collector;

use super::process::Process;

/// The prefix of every metric's name.
pub const PREFIX: &str = "penstock_";

/// Buckets for waits and whole requests [s].
pub const WAIT_BUCKETS: &[f64] = &[0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// The registry of this process.
pub fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
        let registry = Registry::new();
        registry.register(Box::new(Process::new())).expect("its metrics are registered once");
        registry
    });
    &REGISTRY
}

/// Registers a metric. Names and labels are constants and each model is registered once, so a failure is a bug in this file.
pub fn registered<C: Collector + Clone + 'static>(metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("metric names and labels are valid");
    registry().register(Box::new(metric.clone())).expect("every metric of a model is registered once");
    metric
}
