//! [`HostAdapter`]: an adapter in the host's memory, for sequences to ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Adapter;

/// An adapter that is ready to be loaded to an engine.
#[derive(Debug)]
pub struct HostAdapter {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    /// No other adapter of the process has it, not even one that is read again from the same file.
    pub id: u64,
    pub adapter: Adapter,
}

impl HostAdapter {
    pub fn new(name: &str, adapter: Adapter) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { name: name.into(), id: NEXT.fetch_add(1, Ordering::Relaxed), adapter }
    }
}

/// An adapter that a sequence asks for.
#[derive(Clone, Debug)]
pub struct AdapterRequest {
    pub adapter: Arc<HostAdapter>,
    pub scale: f32,
    /// The first token of the prompt that it changes. 0, but for an activated LoRA.
    pub first: u32,
}
