//! Devices that models are computed on, and the backends that find them.

use super::{BackendKind, CacheGroup, DefaultLoad, DeviceMemory, Engine, EngineError, EngineOptions};
use model::Weights;

/// A device: the CPU, or one GPU. Each backend implements it once and has a line in [`BACKENDS`](super::BACKENDS).
pub trait Device {
    /// How many devices the backend has on this machine.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if a driver is missing.
    fn count() -> Result<u32, EngineError>
    where
        Self: Sized;

    /// Takes hold of a device. The CPU is always there, whatever the index.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if the backend has none, [`EngineError::Unsupported`] if it has others but not this one.
    fn discover(index: u32) -> Result<Self, EngineError>
    where
        Self: Sized;

    /// Ends the process in the way that is safe while an engine of this backend may hang.
    fn end_process(code: i32) -> !
    where
        Self: Sized,
    {
        std::process::exit(code)
    }

    /// The backend, and the device's index among those of the backend.
    fn place(&self) -> (BackendKind, u32);

    fn describe(&self) -> Result<DeviceInfo, EngineError>;

    /// The defaults for options that leave the size of a batch open.
    fn default_load(&self) -> DefaultLoad;

    /// The share of the memory that weights and scratch leave free, which the KV cache of one context may take if nobody says how long
    /// the context is to be.
    fn cache_share(&self, options: &EngineOptions) -> f64;

    /// Bytes of its memory that KV caches of this process hold, and give back if somebody else needs them.
    fn cache_bytes(&self) -> u64;

    /// What a model would take of the device's memory. `options` are filled.
    fn budget(&self, weights: &Weights, options: &EngineOptions) -> Result<Budget, EngineError>;

    /// Opens an engine over a model's mapped weights. `options` are filled.
    fn open(self: Box<Self>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    /// The device's memory now, of which `held` is 0. None: the system does not tell.
    pub memory: Option<DeviceMemory>,
}

/// What a model takes of a device's memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub weights: u64,
    /// One KV block.
    pub kv_block: u64,
    /// The cache groups, of which each needs blocks of its own.
    pub groups: Vec<CacheGroup>,
    /// All state slots; 0 for models without recurrent state.
    pub state: u64,
    /// Activations, logits, sampling state: an estimate from above.
    pub scratch: u64,
}

/// A backend as the seam knows it: the functions of [`Device`] that need no device yet.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    pub kind: BackendKind,
    pub count: fn() -> Result<u32, EngineError>,
    pub discover: fn(index: u32) -> Result<Box<dyn Device>, EngineError>,
    pub end_process: fn(code: i32) -> !,
}

impl Backend {
    /// The backend whose devices are `D`.
    pub const fn of<D: Device + 'static>(kind: BackendKind) -> Self {
        Self { kind, count: D::count, discover: discover::<D>, end_process: D::end_process }
    }
}

fn discover<D: Device + 'static>(index: u32) -> Result<Box<dyn Device>, EngineError> {
    Ok(Box::new(D::discover(index)?))
}
