//! [`EngineGauges`]: what each engine of a model shows, and the model's gauges, which are their sums.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts};

use super::registry::registered;

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

/// A model's gauges, and the loads of the engines that run it.
#[derive(Debug)]
pub struct EngineLoads {
    pub num_running: IntGauge,
    pub num_waiting: IntGauge,
    pub cache_usage: Gauge,
    pub cache_bytes: IntGaugeVec,
    pub device_bytes: IntGaugeVec,
    pub cache_info: IntGaugeVec,
    engines: Mutex<Engines>,
}

#[derive(Debug, Default)]
struct Engines {
    by_id: BTreeMap<u64, EngineLoad>,
    next_id: u64,
}

impl EngineLoads {
    /// Registers the gauges. `opts`: their options by name and help.
    pub fn new(opts: &dyn Fn(&str, &str) -> Opts) -> Self {
        let gauge = |name, help| registered(IntGauge::with_opts(opts(name, help)));
        let memory = opts("device_memory_bytes", "Memory of the device that the model runs on; held: by the engine's own count");
        let cache = opts("cache_config_info", "The largest KV cache, in blocks of tokens; the value is always 1");
        let bytes = opts("kv_cache_bytes", "The KV cache; used: by running sequences, backed: with memory, most: the size it may grow to");
        Self {
            num_running: gauge("num_requests_running", "Sequences in the running batch"),
            num_waiting: gauge("num_requests_waiting", "Sequences that wait to be admitted"),
            cache_usage: registered(Gauge::with_opts(opts("kv_cache_usage_perc", "KV blocks in use, 1 = all"))),
            cache_bytes: registered(IntGaugeVec::new(bytes, &["kind"])),
            device_bytes: registered(IntGaugeVec::new(memory, &["kind"])),
            cache_info: registered(IntGaugeVec::new(cache, &["block_size", "num_gpu_blocks", "enable_prefix_caching"])),
            engines: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets every engine, even one that hangs and so never ends. What such an engine shows later is ignored.
    pub fn clear(&self) {
        let mut engines = self.lock();
        engines.by_id.clear();
        self.show_all(&engines);
    }

    fn show(&self, engines: &Engines) {
        let all = || engines.by_id.values();
        self.num_running.set(all().map(|one| one.num_running as i64).sum());
        self.num_waiting.set(all().map(|one| one.num_waiting as i64).sum());
        self.cache_usage.set(all().map(|one| one.cache_usage).sum::<f64>() / engines.by_id.len().max(1) as f64);
        set_sums(&self.cache_bytes, ["used", "backed", "most"], all().map(|one| one.cache_bytes));
    }

    fn show_memory(&self, engines: &Engines) {
        let devices: Vec<[u64; 3]> = engines.by_id.values().filter_map(|one| one.device_bytes).collect();
        if devices.is_empty() {
            self.device_bytes.reset();
        } else {
            set_sums(&self.device_bytes, ["free", "total", "held"], devices.into_iter());
        }
    }

    /// Shows everything, after an engine has come or gone.
    fn show_all(&self, engines: &Engines) {
        self.show(engines);
        self.show_memory(engines);
        self.cache_info.reset();
        if let Some(first) = engines.by_id.values().next() {
            let num_blocks: usize = engines.by_id.values().map(|one| one.num_blocks).sum();
            let prefixes = if first.caches_prefixes { "True" } else { "False" };
            self.cache_info.with_label_values(&[&first.block_size.to_string(), &num_blocks.to_string(), prefixes]).set(1);
        }
    }
}

fn set_sums(gauges: &IntGaugeVec, kinds: [&str; 3], all: impl Iterator<Item = [u64; 3]>) {
    let sums = all.fold([0; 3], |sums: [u64; 3], one| [0, 1, 2].map(|kind| sums[kind].saturating_add(one[kind])));
    for (kind, bytes) in kinds.into_iter().zip(sums) {
        gauges.with_label_values(&[kind]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

/// One engine's part of its model's gauges. The part ends when this value is dropped.
pub struct EngineGauges {
    model: Arc<EngineLoads>,
    id: u64,
}

impl EngineGauges {
    /// Adds an engine to a model.
    pub(super) fn join(model: &Arc<EngineLoads>, load: EngineLoad) -> Self {
        let mut engines = model.lock();
        let id = engines.next_id;
        engines.next_id += 1;
        engines.by_id.insert(id, load);
        model.show_all(&engines);
        drop(engines);
        Self { model: model.clone(), id }
    }

    /// Changes what the engine shows.
    pub fn set(&self, change: impl FnOnce(&mut EngineLoad)) {
        let mut engines = self.model.lock();
        let Some(load) = engines.by_id.get_mut(&self.id) else { return };
        let before = *load;
        change(load);
        let (is_new, has_memory) = (*load != before, load.device_bytes != before.device_bytes);
        if is_new {
            self.model.show(&engines);
        }
        if has_memory {
            self.model.show_memory(&engines);
        }
    }

    /// Takes the engine out of the sums. Nothing that it shows later counts.
    pub fn leave(&self) {
        let mut engines = self.model.lock();
        if engines.by_id.remove(&self.id).is_some() {
            self.model.show_all(&engines);
        }
    }
}

impl Drop for EngineGauges {
    fn drop(&mut self) {
        self.leave();
    }
}
