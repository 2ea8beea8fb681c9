//! Defines the seam between the scheduler and a backend: one flat [`Batch`] goes down per step, and one [`StepOutput`] comes up.
//!
//! `engine.rs` holds the seam's trait, and `batch.rs` the data that crosses it. `options.rs` holds the options that an engine is opened
//! with, `info.rs` the description that it gives of itself, and `device.rs` the devices. The backends share `check.rs` and `rope.rs`.

mod adapter;
mod batch;
mod block_tables;
mod cache_type;
mod check;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod decay;
mod device;
mod encoder;
mod engine;
mod error;
mod footprint;
mod info;
mod kernels;
mod latent;
mod memory_ledger;
mod need;
mod options;
#[cfg(feature = "test-engine")]
mod paced;
mod picture_layout;
#[cfg(test)]
mod picture_testing;
mod pool_blocks;
mod portable_cache;
mod program;
mod progress;
mod rope;

pub use model::{CacheWindow, Pooling};

pub use adapter::{Adapter, AdapterUse, ChangeKind, Direction, LowRank, SequenceAdapters, WeightChange};
pub use batch::{Batch, DraftRequest, Input, MAX_HEAD_DRAFTS, Masks, Sampled, Scored, SlotInit, StepId, StepOutput, VectorRequest};
pub use block_tables::BlockTables;
pub use cache_type::CacheType;
pub use device::{Backend, Budget, Device, DeviceInfo};
pub use encoder::{Encoder, EncoderOptions, Picture, passes};
pub use engine::Engine;
pub use error::EngineError;
pub use footprint::{Footprint, footprints, least_bytes, longest_context};
pub use info::{BackendKind, CacheGroup, DeviceMemory, DraftHeadInfo, EngineInfo, KvCapacity, LoopLimits, LoopTimes};
pub use kernels::{KernelsOn, StepSize};
pub use memory_ledger::cache_bytes;
use model::{Source, Weights};
pub use need::{Need, need};
pub use options::{DefaultLoad, EngineOptions, ModelPart, Resident};
#[cfg(feature = "test-engine")]
pub use paced::Paced;
pub use portable_cache::{CachePart, PortableCache};
pub use program::{Scope, Shard};
pub use progress::Progress;

/// The backends of this build, in the order in which they are tried. A new backend adds one line.
pub const BACKENDS: &[Backend] = &[
    #[cfg(feature = "cuda")]
    Backend::of::<cuda::Gpu>(BackendKind::Cuda),
    #[cfg(not(feature = "test-engine"))]
    Backend::of::<cpu::Cpu>(BackendKind::Cpu),
    #[cfg(feature = "test-engine")]
    paced::BACKEND,
];

/// Opens a device of one backend.
///
/// # Errors
/// [`EngineError::NoDevice`] if this build lacks the backend, or this machine has no such device.
pub fn device(kind: BackendKind, index: u32) -> Result<Box<dyn Device>, EngineError> {
    (find_backend(BACKENDS, kind)?.discover)(index)
}

/// Opens an engine over a model's mapped weights, on a device of `kind`. None takes the first backend that has a device. The whole cache
/// that the options ask for gets memory at once, for callers that do not let the cache grow.
///
/// # Errors
/// The errors of [`device`]. A model that does not fit on the device is an error even if another backend could hold it.
/// [`EngineError::Weights`] if the weights' file has changed since it was opened.
pub fn open(weights: Weights, options: &EngineOptions, kind: Option<BackendKind>) -> Result<Box<dyn Engine>, EngineError> {
    let mut engine = open_on(find_device(kind, options.device)?, weights, options)?;
    let num_blocks = engine.kv_capacity().num_blocks;
    match engine.resize_cache(num_blocks)? {
        backed if backed < num_blocks => {
            Err(EngineError::OutOfMemory(format!("there is memory for {backed} of {num_blocks} blocks of KV cache")))
        }
        _ => Ok(engine),
    }
}

/// Opens an engine like [`open`], on a device that was found before. The cache has its smallest size.
///
/// # Errors
/// The errors of [`open`].
pub fn open_on(device: Box<dyn Device>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
    let options = device.fill(&weights.spec, options)?;
    let source = Source::of(&weights);
    let engine = device.open(weights, &options)?;
    // Confirms that what was copied or computed from the weights is what their file held.
    source.verify().map_err(EngineError::of_weights)?;
    Ok(engine)
}

/// The number of a backend's devices on this machine.
///
/// # Errors
/// [`EngineError::NoDevice`] if this build lacks the backend, or a driver is missing.
pub fn num_devices(kind: BackendKind) -> Result<u32, EngineError> {
    (find_backend(BACKENDS, kind)?.count)()
}

/// Finds a device of `kind`. None takes the first backend that has a device, and logs why earlier backends have none.
///
/// # Errors
/// The errors of [`device`].
pub fn find_device(kind: Option<BackendKind>, index: u32) -> Result<Box<dyn Device>, EngineError> {
    match kind {
        Some(kind) => device(kind, index).map_err(|error| match error {
            EngineError::NoDevice(why) => {
                EngineError::NoDevice(format!("{why}, and the backend {kind} was asked for: ask for cpu or auto"))
            }
            other => other,
        }),
        None => first_device(index),
    }
}

fn first_device(index: u32) -> Result<Box<dyn Device>, EngineError> {
    for (i, backend) in BACKENDS.iter().enumerate() {
        match (backend.discover)(index) {
            Err(EngineError::NoDevice(why)) => match BACKENDS.get(i + 1) {
                Some(next) => tracing::info!("{why}: trying the {} backend", next.kind),
                None => return Err(EngineError::NoDevice(why)),
            },
            found => return found,
        }
    }
    Err(EngineError::NoDevice("this build is without a backend".into()))
}

/// The program that a backend runs for a part of a model with sequences of up to `context` tokens, as text. Needs no device.
///
/// # Errors
/// [`EngineError::NoDevice`] if this build lacks the backend. The errors of a model that the backend cannot run.
pub fn list_program(weights: &Weights, context: usize, scope: &Scope, kind: BackendKind) -> Result<String, EngineError> {
    (find_backend(BACKENDS, kind)?.list_program)(weights, context, scope)
}

/// The kernels that a step of a model would run on a device of a backend, as text: a line per op, with how many times it occurs.
///
/// # Errors
/// [`EngineError::NoDevice`] if this build lacks the backend, or this machine has no such device. [`EngineError::Unsupported`] if the
/// backend does not choose kernels by the step, or knows no device of the architecture.
pub fn list_kernels(weights: &Weights, kind: BackendKind, on: &KernelsOn, size: StepSize) -> Result<String, EngineError> {
    (find_backend(BACKENDS, kind)?.list_kernels)(weights, on, size)
}

fn find_backend(backends: &[Backend], kind: BackendKind) -> Result<&Backend, EngineError> {
    backends
        .iter()
        .find(|backend| backend.kind == kind)
        .ok_or_else(|| EngineError::NoDevice(format!("this build is without {}: build it with the feature `{kind}`", kind.title())))
}

/// Ends the process in a way that is safe for every backend of this build, even while an engine hangs.
pub fn end_process(code: i32) -> ! {
    (BACKENDS[0].end_process)(code)
}

/// The memory that an encoder takes on a device of `kind` [bytes]. 0 if it runs on the CPU instead.
pub fn encoder_bytes(weights: &model::VisionWeights, most_patches: usize, kind: BackendKind) -> u64 {
    match kind {
        // The weights stay in the mapped file.
        BackendKind::Cpu => weights.weights.file.file_bytes(),
        BackendKind::Cuda => gpu_bytes(weights, most_patches),
    }
}

#[cfg(feature = "cuda")]
fn gpu_bytes(weights: &model::VisionWeights, most_patches: usize) -> u64 {
    cuda::CudaEncoder::need(weights, most_patches).unwrap_or(0)
}

#[cfg(not(feature = "cuda"))]
fn gpu_bytes(_: &model::VisionWeights, _: usize) -> u64 {
    0
}

/// Opens an encoder on a device, or on the CPU if it does not fit on the device or the device does not compute all of it.
///
/// # Errors
/// [`EngineError::Unsupported`] for tensor types that the kernels do not know. [`EngineError::OutOfMemory`].
pub fn open_encoder(weights: model::VisionWeights, options: EncoderOptions) -> Result<Box<dyn Encoder>, EngineError> {
    match open_device_encoder(&weights, options) {
        Ok(Some(encoder)) => return Ok(encoder),
        Ok(None) => {}
        Err(why @ (EngineError::OutOfMemory(_) | EngineError::Unsupported(_))) => {
            tracing::warn!("the picture encoder runs on the CPU: {why}");
        }
        Err(other) => return Err(other),
    }
    Ok(Box::new(cpu::CpuEncoder::new(weights, options.threads)?))
}

/// Opens an encoder on a GPU. None on the CPU, which is no device of its own.
#[cfg(feature = "cuda")]
fn open_device_encoder(weights: &model::VisionWeights, options: EncoderOptions) -> Result<Option<Box<dyn Encoder>>, EngineError> {
    let EncoderOptions { place: (BackendKind::Cuda, index), most_patches, .. } = options else { return Ok(None) };
    let source = Source::of(&weights.weights);
    let encoder = cuda::open_encoder(weights, index, most_patches)?;
    source.verify().map_err(EngineError::of_weights)?;
    Ok(Some(encoder))
}

#[cfg(not(feature = "cuda"))]
fn open_device_encoder(_: &model::VisionWeights, _: EncoderOptions) -> Result<Option<Box<dyn Encoder>>, EngineError> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there_and_comes_last() {
        let cpu = BACKENDS.last().unwrap();
        assert_eq!((cpu.kind, (cpu.count)().unwrap()), (BackendKind::Cpu, 1));
        let name = (cpu.discover)(7).unwrap().describe().unwrap().name;
        assert_eq!(name, "CPU", "the index is that of a GPU");
    }

    #[test]
    fn a_backend_that_the_build_is_without_is_named() {
        let cpu = &BACKENDS[BACKENDS.len() - 1..];
        let Err(EngineError::NoDevice(why)) = find_backend(cpu, BackendKind::Cuda) else { panic!("there is no such backend") };
        assert_eq!(why, "this build is without CUDA: build it with the feature `cuda`");
        assert_eq!(find_backend(cpu, BackendKind::Cpu).unwrap().kind, BackendKind::Cpu);
        assert!(first_device(0).is_ok());
    }
}
