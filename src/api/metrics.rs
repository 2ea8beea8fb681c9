//! HTTP metrics, and the exposition of all. Label values come from closed sets: routes, known models, statuses, error codes.

use std::sync::OnceLock;

use actix_web::{HttpResponse, web};
use prometheus::{Encoder, IntCounter, IntCounterVec, Opts, TextEncoder};

use super::error::{ApiError, Kind};
use super::state::AppState;

pub struct HttpMetrics {
    /// by `route`, `model_name` (empty where none is known), `status`
    pub requests: IntCounterVec,
    /// by `reason`: the error's code
    pub rejections: IntCounterVec,
    /// Clients that left before their answer was complete.
    pub disconnects: IntCounter,
    /// Streams cut because the client did not read.
    pub stalled: IntCounter,
}

/// The process's HTTP metrics, registered on first use.
pub fn http() -> &'static HttpMetrics {
    static METRICS: OnceLock<HttpMetrics> = OnceLock::new();
    METRICS.get_or_init(|| {
        let vec = |name, help, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels).expect("a valid metric name");
            crate::metrics::registry().register(Box::new(metric.clone())).expect("a metric registered once");
            metric
        };
        let one = |name, help| {
            let metric = IntCounter::new(name, help).expect("a valid metric name");
            crate::metrics::registry().register(Box::new(metric.clone())).expect("a metric registered once");
            metric
        };
        HttpMetrics {
            requests: vec("penstock_http_requests_total", "HTTP requests", &["route", "model_name", "status"]),
            rejections: vec("penstock_http_rejections_total", "Requests refused, by the error's code", &["reason"]),
            disconnects: one("penstock_http_disconnects_total", "Clients that left before their answer was complete"),
            stalled: one("penstock_http_stalled_streams_total", "Streams cut because the client did not read"),
        }
    })
}

/// Prometheus' text format
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, description = "metrics", content_type = "text/plain", body = String)))]
pub async fn exposition(state: web::Data<AppState>) -> Result<HttpResponse, ApiError> {
    let text = web::block(move || {
        let mut text = Vec::new();
        TextEncoder::new().encode(&crate::metrics::gather(state.vllm_metrics), &mut text).map(|()| text)
    });
    match text.await {
        Ok(Ok(text)) => Ok(HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(text)),
        _ => Err(ApiError::new(Kind::Internal, "the metrics could not be encoded")),
    }
}
