//! Prometheus metrics: names, units and buckets in one place.

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge};

/// What one model's engine thread reports; handles of the process-wide registry, labelled `model_name`.
pub struct ModelMetrics {
    pub num_requests_running: IntGauge,
    pub num_requests_waiting: IntGauge,
    pub kv_cache_usage_perc: Gauge,
    pub prompt_tokens_total: IntCounter,
    pub generation_tokens_total: IntCounter,
    /// by `finished_reason`: stop, length, abort, error
    pub request_success_total: IntCounterVec,
    pub prefix_cache_queries_total: IntCounter,
    pub prefix_cache_hits_total: IntCounter,
    pub num_preemptions_total: IntCounter,
    pub time_to_first_token_seconds: Histogram,
    pub inter_token_latency_seconds: Histogram,
    pub e2e_request_latency_seconds: Histogram,
    pub request_queue_time_seconds: Histogram,
    pub request_prefill_time_seconds: Histogram,
    pub request_decode_time_seconds: Histogram,
    pub request_prompt_tokens: Histogram,
    pub request_generation_tokens: Histogram,
}

impl ModelMetrics {
    /// Handles for a model; calling it again for the same name gives the same series.
    pub fn for_model(model_name: &str) -> std::sync::Arc<Self> {
        let _ = model_name;
        todo!()
    }
}

/// The process-wide registry.
pub fn registry() -> &'static prometheus::Registry {
    static REGISTRY: std::sync::OnceLock<prometheus::Registry> = std::sync::OnceLock::new();
    REGISTRY.get_or_init(prometheus::Registry::new)
}
