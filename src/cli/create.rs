//! `penstock create`: makes a model of the store from a Modelfile.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::output::{file_type, human_bytes, print, say};
use crate::catalogue::{Manifest, Progress, Store, Tools, resolve};
use crate::config::{Config, Overrides};
use crate::create::{CreateError, MAX_MODELFILE, Maker, Modelfile, Recipe};
use crate::quantize::FileType;

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock create mario -f Modelfile
  penstock create smollm2:q4 -f Modelfile --quantize Q4_K_M
  printf 'FROM smollm2:135m\\nSYSTEM You are Mario.\\n' | penstock create mario -f -

A Modelfile has FROM (a model, or the path of a GGUF file), PARAMETER, SYSTEM, TEMPLATE, MESSAGE and LICENSE. A
TEMPLATE is written in Jinja, or in Go's language, which is translated. Weights are linked, not copied. A running
server serves the model within five seconds.")]
pub struct CreateArgs {
    /// The name of the new model. A model that was made before under this name is replaced
    #[arg(value_name = "NAME")]
    name: String,
    /// The Modelfile; `-` reads stdin
    #[arg(short, long, value_name = "FILE", default_value = "Modelfile")]
    file: PathBuf,
    /// Convert the weights to this file type: Q4_K_M, Q8_0 and so on
    #[arg(short, long, value_name = "TYPE", value_parser = file_type)]
    quantize: Option<&'static FileType>,
}

pub fn run(args: CreateArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    let (text, folder) = read(&args.file)?;
    let shown = args.file.display();
    let parsed = Modelfile::parse(&text).and_then(|modelfile| modelfile.recipe(&folder));
    let (recipe, notes) = parsed.map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
    notes.iter().for_each(|note| say(&format!("{shown}: {note}")));
    let recipe = Recipe { quantize: args.quantize.map(|kind| kind.name.to_owned()), ..recipe };
    let manifest = make(&config, &store, &args.name, recipe).with_context(|| format!("the model `{}` was not made", args.name))?;
    print(&format!("{} made, {}\n", manifest.id, human_bytes(manifest.whole_size())))
}

/// Reads a Modelfile. Returns the folder where its paths begin, too.
fn read(file: &Path) -> anyhow::Result<(String, PathBuf)> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().take(MAX_MODELFILE + 1).read_to_string(&mut text).context("stdin")?;
        anyhow::ensure!(text.len() as u64 <= MAX_MODELFILE, "stdin: a Modelfile has at most {MAX_MODELFILE} bytes");
        return Ok((text, PathBuf::from(".")));
    }
    let text = outside::read_text(file, MAX_MODELFILE).with_context(|| file.display().to_string())?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((text, folder.to_owned()))
}

/// Makes a model, and fetches the one to start from if it is not on disk.
fn make(config: &Config, store: &Store, name: &str, recipe: Recipe) -> anyhow::Result<Manifest> {
    let maker = Maker { config, store };
    match maker.make(name, recipe.clone(), &|stage| say(stage)) {
        Err(CreateError::NotOnDisk(id)) => {
            let entry = resolve(config, &id)?;
            let progress = Progress::new(&entry.id, entry.size);
            store.pull(&entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", entry.id))?;
            drop(progress);
            Ok(maker.make(name, recipe, &|stage| say(stage))?)
        }
        Err(CreateError::NotFound(name)) => bail!("there is no model `{name}` to start from: `penstock list` shows the models"),
        made => Ok(made?),
    }
}
