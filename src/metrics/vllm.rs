//! The metrics that vLLM also has, under vLLM's names, for gateways, autoscalers and dashboards that are written for vLLM. Names, types,
//! units and labels are vLLM's. The label `engine` is the index of one of a model's engines, which is always 0 here.

use std::time::SystemTime;

use super::adapters::{AdapterTraffic, traffic};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// Our names and vLLM's, without their prefixes. Released routers and dashboards still read vLLM's older names.
pub const TWINS: [(&str, &str); 31] = [
    ("num_requests_running", "num_requests_running"),
    ("num_requests_waiting", "num_requests_waiting"),
    ("kv_cache_usage_perc", "kv_cache_usage_perc"),
    ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ("cache_config_info", "cache_config_info"),
    ("prompt_tokens_total", "prompt_tokens_total"),
    ("generation_tokens_total", "generation_tokens_total"),
    ("request_success_total", "request_success_total"),
    ("prefix_cache_queries_total", "prefix_cache_queries_total"),
    ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    ("prefix_cache_hits_total", "prefix_cache_hits_total"),
    ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    ("num_preemptions_total", "num_preemptions_total"),
    ("spec_decode_num_drafts_total", "spec_decode_num_drafts_total"),
    ("spec_decode_num_draft_tokens_total", "spec_decode_num_draft_tokens_total"),
    ("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_total"),
    ("spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_accepted_tokens_per_pos_total"),
    ("time_to_first_token_seconds", "time_to_first_token_seconds"),
    ("inter_token_latency_seconds", "inter_token_latency_seconds"),
    ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ("request_time_per_output_token_seconds", "request_time_per_output_token_seconds"),
    ("e2e_request_latency_seconds", "e2e_request_latency_seconds"),
    ("request_queue_time_seconds", "request_queue_time_seconds"),
    ("request_inference_time_seconds", "request_inference_time_seconds"),
    ("request_prefill_time_seconds", "request_prefill_time_seconds"),
    ("request_decode_time_seconds", "request_decode_time_seconds"),
    ("request_prompt_tokens", "request_prompt_tokens"),
    ("request_generation_tokens", "request_generation_tokens"),
    ("request_max_generation_tokens", "request_max_num_generation_tokens"),
    ("request_max_generation_tokens", "request_params_max_tokens"),
    ("step_tokens", "iteration_tokens_total"),
];

/// Returns the families under vLLM's names. `prefix`: the prefix of our own names.
pub fn twins(families: &[MetricFamily], prefix: &str) -> Vec<MetricFamily> {
    let find = |name: &str| families.iter().find(|family| family.name().strip_prefix(prefix) == Some(name));
    let twin = |&(own, theirs): &(&str, &str)| {
        let mut twin = find(own)?.clone();
        twin.set_name(format!("vllm:{theirs}"));
        twin.mut_metric().iter_mut().for_each(add_engine);
        Some(twin)
    };
    let (hits, queries) = (find("prefix_cache_hits_total"), find("prefix_cache_queries_total"));
    let rate = hits.zip(queries).map(|(hits, queries)| hit_rate(hits, queries));
    TWINS.iter().filter_map(twin).chain(rate).chain([adapters()]).collect()
}

/// The share of looked-up tokens that were found. Older versions of vLLM had this gauge instead of the two counters.
fn hit_rate(hits: &MetricFamily, queries: &MetricFamily) -> MetricFamily {
    let ratio = |(hits, queries): (&Metric, &Metric)| {
        let (found, looked_up) = (count(hits), count(queries));
        let mut metric = gauge_of(if looked_up > 0.0 { found / looked_up } else { 0.0 });
        metric.set_label(queries.get_label().to_vec());
        add_engine(&mut metric);
        metric
    };
    let metrics = hits.get_metric().iter().zip(queries.get_metric()).map(ratio).collect();
    gauges("vllm:gpu_prefix_cache_hit_rate", "Prompt tokens found in the prefix cache, of those looked up; 1 = all", metrics)
}

fn count(metric: &Metric) -> f64 {
    metric.get_counter().get_value()
}

/// vLLM's metric on adapters. Its value is the time of the sample, by which gateways find the latest one [Unix seconds].
fn adapters() -> MetricFamily {
    let AdapterTraffic { most, running, waiting } = traffic();
    let labels = [("max_lora", most.to_string()), ("running_lora_adapters", running), ("waiting_lora_adapters", waiting)];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut metric = gauge_of(now);
    metric.set_label(labels.map(|(name, value)| label(name, &value)).to_vec());
    gauges("vllm:lora_requests_info", "Adapters (LoRA) that requests use", vec![metric])
}

fn gauge_of(value: f64) -> Metric {
    let (mut metric, mut gauge) = (Metric::default(), Gauge::default());
    gauge.set_value(value);
    metric.set_gauge(gauge);
    metric
}

fn gauges(name: &str, help: &str, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(MetricType::GAUGE);
    family.set_metric(metrics);
    family
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.into());
    label.set_value(value.into());
    label
}

fn add_engine(metric: &mut Metric) {
    let mut labels = metric.take_label();
    labels.insert(0, label("engine", "0"));
    metric.set_label(labels);
}
