//! `penstock logits`: the raw logits at the last position of each prompt.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};

use super::adapter_args::{AdapterArgs, OpenAdapters};
use super::device::DeviceArgs;
use super::logits_pictures::{self, PictureArgs};
use super::names::file_of;
use super::npy::write_npy;
use super::rows::{CHUNK, Rows};
use crate::engine::SequenceAdapters;
use crate::gguf::GgufFile;
use crate::model::Weights;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  echo '[[1,2,3]]' > ids.json && penstock logits model.gguf --ids ids.json --out logits.npy")]
pub struct LogitsArgs {
    /// A model on disk, or a GGUF file
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// A JSON array of prompts, each an array of token ids
    #[arg(long, value_name = "FILE.json", required_unless_present = "text")]
    ids: Option<PathBuf>,
    #[command(flatten)]
    pictures: PictureArgs,
    /// Write each prompt's pooled vector instead, or its scores if the model ranks texts: float32 [prompts, length]
    #[arg(long)]
    vectors: bool,
    /// Write the logits of the file's first draft head instead (multi-token prediction). The head reads each token with the row before it
    #[arg(long, requires = "ids", conflicts_with = "vectors")]
    heads: bool,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// The output file: NumPy, float32 [prompts, vocabulary]
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
    /// Runs on the CPU unless a flag names another device
    #[command(flatten)]
    device: DeviceArgs,
}

pub fn run(args: LogitsArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let file = file_of(config, &args.model)?;
    let rows = match (args.pictures.text(), &args.ids) {
        (Some(paths), _) => vec![logits_pictures::run(&args.pictures, &args.device, args.vectors, &file, paths)?],
        (None, Some(ids)) => of_ids(&args, &file, ids)?,
        (None, None) => bail!("expected --ids, or --text with --mmproj"),
    };
    write_npy(&args.out, &rows, rows.first().map_or(0, Vec::len)).with_context(|| format!("cannot write {}", args.out.display()))
}

/// The logits or vectors of prompts of ids.
fn of_ids(args: &LogitsArgs, file: &Path, path: &Path) -> anyhow::Result<Vec<Vec<f32>>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let prompts: Vec<Vec<u32>> =
        serde_json::from_str(&text).with_context(|| format!("{}: expected an array of arrays of token ids", path.display()))?;
    ensure!(
        !prompts.is_empty() && prompts.iter().all(|p| !p.is_empty()),
        "{}: expected at least one prompt, each with at least one id",
        path.display()
    );
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    let mut rows = match args.heads {
        true => Rows::open_draft_head(&args.device, file, longest)?,
        false => Rows::open(&args.device, args.vectors, file, longest, CHUNK)?,
    };
    let adapters = if args.adapters.is_empty() { None } else { Some(load_adapters(args, file, &mut rows)?) };
    let vocab = rows.engine.spec().vocab_size;
    if let Some(id) = prompts.iter().flatten().find(|&&id| id as usize >= vocab) {
        bail!("{}: id {id} is not in the vocabulary, which has {vocab} tokens", path.display());
    }
    let mut read = |prompt: &Vec<u32>| {
        rows.adapters = adapters.as_ref().map_or_else(SequenceAdapters::default, |adapters| adapters.of_prompt(prompt));
        match (args.vectors, args.heads) {
            (true, _) => rows.vector(prompt),
            (_, true) => rows.last_draft(prompt),
            _ => rows.last(prompt),
        }
    };
    prompts.iter().map(&mut read).collect()
}

/// Opens the adapters that the flags name, and loads them to the engine.
fn load_adapters(args: &LogitsArgs, file: &Path, rows: &mut Rows) -> anyhow::Result<OpenAdapters> {
    let weights = Weights::load(Arc::new(GgufFile::open(file)?))?;
    let adapters = args.adapters.open(&weights)?;
    adapters.load(&mut *rows.engine)?;
    Ok(adapters)
}
