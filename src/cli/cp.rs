//! `penstock cp`: gives a model a second name.

use std::path::Path;

use super::output::print;
use crate::catalogue::Store;
use crate::config::{Config, Overrides};
use crate::create::{CreateError, Maker};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock cp smollm2:135m my-smollm

The copy is a second name for the same files, which take no further space. It stays if the first one is removed.")]
pub struct CpArgs {
    /// An id or alias of a model on disk
    #[arg(value_name = "MODEL")]
    source: String,
    /// The second name
    #[arg(value_name = "NAME")]
    destination: String,
}

pub fn run(args: &CpArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    let copied = Maker { config: &config, store: &store }.copy(&args.source, &args.destination);
    let manifest = copied.map_err(|error| match error {
        CreateError::NotFound(name) => anyhow::anyhow!("there is no model `{name}`: `penstock list` shows the models"),
        other => other.into(),
    })?;
    print(&format!("{} is a second name of {}\n", manifest.id, args.source))
}
