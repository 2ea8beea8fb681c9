//! Wraps the objects of the C side in Rust types. `Drop` frees them, and every status becomes a `Result`.

use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use super::results::Results;
use super::sys;
use crate::{DeviceMemory, EngineError};
use model::QUANTS;

/// The message of this thread's latest failed call.
fn last_error() -> String {
    // SAFETY: takes no argument; the text belongs to this thread and stays until its next call.
    let text = unsafe { sys::pen_last_error() };
    if text.is_null() {
        return "no reason was given".into();
    }
    // SAFETY: a NUL-terminated string, see above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Turns a status into a result. `what` names the subject of the call.
pub fn check(status: sys::pen_status, what: &str) -> Result<(), EngineError> {
    if status == sys::PEN_OK { Ok(()) } else { Err(error_of(status, format!("{what}: {}", last_error()))) }
}

fn error_of(status: sys::pen_status, text: String) -> EngineError {
    match status {
        sys::PEN_INVALID_ARG => EngineError::InvalidBatch(text),
        sys::PEN_UNSUPPORTED => EngineError::Unsupported(text),
        sys::PEN_OUT_OF_MEMORY => EngineError::OutOfMemory(text),
        sys::PEN_MISSING_TENSOR => EngineError::Tensor(text),
        sys::PEN_CUDA => EngineError::Device(text),
        // a bug in the engine: its state can no longer be trusted
        sys::PEN_INTERNAL => EngineError::Device(format!("internal error: {text}")),
        other => EngineError::Device(format!("unknown status {other}: {text}")),
    }
}

/// Refuses a C side of another interface version, or one whose tensor types differ from `QUANTS`.
pub fn verify() -> Result<(), EngineError> {
    for quant in QUANTS {
        let info = quant_info(quant.id)?;
        // SAFETY: the name is a static string of the C side.
        let name = if info.name.is_null() { "".into() } else { unsafe { CStr::from_ptr(info.name) }.to_string_lossy() };
        if (&*name, info.block_size as usize, info.block_bytes as usize) != (quant.name, quant.block_size, quant.block_bytes) {
            let [want, got] =
                [(quant.name, quant.block_size, quant.block_bytes), (&*name, info.block_size as usize, info.block_bytes as usize)]
                    .map(|(name, size, bytes)| format!("{name} with {bytes} bytes for {size} weights"));
            return Err(EngineError::Unsupported(format!("type {}: the CUDA side has {got}, this program expects {want}", quant.id)));
        }
    }
    Ok(())
}

/// A text that the C side wrote, up to its null byte.
fn text_of(written: &[c_char]) -> String {
    let bytes: Vec<u8> = written.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where the kernels of a step would run.
pub enum KernelDevice<'a> {
    Present(&'a Context),
    /// An architecture, such as `sm_90a`.
    Named(CString),
}

impl KernelDevice<'_> {
    /// A device of this architecture.
    pub fn named(arch: &str) -> Result<Self, EngineError> {
        CString::new(arch).map(Self::Named).map_err(|_| EngineError::Unsupported(format!("the architecture {arch:?}")))
    }
}

/// The kernels that op number `op` would run, as paths below `cuda/`. The number behind the last op stands for the head and sampling.
pub fn kernels(on: &KernelDevice, desc: &Lent<sys::pen_model_desc>, load: &sys::pen_load, op: u32) -> Result<String, EngineError> {
    let mut text = [0 as c_char; 512];
    let (context, arch) = match on {
        KernelDevice::Present(context) => (context.0, ptr::null()),
        KernelDevice::Named(arch) => (ptr::null_mut(), arch.as_ptr()),
    };
    // SAFETY: the context is alive or null, `arch` a string or null, but not both; what `desc` lends is valid for reads (the rotation
    // tables are not read), as is `load`; `text` is valid for writes of its length.
    check(unsafe { sys::pen_kernels(context, arch, &**desc, load, op, text.as_mut_ptr(), text.len() as u32) }, "the kernels")?;
    Ok(text_of(&text))
}

fn quant_info(id: u32) -> Result<sys::pen_quant, EngineError> {
    let mut info = sys::pen_quant { r#type: id, name: ptr::null(), block_size: 0, block_bytes: 0 };
    // SAFETY: `info` is valid for reads and writes. The version comes first in every version of the interface.
    check(unsafe { sys::pen_quant_info(sys::PEN_ABI_VERSION, &mut info) }, &format!("tensor type {id}"))?;
    Ok(info)
}

/// A struct of the C side, with the borrow of everything that it points to.
pub struct Lent<'a, T> {
    raw: T,
    borrowed: PhantomData<&'a ()>,
}

impl<T> Lent<'_, T> {
    /// Lends a struct.
    ///
    /// # Safety
    /// As long as the borrow lasts, each pointer of `raw` is valid for reads of the length that `raw` gives for it, or null where the
    /// header allows it, and the same holds for what it points to. The entries of a batch passed `Limits::check`.
    pub unsafe fn new(raw: T) -> Self {
        Self { raw, borrowed: PhantomData }
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.raw
    }
}

/// The device memory that a model takes. No device is needed.
pub fn need(desc: &Lent<sys::pen_model_desc>) -> Result<sys::pen_need, EngineError> {
    let mut need = sys::pen_need::default();
    // SAFETY: what `desc` lends is valid for reads (the rotation tables are not read), and `need` for a write.
    check(unsafe { sys::pen_model_need(&**desc, &mut need) }, "the model")?;
    Ok(need)
}

/// The number of devices that the driver offers, at least one. [`EngineError::NoDevice`] if there is none.
pub fn device_count() -> Result<u32, EngineError> {
    let mut count = 0;
    // SAFETY: `count` is valid for a write.
    match unsafe { sys::pen_device_count(&mut count) } {
        sys::PEN_OK if count > 0 => Ok(count),
        sys::PEN_OK => Err(EngineError::NoDevice("no CUDA device was found".into())),
        _ => Err(EngineError::NoDevice(format!("no CUDA device was found ({})", last_error()))),
    }
}

/// A device's context. Has one owner: a device until a model is loaded, and then that model. The owner's thread alone uses it.
pub struct Context(*mut sys::pen_ctx);

// SAFETY: an object of the C side belongs to one thread at a time, which need not be the thread that made it.
unsafe impl Send for Context {}

impl Context {
    pub fn create(device: u32) -> Result<Self, EngineError> {
        let mut ctx = ptr::null_mut();
        // SAFETY: `ctx` is valid for a write.
        check(unsafe { sys::pen_ctx_create(device, &mut ctx) }, &format!("device {device}"))?;
        Ok(Self(ctx))
    }

    /// The device's memory and its name.
    pub fn memory(&self) -> Result<(DeviceMemory, String), EngineError> {
        let mut name = [0 as c_char; 256];
        let memory = self.mem_info(&mut name, ptr::null_mut())?;
        Ok((memory, text_of(&name)))
    }

    /// The bytes per second that a copy within the device's memory reads and writes. No step may be in flight.
    pub fn copy_bandwidth(&self) -> Result<f64, EngineError> {
        let mut bandwidth = 0.0;
        self.mem_info(&mut [], &mut bandwidth)?;
        Ok(bandwidth)
    }

    fn mem_info(&self, name: &mut [c_char], bandwidth: *mut f64) -> Result<DeviceMemory, EngineError> {
        let mut m = DeviceMemory { free: 0, total: 0, held: 0 };
        let (text, size) = if name.is_empty() { (ptr::null_mut(), 0) } else { (name.as_mut_ptr(), name.len() as u32) };
        // SAFETY: the context is alive; the figures, `name` (of `size` bytes) and `bandwidth` are valid for writes or null.
        let status = unsafe { sys::pen_mem_info(self.0, &mut m.free, &mut m.total, &mut m.held, text, size, bandwidth) };
        check(status, "device memory")?;
        Ok(m)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once, after its models.
        unsafe { sys::pen_ctx_destroy(self.0) }
    }
}

/// A model on its device, while it is loaded and afterwards.
pub struct Model {
    raw: *mut sys::pen_model,
    // dropped after the model
    context: Context,
}

// SAFETY: as for `Context`.
unsafe impl Send for Model {}
// SAFETY: a shared model gives out `tensor` alone, which the header allows several threads to call at once. Only a `Runner` gives out the
// context, and it is not `Sync`.
unsafe impl Sync for Model {}

impl Model {
    pub fn begin(context: Context, desc: &Lent<sys::pen_model_desc>) -> Result<Self, EngineError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the context is alive; what `desc` lends is valid for reads during the call.
        check(unsafe { sys::pen_model_begin(context.0, &**desc, &mut raw) }, "the model")?;
        Ok(Self { raw, context })
    }

    /// Copies `count` matrices of a tensor to the device, starting at number `first`. Several threads may call this at once.
    pub fn tensor(&self, (tensor, name): (u32, &str), first: u32, count: u32, data: &[u8]) -> Result<(), EngineError> {
        let bytes = data.len() as u64;
        // SAFETY: the model is alive and not finished (`finish` takes it by `&mut`); `data` is valid for reads during the call.
        let status = unsafe { sys::pen_model_tensor(self.raw, tensor, first, count, data.as_ptr().cast(), bytes) };
        check(status, name)
    }

    pub fn finish(&mut self) -> Result<(), EngineError> {
        // SAFETY: the model is alive and not shared.
        check(unsafe { sys::pen_model_finish(self.raw) }, "the model")
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once, before its context.
        unsafe { sys::pen_model_destroy(self.raw) }
    }
}

/// A model with its KV cache, which runs steps.
pub struct Runner {
    // dropped by hand before the model
    kv: *mut sys::pen_kv,
    model: Model,
}

// SAFETY: as for `Context`.
unsafe impl Send for Runner {}

impl Runner {
    /// The context of the model. A runner is not `Sync`, so the context stays with the runner's thread.
    pub fn context(&self) -> &Context {
        &self.model.context
    }

    /// Makes the KV cache of a finished model, and captures graphs.
    pub fn new(model: Model, init: &mut sys::pen_kv_init) -> Result<Self, EngineError> {
        let mut kv = ptr::null_mut();
        // SAFETY: the model is alive; `init` and `kv` are valid for writes.
        check(unsafe { sys::pen_kv_create(model.raw, init, &mut kv) }, "the KV cache")?;
        Ok(Self { kv, model })
    }

    /// Maps memory for the first blocks or unmaps the memory of later ones. Returns the number of blocks that have memory.
    pub fn resize(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        let mut backed = 0;
        // SAFETY: the cache is alive; `backed` is valid for a write.
        check(unsafe { sys::pen_kv_resize(self.kv, num_blocks as u32, &mut backed) }, "the KV cache")?;
        Ok(backed as usize)
    }

    /// Loads an adapter to a place, or empties the place if there are no changes.
    pub fn load_adapter(&mut self, place: u32, changes: &Lent<'_, &[sys::pen_change]>) -> Result<(), EngineError> {
        // SAFETY: the model is alive; what `changes` lends has the lengths that it gives and lives through the call.
        let status = unsafe { sys::pen_adapter_load(self.model.raw, place, changes.as_ptr(), changes.len() as u32) };
        check(status, "an adapter")
    }

    pub fn submit(&mut self, batch: &Lent<sys::pen_batch>) -> Result<u64, EngineError> {
        let mut step = 0;
        // SAFETY: both are alive; what `batch` lends has the lengths that it gives and lives through the call.
        check(unsafe { sys::pen_submit(self.model.raw, self.kv, &**batch, &mut step) }, "a step")?;
        Ok(step)
    }

    /// Samples the step that was submitted last.
    pub fn sample(&mut self, step: u64, masks: &Lent<sys::pen_masks>) -> Result<(), EngineError> {
        // SAFETY: the model is alive; what `masks` lends has the lengths that it gives and lives through the call.
        check(unsafe { sys::pen_sample(self.model.raw, step, &**masks) }, "sampling")
    }

    /// Waits for a step. `ends_loops`: lets the loops in flight end early. Returns whether a loop has further steps. If a loop has ended
    /// before its next step, no ids are left in `results`.
    ///
    /// # Safety
    /// `results` was resized by the layout of the batch that was submitted as `step`.
    pub unsafe fn collect(&mut self, step: u64, ends_loops: bool, results: &mut Results) -> Result<bool, EngineError> {
        fn pointer<T>(items: &mut [T]) -> *mut T {
            if items.is_empty() { ptr::null_mut() } else { items.as_mut_ptr() }
        }
        let mut out = sys::pen_output {
            step,
            ends_loops: ends_loops.into(),
            goes_on: 0,
            num_sampled: results.sampled.len() as u32,
            sampled: pointer(&mut results.sampled),
            logits: pointer(&mut results.logits),
            logprobs: pointer(&mut results.logprobs),
            logprob_ids: pointer(&mut results.logprob_ids),
            num_scored: results.num_scored() as u32,
            scored: pointer(&mut results.scored),
            scored_ids: pointer(&mut results.scored_ids),
            pooled: pointer(&mut results.pooled),
            stream: pointer(&mut results.stream),
        };
        // SAFETY: the model is alive; the arrays of `out` have the lengths of the step by the caller's promise and live through the call.
        check(unsafe { sys::pen_collect(self.model.raw, &mut out) }, "a step")?;
        let (num_sampled, goes_on) = (out.num_sampled as usize, out.goes_on != 0);
        results.sampled.truncate(num_sampled);
        Ok(goes_on)
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once, before its model.
        unsafe { sys::pen_kv_destroy(self.kv) }
    }
}

/// A picture encoder, which runs steps of its own.
pub struct EncoderRunner(Model);

// SAFETY: as for `Context`.
unsafe impl Send for EncoderRunner {}

impl EncoderRunner {
    /// Waits until the model's tensors are there.
    pub fn new(mut model: Model) -> Result<Self, EngineError> {
        model.finish()?;
        Ok(Self(model))
    }

    /// Encodes pictures and waits for their rows.
    ///
    /// # Safety
    /// `out` has room for the output's rows of these pictures.
    pub unsafe fn encode(&mut self, pictures: &Lent<sys::pen_pictures>, out: &mut [f32]) -> Result<(), EngineError> {
        // SAFETY: the model is alive; what `pictures` lends has the lengths that it gives and lives through the call; `out` is valid for
        // writes of the output's rows by the caller's promise.
        check(unsafe { sys::pen_encode(self.0.raw, &**pictures, out.as_mut_ptr()) }, "pictures")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_an_error_of_its_kind() {
        let of = |status| error_of(status, "why".into());
        assert!(matches!(of(sys::PEN_INVALID_ARG), EngineError::InvalidBatch(text) if text == "why"));
        assert!(matches!(of(sys::PEN_UNSUPPORTED), EngineError::Unsupported(_)));
        assert!(matches!(of(sys::PEN_OUT_OF_MEMORY), EngineError::OutOfMemory(_)));
        assert!(matches!(of(sys::PEN_MISSING_TENSOR), EngineError::Tensor(_)));
        for lost in [sys::PEN_CUDA, sys::PEN_INTERNAL, 77] {
            assert!(matches!(of(lost), EngineError::Device(text) if text.contains("why")));
        }
    }

    #[test]
    fn both_sides_know_the_same_types() {
        verify().unwrap();
        let error = quant_info(9999).map(|_| ()).unwrap_err();
        assert!(matches!(&error, EngineError::Unsupported(text) if text.contains("9999")), "{error}");
    }
}
