//! Flags of every command that runs a model.

use crate::config::{Backend, Context, Overrides};

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
}

impl EngineArgs {
    /// The flags as settings, with every other setting unchanged.
    pub fn overrides(&self) -> Overrides {
        let Self { backend, device, threads, context } = *self;
        Overrides { backend, device, threads, context, ..Overrides::default() }
    }
}
