//! Prometheus metrics: their names, units and buckets.

mod adapters;
mod engine_gauges;
mod process;
mod registry;
mod replicas;
mod tiers;
mod vllm;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

pub use adapters::{AdapterMetrics, set_adapter_traffic};
use engine_gauges::EngineLoads;
pub use engine_gauges::{EngineGauges, EngineLoad};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
pub use registry::registry;
use registry::{PREFIX, WAIT_BUCKETS, registered};
pub use replicas::set_replicas;
pub use tiers::TierMetrics;

/// Buckets for the time between two tokens [s].
const GAP_BUCKETS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0];
const TOKEN_BUCKETS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 131072.0];

/// Collects the samples of every metric. `vllm`: whether to repeat the metrics that vLLM also has as `vllm:…`, for dashboards and
/// autoscalers written for vLLM.
pub fn gather(vllm: bool) -> Vec<MetricFamily> {
    // An alert on an increase needs a sample before the first increase.
    let _ = (log_lines_lost(), trace_exports_failed(), unloads(), AdapterMetrics::of_process(), TierMetrics::of_process());
    let mut families = registry().gather();
    if vllm {
        let twins = vllm::twins(&families, PREFIX);
        families.extend(twins);
    }
    families
}

/// Sets the build's version and its compiled backends.
pub fn set_build_info(version: &str, backends: &str) {
    static INFO: LazyLock<IntGaugeVec> = LazyLock::new(|| {
        let opts = Opts::new("penstock_build_info", "Version and backends of the build; the value is always 1");
        registered(IntGaugeVec::new(opts, &["version", "backends"]))
    });
    INFO.with_label_values(&[version, backends]).set(1);
}

/// Sets for each served model whether it is loaded.
pub fn set_loaded<'a>(models: impl Iterator<Item = (&'a str, bool)>) {
    static LOADED: LazyLock<IntGaugeVec> = LazyLock::new(|| {
        let opts = Opts::new("penstock_model_loaded", "1 if the model is loaded, 0 if its first request will load it");
        registered(IntGaugeVec::new(opts, &["model_name"]))
    });
    models.for_each(|(name, loaded)| LOADED.with_label_values(&[name]).set(i64::from(loaded)));
}

/// Counts an unloaded model. `reason`: one of a fixed set of words.
pub fn count_unload(reason: &str) {
    unloads().with_label_values(&[reason]).inc();
}

fn unloads() -> &'static IntCounterVec {
    static UNLOADS: LazyLock<IntCounterVec> = LazyLock::new(|| {
        let opts = Opts::new("penstock_model_unloads_total", "Models that were unloaded, by reason");
        let unloads = registered(IntCounterVec::new(opts, &["reason"]));
        // A rate needs a sample before the first count.
        for reason in ["idle", "memory", "request", "removed"] {
            let _ = unloads.with_label_values(&[reason]);
        }
        unloads
    });
    &UNLOADS
}

/// Sets the number of loaded models. Names over the same base model count once.
pub fn set_num_loaded(count: usize) {
    static COUNT: LazyLock<IntGauge> =
        LazyLock::new(|| registered(IntGauge::new("penstock_models_loaded", "Models that are loaded, each load counted once")));
    COUNT.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Counts log lines that stderr did not take in time, or not at all.
pub fn log_lines_lost() -> &'static IntCounter {
    static LOST: LazyLock<IntCounter> =
        LazyLock::new(|| registered(IntCounter::new("penstock_log_lines_lost_total", "Lines of the log that could not be written")));
    &LOST
}

/// Counts batches of spans that the collector did not accept.
pub fn trace_exports_failed() -> &'static IntCounter {
    static FAILED: LazyLock<IntCounter> = LazyLock::new(|| {
        registered(IntCounter::new("penstock_trace_exports_failed_total", "Batches of spans that the collector did not accept"))
    });
    &FAILED
}

/// The metrics of one model, labelled `model_name` in the registry of this process.
pub struct ModelMetrics {
    pub num_requests_running: IntGauge,
    pub num_requests_waiting: IntGauge,
    pub kv_cache_usage_perc: Gauge,
    /// Labelled `kind`: free, total, or held (by the engine's own count). Empty for engines without a device.
    pub device_memory_bytes: IntGaugeVec,
    /// Labelled `kind`: used (by running sequences), backed (by memory), or most (the size that it may grow to).
    pub kv_cache_bytes: IntGaugeVec,
    pub cache_growths_total: IntCounter,
    pub cache_give_backs_total: IntCounter,
    /// Labelled `block_size`, `num_gpu_blocks` and `enable_prefix_caching`, as in vLLM.
    pub cache_config_info: IntGaugeVec,
    pub prompt_tokens_total: IntCounter,
    pub generation_tokens_total: IntCounter,
    /// Labelled `finished_reason`: stop, length, abort or error.
    pub request_success_total: IntCounterVec,
    pub prefix_cache_queries_total: IntCounter,
    pub prefix_cache_hits_total: IntCounter,
    /// Tokens that came from files (`cache.disk`), whether or not a prompt took them then.
    pub prefix_cache_disk_hits_total: IntCounter,
    pub num_preemptions_total: IntCounter,
    /// Steps of sequences that verified drafts.
    pub spec_decode_num_drafts_total: IntCounter,
    pub spec_decode_num_draft_tokens_total: IntCounter,
    pub spec_decode_num_accepted_tokens_total: IntCounter,
    /// Labelled `position`: the token's place in its draft, starting at 0.
    pub spec_decode_num_accepted_tokens_per_pos_total: IntCounterVec,
    pub time_to_first_token_seconds: Histogram,
    pub inter_token_latency_seconds: Histogram,
    pub request_time_per_output_token_seconds: Histogram,
    pub e2e_request_latency_seconds: Histogram,
    pub request_queue_time_seconds: Histogram,
    pub request_inference_time_seconds: Histogram,
    pub request_prefill_time_seconds: Histogram,
    pub request_decode_time_seconds: Histogram,
    pub request_prompt_tokens: Histogram,
    pub request_generation_tokens: Histogram,
    pub request_max_generation_tokens: Histogram,
    pub step_tokens: Histogram,
    pub num_pictures_waiting: IntGauge,
    /// Decoding, resizing and encoding. Its sample count is the number of encoded pictures.
    pub picture_encode_seconds: Histogram,
    pub picture_rows_total: IntCounter,
    pub picture_cache_hits_total: IntCounter,
    /// Its sample count is the number of loads.
    pub model_load_seconds: Histogram,
    pub model_load_failures_total: IntCounter,
    /// What each engine of the model adds to its gauges.
    engines: Arc<EngineLoads>,
}

impl ModelMetrics {
    /// The metrics of a model. Calls with the same name return the same series.
    pub fn for_model(model_name: &str) -> Arc<Self> {
        static MODELS: LazyLock<Mutex<HashMap<String, Arc<ModelMetrics>>>> = LazyLock::new(Default::default);
        let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
        models.entry(model_name.to_owned()).or_insert_with(|| Arc::new(Self::new(model_name))).clone()
    }

    fn new(model: &str) -> Self {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help).const_label("model_name", model);
        let gauge = |name, help| registered(IntGauge::with_opts(opts(name, help)));
        let counter = |name, help| registered(IntCounter::with_opts(opts(name, help)));
        let histogram =
            |name, help, buckets: &[f64]| registered(Histogram::with_opts(HistogramOpts::from(opts(name, help)).buckets(buckets.to_vec())));
        let finished = opts("request_success_total", "Requests that ended, by reason");
        let request_success_total = registered(IntCounterVec::new(finished, &["finished_reason"]));
        // A rate needs a sample before the first count.
        for reason in ["stop", "length", "abort", "error"] {
            let _ = request_success_total.with_label_values(&[reason]);
        }
        let per_pos = opts("spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens that were right, by their place in the draft");
        let engines = Arc::new(EngineLoads::new(&opts));
        Self {
            kv_cache_bytes: engines.cache_bytes.clone(),
            cache_growths_total: counter("cache_growths_total", "How often the KV cache has taken more memory"),
            cache_give_backs_total: counter("cache_give_backs_total", "How often the KV cache has given memory back"),
            cache_config_info: engines.cache_info.clone(),
            device_memory_bytes: engines.device_bytes.clone(),
            num_requests_running: engines.num_running.clone(),
            num_requests_waiting: engines.num_waiting.clone(),
            kv_cache_usage_perc: engines.cache_usage.clone(),
            prompt_tokens_total: counter("prompt_tokens_total", "Prompt tokens processed, cached ones included"),
            generation_tokens_total: counter("generation_tokens_total", "Tokens generated"),
            request_success_total,
            prefix_cache_queries_total: counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache"),
            prefix_cache_hits_total: counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache"),
            prefix_cache_disk_hits_total: counter("prefix_cache_disk_hits_total", "Prompt tokens whose KV blocks came from disk"),
            spec_decode_num_drafts_total: counter("spec_decode_num_drafts_total", "Drafts that steps verified"),
            spec_decode_num_draft_tokens_total: counter("spec_decode_num_draft_tokens_total", "Tokens of drafts that steps verified"),
            spec_decode_num_accepted_tokens_total: counter("spec_decode_num_accepted_tokens_total", "Drafted tokens that were right"),
            spec_decode_num_accepted_tokens_per_pos_total: registered(IntCounterVec::new(per_pos, &["position"])),
            num_preemptions_total: counter("num_preemptions_total", "Sequences that gave up their KV blocks to be recomputed later"),
            time_to_first_token_seconds: histogram("time_to_first_token_seconds", "From arrival to the first token", WAIT_BUCKETS),
            inter_token_latency_seconds: histogram("inter_token_latency_seconds", "Between two tokens of a sequence", GAP_BUCKETS),
            request_time_per_output_token_seconds: histogram(
                "request_time_per_output_token_seconds",
                "Between two tokens of a sequence, as the mean of each sequence",
                GAP_BUCKETS,
            ),
            e2e_request_latency_seconds: histogram("e2e_request_latency_seconds", "From arrival to the end", WAIT_BUCKETS),
            request_queue_time_seconds: histogram("request_queue_time_seconds", "From arrival to admission", WAIT_BUCKETS),
            request_inference_time_seconds: histogram("request_inference_time_seconds", "From admission to the end", WAIT_BUCKETS),
            request_prefill_time_seconds: histogram("request_prefill_time_seconds", "From admission to the first token", WAIT_BUCKETS),
            request_decode_time_seconds: histogram("request_decode_time_seconds", "From the first token to the end", WAIT_BUCKETS),
            request_prompt_tokens: histogram("request_prompt_tokens", "Prompt tokens of a request", TOKEN_BUCKETS),
            request_generation_tokens: histogram("request_generation_tokens", "Generated tokens of a request", TOKEN_BUCKETS),
            request_max_generation_tokens: histogram(
                "request_max_generation_tokens",
                "The most tokens that a request may generate: its own limit, or the rest of the context",
                TOKEN_BUCKETS,
            ),
            num_pictures_waiting: gauge("num_pictures_waiting", "Pictures that wait to be encoded"),
            picture_encode_seconds: histogram("picture_encode_seconds", "Decoding, resizing and encoding of a picture", WAIT_BUCKETS),
            picture_rows_total: counter("picture_rows_total", "Rows of embeddings that pictures were encoded into"),
            picture_cache_hits_total: counter("picture_cache_hits_total", "Pictures whose rows were kept from an earlier request"),
            step_tokens: histogram("step_tokens", "Tokens that a step computes, of all its sequences", TOKEN_BUCKETS),
            model_load_seconds: histogram("model_load_seconds", "From opening the file to a running engine", WAIT_BUCKETS),
            model_load_failures_total: counter("model_load_failures_total", "Loads that failed"),
            engines,
        }
    }

    /// Counts a draft of `num_tokens` tokens that a step verified, of which the first `num_accepted` were right.
    pub fn count_drafts(&self, num_tokens: usize, num_accepted: usize) {
        self.spec_decode_num_drafts_total.inc();
        self.spec_decode_num_draft_tokens_total.inc_by(num_tokens as u64);
        self.spec_decode_num_accepted_tokens_total.inc_by(num_accepted as u64);
        for position in 0..num_accepted {
            self.spec_decode_num_accepted_tokens_per_pos_total.with_label_values(&[&position.to_string()]).inc();
        }
    }

    /// Resets the gauges of an unloaded model, which has no cache and takes no memory.
    pub fn rest(&self) {
        self.engines.clear();
    }

    /// Adds an engine that runs the model. The gauges are the sums of all of them.
    pub fn add_engine(&self, load: EngineLoad) -> EngineGauges {
        EngineGauges::join(&self.engines, load)
    }
}

#[cfg(test)]
mod tests {
    use super::vllm::TWINS;
    use super::*;

    #[test]
    fn a_model_has_one_set_of_series_labelled_with_its_name() {
        let (one, again, two) = (ModelMetrics::for_model("m-one"), ModelMetrics::for_model("m-one"), ModelMetrics::for_model("m-two"));
        one.prompt_tokens_total.inc_by(5);
        again.prompt_tokens_total.inc_by(2);
        two.prompt_tokens_total.inc();
        one.request_success_total.with_label_values(&["stop"]).inc();
        let families = registry().gather();
        let value = |model: &str| {
            let family = families.iter().find(|f| f.name() == "penstock_prompt_tokens_total").unwrap();
            let metric = family.get_metric().iter().find(|m| m.get_label().iter().any(|l| l.value() == model)).unwrap();
            metric.get_counter().get_value()
        };
        assert_eq!((value("m-one"), value("m-two")), (7.0, 1.0));
        let of_models = |name: &str| name.strip_prefix(PREFIX).is_some_and(|name| TWINS.iter().any(|(own, _)| *own == name));
        for family in families.iter().filter(|family| of_models(family.name())) {
            let named = |m: &prometheus::proto::Metric| m.get_label().iter().any(|l| l.name() == "model_name");
            assert!(family.get_metric().iter().all(named), "{}", family.name());
        }
        assert!(families.iter().any(|f| f.name() == "penstock_request_success_total"));
    }

    #[test]
    fn vllms_names_are_added_on_request() {
        let model = ModelMetrics::for_model("m-vllm");
        model.request_success_total.with_label_values(&["stop"]).inc();
        model.request_queue_time_seconds.observe(0.5);
        model.count_drafts(4, 2);
        let load = EngineLoad { block_size: 32, num_blocks: 100, caches_prefixes: true, ..EngineLoad::default() };
        let _engine = model.add_engine(load);
        model.prefix_cache_queries_total.inc_by(8);
        model.prefix_cache_hits_total.inc_by(2);
        assert!(gather(false).iter().all(|family| !family.name().starts_with("vllm:")));
        let families = gather(true);
        let find = |name: &str| families.iter().find(|family| family.name() == name);
        for (own, theirs) in TWINS {
            let (own, twin) = (find(&format!("{PREFIX}{own}")).unwrap(), find(&format!("vllm:{theirs}")).unwrap());
            assert_eq!((own.get_field_type(), own.get_metric().len()), (twin.get_field_type(), twin.get_metric().len()), "{theirs}");
        }
        assert!(find("vllm:model_load_seconds").is_none() && find("vllm:lora_requests_info").is_some());
        let rate = find("vllm:gpu_prefix_cache_hit_rate").unwrap().get_metric();
        let of_model = rate.iter().find(|metric| metric.get_label().iter().any(|label| label.value() == "m-vllm")).unwrap();
        assert_eq!(of_model.get_gauge().get_value(), 0.25);
    }

    #[test]
    fn gauges_are_the_sums_of_the_engines_that_are_there() {
        let model = ModelMetrics::for_model("m-engines");
        let load = |num_running, num_blocks| EngineLoad { num_running, num_blocks, block_size: 32, cache_usage: 0.5, ..Default::default() };
        let (one, two) = (model.add_engine(load(3, 100)), model.add_engine(load(4, 60)));
        let shown = || (model.num_requests_running.get(), model.kv_cache_usage_perc.get());
        let has_blocks = |count: &str| {
            let families = registry().gather();
            let Some(info) = families.iter().find(|family| family.name() == "penstock_cache_config_info") else { return false };
            let has = |value: &str, metric: &prometheus::proto::Metric| metric.get_label().iter().any(|label| label.value() == value);
            info.get_metric().iter().any(|metric| has("m-engines", metric) && has(count, metric))
        };
        assert_eq!(shown(), (7, 0.5));
        assert!(has_blocks("160"));
        one.set(|load| (load.num_running, load.cache_usage, load.cache_bytes, load.device_bytes) = (1, 1.0, [1, 2, 3], Some([5, 6, 7])));
        two.set(|load| (load.cache_bytes, load.device_bytes) = ([10, 20, 30], Some([50, 60, 70])));
        assert_eq!(shown(), (5, 0.75));
        let sums = |vec: &IntGaugeVec, kinds: [&str; 3]| kinds.map(|kind| vec.with_label_values(&[kind]).get());
        assert_eq!(sums(&model.kv_cache_bytes, ["used", "backed", "most"]), [11, 22, 33]);
        assert_eq!(sums(&model.device_memory_bytes, ["free", "total", "held"]), [55, 66, 77]);
        one.leave();
        one.set(|load| load.num_running = 9);
        assert_eq!(shown(), (4, 0.5), "what an engine shows after it has left does not count");
        assert!(has_blocks("60") && !has_blocks("160"));
        drop((one, two));
        assert_eq!(shown(), (0, 0.0));
        assert!(!has_blocks("60"));
    }
}
