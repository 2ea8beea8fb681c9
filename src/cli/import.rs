//! `penstock import`: takes over models from another program's folder, without copying them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::output::{human_bytes, print, say};
use crate::catalogue::{LATEST, Store};
use crate::config::{Config, Overrides};
use crate::create::{FolderModel, Maker, OllamaFolder, default_folder};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock import ollama
  penstock import ollama llama3.2 qwen3:8b
  penstock import ollama --from /usr/share/ollama/.ollama/models

The weights are linked: hard links in the same file system, symbolic links to another one. Their digests are checked, which reads them once.
The chat template of a model's file comes before Ollama's; without one, Ollama's is translated.")]
pub struct ImportArgs {
    /// The program whose models are taken over
    #[arg(value_name = "PROGRAM", value_parser = ["ollama"])]
    program: String,
    /// The models, by the names that the program lists [default: all]
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// The folder of the models [default: $OLLAMA_MODELS, or ~/.ollama/models]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

pub fn run(args: ImportArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    let root = args.from.or_else(default_folder).context("no home directory is known: name the folder with --from")?;
    let folder = OllamaFolder::open(&root)?;
    let models = chosen(folder.list(), &args.models, &root)?;
    let maker = Maker { config: &config, store: &store };
    let mut failed = 0;
    for model in &models {
        let told = |note: &str| say(&format!("{}: {note}", model.name));
        match maker.import(&folder, model, &told) {
            Ok(manifest) => print(&format!("{} imported, {}\n", manifest.id, human_bytes(manifest.whole_size())))?,
            Err(error) => {
                failed += 1;
                say(&format!("{}: {error}", model.name));
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} models were not imported", models.len()),
    }
}

/// The models to take over. All names are looked up first.
fn chosen(all: Vec<FolderModel>, names: &[String], root: &Path) -> anyhow::Result<Vec<FolderModel>> {
    if names.is_empty() {
        anyhow::ensure!(!all.is_empty(), "{}: the folder holds no model", root.display());
        return Ok(all);
    }
    let find = |name: &String| {
        let name = name.strip_suffix(LATEST).unwrap_or(name);
        let found = all.iter().find(|model| model.name == name).cloned();
        found.with_context(|| format!("{}: the folder holds no model `{name}`", root.display()))
    };
    names.iter().map(find).collect()
}
