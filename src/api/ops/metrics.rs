//! `/metrics`: all metrics of the process, for Prometheus.

use actix_web::{HttpResponse, web};
use prometheus::{Encoder, TextEncoder};

use http::error::{ApiError, Kind};
use http::state::AppState;
use serving::AdapterTraffic;

/// Metrics in Prometheus' text format
#[utoipa::path(get, path = "/metrics", tag = "operations", responses(
    (status = 200, description = "metrics", content_type = "text/plain", body = String)))]
pub async fn exposition(state: web::Data<AppState>) -> Result<HttpResponse, ApiError> {
    let text = web::block(move || {
        let models = state.registry.list();
        metrics::set_num_loaded(state.registry.num_loaded());
        metrics::set_loaded(models.iter().map(|info| (info.id.as_str(), info.loaded)));
        let replicas = state.registry.replicas();
        metrics::set_replicas(replicas.iter().map(|(id, serve)| (id.as_str(), serve.clone())));
        let AdapterTraffic { running, waiting } = serving::traffic();
        metrics::set_adapter_traffic(state.registry.max_adapters(), &running, &waiting);
        let mut text = Vec::new();
        TextEncoder::new().encode(&metrics::gather(state.vllm_metrics), &mut text).map(|()| text)
    });
    match text.await {
        Ok(Ok(text)) => Ok(HttpResponse::Ok().content_type(prometheus::TEXT_FORMAT).body(text)),
        _ => Err(ApiError::new(Kind::Internal, "the metrics could not be encoded")),
    }
}
