//! Counters of HTTP requests. Label values come from closed sets: routes, known models, statuses and error codes.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};

pub struct HttpMetrics {
    /// Requests by `route`, `model_name` (empty if no model is known) and `status`.
    pub requests: IntCounterVec,
    /// Refused requests by `reason`, the error's code.
    pub rejections: IntCounterVec,
    /// Ignored fields by `field`, the name from the root. A bounded number of fields have labels of their own.
    pub ignored: IntCounterVec,
    /// Clients that left before their response was complete.
    pub disconnects: IntCounter,
    /// Streams that the server cut because the client did not read.
    pub stalled: IntCounter,
    /// Memory held for request bodies, out of `limits.max_bodies_bytes`.
    pub body_bytes: IntGauge,
}

/// Returns the process's HTTP metrics. The first call registers them.
pub fn http() -> &'static HttpMetrics {
    static METRICS: OnceLock<HttpMetrics> = OnceLock::new();
    METRICS.get_or_init(|| {
        let vec = |name, help, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels).expect("a valid metric name");
            metrics::registry().register(Box::new(metric.clone())).expect("a metric registered once");
            metric
        };
        let one = |name, help| {
            let metric = IntCounter::new(name, help).expect("a valid metric name");
            metrics::registry().register(Box::new(metric.clone())).expect("a metric registered once");
            metric
        };
        let gauge = |name, help| {
            let metric = IntGauge::new(name, help).expect("a valid metric name");
            metrics::registry().register(Box::new(metric.clone())).expect("a metric registered once");
            metric
        };
        HttpMetrics {
            requests: vec("penstock_http_requests_total", "HTTP requests", &["route", "model_name", "status"]),
            rejections: vec("penstock_http_rejections_total", "Requests refused, by the error's code", &["reason"]),
            ignored: vec("penstock_http_ignored_fields_total", "Unknown fields of requests that were left out", &["field"]),
            disconnects: one("penstock_http_disconnects_total", "Clients that left before their answer was complete"),
            stalled: one("penstock_http_stalled_streams_total", "Streams cut because the client did not read"),
            body_bytes: gauge("penstock_http_body_bytes", "Memory held for request bodies, of limits.max_bodies_bytes"),
        }
    })
}

/// Counts a request whose response begins, or whose client left before that.
pub fn count(route: Option<&str>, model: Option<&str>, status: u16) {
    http().requests.with_label_values(&[route.unwrap_or("unmatched"), model.unwrap_or_default(), &status.to_string()]).inc();
}
