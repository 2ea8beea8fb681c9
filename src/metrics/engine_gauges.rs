//! [`EngineGauges`]: what each engine of a model shows, and the model's gauges, which are their sums.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ModelMetrics;

/// What one engine shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    pub num_running: usize,
    pub num_waiting: usize,
    /// The share of the KV blocks that are in use.
    pub cache_usage: f64,
    /// The KV cache: in use by running sequences, backed by memory, and the most that can be backed [bytes].
    pub cache_bytes: [u64; 3],
    /// The device's memory: free, total, and held by the engine's own count [bytes]. None for engines without a device.
    pub device_bytes: Option<[u64; 3]>,
    /// Tokens per KV block.
    pub block_size: usize,
    /// The most KV blocks.
    pub num_blocks: usize,
    pub caches_prefixes: bool,
}

/// The loads of the engines that run a model.
#[derive(Debug, Default)]
pub struct EngineLoads(Mutex<Engines>);

#[derive(Debug, Default)]
struct Engines {
    by_id: BTreeMap<u64, EngineLoad>,
    next_id: u64,
}

impl EngineLoads {
    fn lock(&self) -> MutexGuard<'_, Engines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets every engine, even one that hangs and so never ends. What such an engine shows later is ignored.
    pub fn clear(&self, model: &ModelMetrics) {
        let mut engines = self.lock();
        engines.by_id.clear();
        engines.show_all(model);
    }
}

impl Engines {
    fn show(&self, model: &ModelMetrics) {
        let all = || self.by_id.values();
        model.num_requests_running.set(all().map(|one| one.num_running as i64).sum());
        model.num_requests_waiting.set(all().map(|one| one.num_waiting as i64).sum());
        model.kv_cache_usage_perc.set(all().map(|one| one.cache_usage).sum::<f64>() / self.by_id.len().max(1) as f64);
        for (index, kind) in ["used", "backed", "most"].into_iter().enumerate() {
            let bytes = all().map(|one| one.cache_bytes[index]).fold(0, u64::saturating_add);
            model.kv_cache_bytes.with_label_values(&[kind]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn show_memory(&self, model: &ModelMetrics) {
        let devices: Vec<[u64; 3]> = self.by_id.values().filter_map(|one| one.device_bytes).collect();
        if devices.is_empty() {
            model.device_memory_bytes.reset();
        }
        for (index, kind) in ["free", "total", "held"].into_iter().enumerate().filter(|_| !devices.is_empty()) {
            let bytes = devices.iter().map(|one| one[index]).fold(0, u64::saturating_add);
            model.device_memory_bytes.with_label_values(&[kind]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    /// Shows everything, after an engine has come or gone.
    fn show_all(&self, model: &ModelMetrics) {
        self.show(model);
        self.show_memory(model);
        model.cache_config_info.reset();
        if let Some(first) = self.by_id.values().next() {
            let num_blocks: usize = self.by_id.values().map(|one| one.num_blocks).sum();
            let prefixes = if first.caches_prefixes { "True" } else { "False" };
            model.cache_config_info.with_label_values(&[&first.block_size.to_string(), &num_blocks.to_string(), prefixes]).set(1);
        }
    }
}

/// One engine's part of its model's gauges. The part ends when this value is dropped.
pub struct EngineGauges {
    model: Arc<ModelMetrics>,
    id: u64,
}

impl EngineGauges {
    /// Adds an engine to a model.
    pub fn join(model: &Arc<ModelMetrics>, load: EngineLoad) -> Self {
        let mut engines = model.engines.lock();
        let id = engines.next_id;
        engines.next_id += 1;
        engines.by_id.insert(id, load);
        engines.show_all(model);
        drop(engines);
        Self { model: model.clone(), id }
    }

    /// Changes what the engine shows.
    pub fn set(&self, change: impl FnOnce(&mut EngineLoad)) {
        let mut engines = self.model.engines.lock();
        let Some(load) = engines.by_id.get_mut(&self.id) else { return };
        let before = *load;
        change(load);
        let (is_new, has_memory) = (*load != before, load.device_bytes != before.device_bytes);
        if is_new {
            engines.show(&self.model);
        }
        if has_memory {
            engines.show_memory(&self.model);
        }
    }

    /// Takes the engine out of the sums. Nothing that it shows later counts.
    pub fn leave(&self) {
        let mut engines = self.model.engines.lock();
        if engines.by_id.remove(&self.id).is_some() {
            engines.show_all(&self.model);
        }
    }
}

impl Drop for EngineGauges {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_the_sums_of_the_engines_that_are_there() {
        let model = ModelMetrics::for_model("m-engines");
        let load = |num_running, num_blocks| EngineLoad { num_running, num_blocks, block_size: 32, cache_usage: 0.5, ..Default::default() };
        let (one, two) = (EngineGauges::join(&model, load(3, 100)), EngineGauges::join(&model, load(4, 60)));
        let shown = || (model.num_requests_running.get(), model.kv_cache_usage_perc.get());
        let has_blocks = |count: &str| {
            let families = super::super::registry().gather();
            let info = families.iter().find(|family| family.name() == "penstock_cache_config_info").unwrap();
            let has = |value: &str, metric: &prometheus::proto::Metric| metric.get_label().iter().any(|label| label.value() == value);
            info.get_metric().iter().any(|metric| has("m-engines", metric) && has(count, metric))
        };
        assert_eq!(shown(), (7, 0.5));
        assert!(has_blocks("160"));
        one.set(|load| (load.num_running, load.cache_usage, load.cache_bytes, load.device_bytes) = (1, 1.0, [1, 2, 3], Some([5, 6, 7])));
        two.set(|load| (load.cache_bytes, load.device_bytes) = ([10, 20, 30], Some([50, 60, 70])));
        assert_eq!(shown(), (5, 0.75));
        let sums = |vec: &prometheus::IntGaugeVec, kinds: [&str; 3]| kinds.map(|kind| vec.with_label_values(&[kind]).get());
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
