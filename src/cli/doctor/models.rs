//! Finds the models that fit into the machine's memory.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::machine::Machine;
use crate::catalogue::Store;
use crate::cli::estimate::{CONTEXT, needed};
use crate::config::{Config, Drafts, ModelEntry, Source, find_model};
use crate::engine::{EngineOptions, Footprint, footprints};
use crate::gguf::GgufFile;
use crate::model::Weights;
use crate::registry::{draft_bytes, engine_options, mmproj};
use crate::serving::{ModelFile, RowShape};

#[derive(Debug, PartialEq, Serialize)]
pub struct Fit {
    pub id: String,
    pub on_disk: bool,
    /// Size of the file [bytes]. None if unknown until the file is fetched.
    pub size: Option<u64>,
    pub needed: Option<u64>,
    /// Whether `needed` is an estimate, because the file is not on disk.
    pub estimated: bool,
    /// The device that the model would run on: the first that it fits on. None if it fits on none, or if that is unknown.
    pub device: Option<String>,
    pub fits: Option<bool>,
    /// The reason why no engine can run the model.
    pub fault: Option<String>,
}

/// Checks the models of the catalogue and of the store.
pub fn fits(config: &Config, machine: &Machine) -> Vec<Fit> {
    let store = Store::new(&config.server.models_dir);
    let mut entries: Vec<ModelEntry> = config.models.iter().filter(|entry| entry.of.is_none()).cloned().collect();
    for manifest in store.list() {
        if find_model(&config.models, &manifest.id).is_none() {
            entries.push(ModelEntry::new(&manifest.id, Source::File { path: store.file(&manifest) }));
        }
    }
    let fit = |entry: &ModelEntry| match store.path(entry) {
        Some(path) => exact(config, entry, &path),
        None => estimate(entry, machine),
    };
    entries.iter().map(fit).collect()
}

fn exact(config: &Config, entry: &ModelEntry, path: &Path) -> Fit {
    let size = path.metadata().ok().map(|meta| meta.len());
    let empty = Fit { id: entry.id.clone(), on_disk: true, size, needed: None, estimated: false, device: None, fits: None, fault: None };
    match all(config, entry, path) {
        Ok((bytes, footprints)) => {
            // GPUs come last in the list and are preferred.
            let chosen = footprints.iter().rev().find(|footprint| footprint.fits() == Some(true));
            let shown = chosen.or(footprints.last());
            Fit {
                size: Some(bytes),
                needed: shown.map(Footprint::needed),
                device: chosen.map(|footprint| footprint.device.clone()),
                fits: chosen.map(|_| true).or(shown.and_then(Footprint::fits)),
                ..empty
            }
        }
        Err(error) => Fit { fits: Some(false), fault: Some(format!("{error:#}")), ..empty },
    }
}

/// The size of the files with that of the picture encoder, and the memory that the model needs on each device with its picture encoder and
/// its draft model.
fn all(config: &Config, entry: &ModelEntry, path: &Path) -> anyhow::Result<(u64, Vec<Footprint>)> {
    let file = Arc::new(GgufFile::open(path)?);
    let bytes = file.file_bytes();
    let weights = Weights::load(file.clone())?;
    let context = weights.spec.context_length.min(CONTEXT);
    let kv_tokens = context.next_multiple_of(config.engine.block_size);
    let draft_head = entry.drafts.unwrap_or(config.engine.drafts) == Drafts::Heads;
    let options = EngineOptions { context, kv_tokens, draft_head, ..engine_options(&config.engine, entry) };
    let found = mmproj(config, entry, path, &RowShape::of(&weights.spec))?;
    let facts = found.encoder.map(|encoder| encoder.facts);
    let encoder = |backend| facts.as_ref().map_or(0, |facts| facts.bytes_on(backend));
    let all = footprints(&weights, &options)?.into_iter().map(|footprint| footprint.with(encoder));
    // Vocabularies are read only if there is a draft model to compare.
    let draft = entry.draft.as_ref().map(|_| draft_bytes(config, entry, &ModelFile::of(file)?, &options)).transpose()?;
    let all = all.map(|footprint| footprint.with(|backend| draft.as_ref().map_or(0, |bytes| bytes(backend))));
    Ok((bytes.saturating_add(facts.as_ref().map_or(0, |facts| facts.bytes)), all.collect()))
}

fn estimate(entry: &ModelEntry, machine: &Machine) -> Fit {
    let (size, needed) = (entry.size_or_about(), needed(entry));
    let device = machine.devices.iter().rev().find(|device| needed.zip(device.free).is_some_and(|(needed, free)| needed <= free));
    let known = needed.is_some() && machine.devices.iter().any(|device| device.free.is_some());
    let device = device.map(|device| device.name.clone());
    Fit {
        id: entry.id.clone(),
        on_disk: false,
        size,
        needed,
        estimated: true,
        fits: known.then_some(device.is_some()),
        device,
        fault: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Device, Disk, Nvidia, Processor};
    use super::*;

    #[test]
    fn an_estimate_prefers_a_gpu_that_holds_the_model() {
        let device = |name: &str, free| Device { backend: "cpu", name: name.into(), free: Some(free), total: None };
        let machine = Machine {
            processor: Processor::default(),
            devices: vec![device("CPU", 20 << 30), device("GPU 0", 6 << 30)],
            nvidia: Nvidia::default(),
            backends: vec!["cpu"],
            disk: Disk::default(),
        };
        let entry = |gigabytes| ModelEntry { gigabytes, ..ModelEntry::new("m", Source::File { path: "m.gguf".into() }) };
        let device_of = |gigabytes| {
            let fit = estimate(&entry(Some(gigabytes)), &machine);
            (fit.fits, fit.device)
        };
        assert_eq!(device_of(4.0), (Some(true), Some("GPU 0".to_owned())));
        assert_eq!(device_of(10.0), (Some(true), Some("CPU".to_owned())));
        assert_eq!(device_of(40.0), (Some(false), None));
        assert_eq!(estimate(&entry(None), &machine).fits, None);
    }
}
