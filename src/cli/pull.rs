//! `penstock pull`: fetches models into the store.

use std::path::Path;

use anyhow::Context;

use super::names::hint;
use super::output::print;
use crate::catalogue::{HubAdapter, Progress, Store, Tools, resolve};
use crate::config::{Config, Overrides};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock pull smollm2:135m
  penstock pull qwen2.5-coder llama3.2
  penstock pull hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
  penstock pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  penstock pull --adapter hf:OWNER/REPO        (then: penstock serve --model M --adapter NAME=hf:OWNER/REPO)

An interrupted pull continues where it stopped. Pulling a model that is on disk verifies its digest.
HF_TOKEN and HF_ENDPOINT apply to models on the Hugging Face hub, and pip's own configuration to models in Python packages.")]
pub struct PullArgs {
    /// Ids or aliases of the catalogue (`penstock list`), or hf:OWNER/REPO/FILE.gguf[@REVISION], or hf:OWNER/REPO:TYPE[@REVISION]
    #[arg(required_unless_present = "adapters", value_name = "MODEL")]
    models: Vec<String>,
    /// Fetch an adapter (LoRA): a repository with PEFT's files or one GGUF file, a folder of it, or a GGUF file; may be repeated
    #[arg(long = "adapter", value_name = "hf:OWNER/REPO[/PLACE][@REVISION]")]
    adapters: Vec<String>,
}

pub fn run(args: PullArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    // All names are looked up first, so that a typo in the last one is reported before the first download.
    let entries = args.models.iter().map(|name| resolve(&config, name)).collect::<anyhow::Result<Vec<_>>>()?;
    let adapters =
        args.adapters.iter().map(|name| name.parse::<HubAdapter>()).collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg)?;
    args.models.iter().for_each(|name| hint(&config, name));
    for entry in entries {
        let progress = Progress::new(&entry.id, entry.size);
        let pulled = store.pull(&entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", entry.id))?;
        drop(progress);
        let what = if pulled.fetched { "fetched" } else { "is already on disk" };
        print(&format!("{} {what}: {}\nsize {} bytes, sha256 {}\n", entry.id, pulled.path.display(), pulled.size, pulled.sha256))?;
    }
    for (adapter, name) in adapters.iter().zip(&args.adapters) {
        let progress = Progress::new(name, None);
        let pulled = store.pull_adapter(adapter, &Tools::from_env(), &progress).with_context(|| format!("adapter `{name}`"))?;
        drop(progress);
        print(&format!("{name} is on disk: {}\nsize {} bytes\n", pulled.path.display(), pulled.size))?;
    }
    Ok(())
}
