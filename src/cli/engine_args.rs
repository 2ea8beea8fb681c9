//! Flags of every command that runs a model.

use crate::config::{Backend, CacheType, Context, Overrides};

#[derive(clap::Args, Debug)]
pub struct EngineArgs {
    /// The backend to compute with: auto, cpu or cuda
    #[arg(long)]
    backend: Option<Backend>,
    /// Index of the GPU
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// CPU threads; 0: one per physical core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The longest context, in tokens; auto: as long as the model was made for and memory holds
    #[arg(long, value_name = "TOKENS")]
    context: Option<Context>,
    /// How the KV cache stores keys and values: auto, f32, f16 or q8
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
}

impl EngineArgs {
    /// The flags as settings, with every other setting unchanged.
    pub fn overrides(&self) -> Overrides {
        let Self { backend, device, threads, context, cache_type } = *self;
        Overrides { backend, device, threads, context, cache_type, ..Overrides::default() }
    }
}
