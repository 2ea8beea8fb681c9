//! Defines [`Device`], on which models are computed, and [`Backend`], which finds devices.

use super::{BackendKind, CacheGroup, CacheType, DefaultLoad, DeviceMemory, Engine, EngineError, EngineOptions, KernelsOn, StepSize};
use crate::program::{Program, Scope};
use crate::rope::ropes;
use model::{ModelSpec, Weights};

/// A device: the CPU or one GPU. Each backend implements this trait once and has a line in [`BACKENDS`](super::BACKENDS).
pub trait Device {
    /// The number of the backend's devices on this machine.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if a driver is missing.
    fn count() -> Result<u32, EngineError>
    where
        Self: Sized;

    /// Opens a device by its index. The CPU ignores the index.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if the backend has no device, [`EngineError::Unsupported`] if it has others but not this one.
    fn discover(index: u32) -> Result<Self, EngineError>
    where
        Self: Sized;

    /// Ends the process in a way that is safe while an engine of this backend may hang.
    fn end_process(code: i32) -> !
    where
        Self: Sized,
    {
        std::process::exit(code)
    }

    /// The program that the backend runs for a part of a model, as text: the model's own, unless the backend lowers it to ops of a device.
    /// Needs no device.
    ///
    /// # Errors
    /// The errors of a model that the backend cannot run.
    fn list_program(weights: &Weights, context: usize, scope: &Scope) -> Result<String, EngineError>
    where
        Self: Sized,
    {
        let (_, links) = ropes(weights, context);
        Ok(Program::new(weights, &links, scope)?.listing(weights))
    }

    /// The kernels that a step would run, as text. Needs no device if `on` names an architecture.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if the backend does not choose kernels by the step, or knows no device of the architecture.
    fn list_kernels(_weights: &Weights, _on: &KernelsOn, _size: StepSize) -> Result<String, EngineError>
    where
        Self: Sized,
    {
        Err(EngineError::Unsupported("kernels of the CPU, which are the same in every step: ask for a GPU".into()))
    }

    /// The backend, and the device's index among the backend's devices.
    fn place(&self) -> (BackendKind, u32);

    fn describe(&self) -> Result<DeviceInfo, EngineError>;

    /// The defaults for options that leave the batch size open.
    fn default_load(&self) -> DefaultLoad;

    /// The types of KV cache that the device has. The first one is its own, if no option names another.
    fn cache_types(&self) -> &'static [CacheType];

    /// The share of the memory left by weights and scratch that the KV cache of one context may take, if no option sets the context's
    /// length.
    fn cache_share(&self, options: &EngineOptions) -> f64;

    /// Bytes of the device's memory that the KV caches of this process hold. They give memory back if another model needs it.
    fn cache_bytes(&self) -> u64;

    /// The memory that a model would take on the device. `options` are filled.
    fn budget(&self, weights: &Weights, options: &EngineOptions) -> Result<Budget, EngineError>;

    /// Opens an engine over a model's mapped weights. `options` are filled.
    fn open(self: Box<Self>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError>;
}

impl dyn Device + '_ {
    /// The type of KV cache that the options choose.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a type that the device does not have.
    pub fn cache_type(&self, options: &EngineOptions) -> Result<CacheType, EngineError> {
        let all = self.cache_types();
        let chosen = options.cache_type.unwrap_or(all[0]);
        if all.contains(&chosen) {
            return Ok(chosen);
        }
        let (name, known) = (self.describe()?.name, all.iter().map(|known| known.name()).collect::<Vec<_>>().join(" or "));
        Err(EngineError::Unsupported(format!(
            "a KV cache of {chosen} on {name}: cache_type there is auto or {known}; the CPU has all types"
        )))
    }

    /// Replaces options that are left open by the device's defaults for a model.
    pub(super) fn fill(&self, spec: &ModelSpec, options: &EngineOptions) -> Result<EngineOptions, EngineError> {
        let cache_type = Some(self.cache_type(options)?);
        Ok(EngineOptions { cache_type, ..options.filled_for(spec, self.default_load(), self.describe()?.memory) })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    /// The device's memory now, with `held` at 0. None if the system does not report it.
    pub memory: Option<DeviceMemory>,
}

/// The device memory that a model takes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub weights: u64,
    /// One KV block.
    pub kv_block: u64,
    /// The cache groups. Each needs blocks of its own.
    pub groups: Vec<CacheGroup>,
    /// All state slots. 0 for models without recurrent state.
    pub state: u64,
    /// Activations, logits and sampling state: an upper estimate.
    pub scratch: u64,
}

/// A backend as the seam sees it: the functions of [`Device`] that need no device yet.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    pub kind: BackendKind,
    pub count: fn() -> Result<u32, EngineError>,
    pub discover: fn(index: u32) -> Result<Box<dyn Device>, EngineError>,
    pub end_process: fn(code: i32) -> !,
    pub list_program: fn(weights: &Weights, context: usize, scope: &Scope) -> Result<String, EngineError>,
    pub list_kernels: fn(weights: &Weights, on: &KernelsOn, size: StepSize) -> Result<String, EngineError>,
}

impl Backend {
    /// The backend whose devices are `D`.
    pub const fn of<D: Device + 'static>(kind: BackendKind) -> Self {
        Self {
            kind,
            count: D::count,
            discover: discover::<D>,
            end_process: D::end_process,
            list_program: D::list_program,
            list_kernels: D::list_kernels,
        }
    }
}

fn discover<D: Device + 'static>(index: u32) -> Result<Box<dyn Device>, EngineError> {
    Ok(Box::new(D::discover(index)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose caches are float16, as a GPU's are.
    struct Halves;

    impl Device for Halves {
        fn count() -> Result<u32, EngineError> {
            Ok(1)
        }

        fn discover(_index: u32) -> Result<Self, EngineError> {
            Ok(Self)
        }

        fn place(&self) -> (BackendKind, u32) {
            (BackendKind::Cuda, 0)
        }

        fn describe(&self) -> Result<DeviceInfo, EngineError> {
            Ok(DeviceInfo { name: "GPU 0 (H200)".into(), memory: None })
        }

        fn default_load(&self) -> DefaultLoad {
            DefaultLoad { max_slots: 1, max_batch_tokens: 1 }
        }

        fn cache_types(&self) -> &'static [CacheType] {
            &[CacheType::F16]
        }

        fn cache_share(&self, _options: &EngineOptions) -> f64 {
            1.0
        }

        fn cache_bytes(&self) -> u64 {
            0
        }

        fn budget(&self, _weights: &Weights, _options: &EngineOptions) -> Result<Budget, EngineError> {
            Err(EngineError::Unsupported("no models".into()))
        }

        fn open(self: Box<Self>, _weights: Weights, _options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
            Err(EngineError::Unsupported("no models".into()))
        }
    }

    #[test]
    fn a_type_of_cache_that_a_device_lacks_is_refused_by_name() {
        let of = |device: &dyn Device, cache_type| device.cache_type(&EngineOptions { cache_type, ..EngineOptions::default() });
        for auto in [None, Some(CacheType::F16)] {
            assert_eq!(of(&Halves, auto).unwrap(), CacheType::F16);
        }
        for (cache_type, name) in [(CacheType::Q8, "q8"), (CacheType::F32, "f32")] {
            let error = of(&Halves, Some(cache_type)).unwrap_err().to_string();
            let due = format!("unsupported: a KV cache of {name} on GPU 0 (H200): cache_type there is auto or f16; the CPU has all types");
            assert_eq!(error, due);
        }
        let cpu = crate::cpu::Cpu;
        assert_eq!(of(&cpu, None).unwrap(), CacheType::F32);
        assert!(CacheType::ALL.iter().all(|&each| of(&cpu, Some(each)).unwrap() == each));
    }
}
