//! `penstock logits --mmproj`: the logits behind a text with pictures, and what the pictures became.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use images::{Cutting, DecodeLimits};
use serde_json::{Value, json};
use serving::pictures::{Layout, PictureReader, PromptPart, items, prompt_batch};

use super::device::DeviceArgs;
use super::npy::write_npy;
use super::rows::Rows;
use crate::config::Backend;
use crate::gguf::GgufFile;
use crate::model::Weights;
use crate::registry::backend;
use crate::tokenizer::Tokenizer;

/// The largest files [bytes].
const MAX_TEXT: u64 = 16 << 20;
const MAX_PICTURE: u64 = 256 << 20;

#[derive(clap::Args, Debug)]
pub struct PictureArgs {
    /// The model's picture encoder
    #[arg(long, value_name = "FILE.gguf", requires = "text")]
    mmproj: Option<PathBuf>,
    /// A prompt with <__media__> for each picture
    #[arg(long, value_name = "FILE.txt", requires = "mmproj", conflicts_with = "ids")]
    text: Option<PathBuf>,
    /// A picture of the prompt, in order
    #[arg(long, value_name = "FILE", requires = "mmproj")]
    picture: Vec<PathBuf>,
    /// How LLaVA 1.6, MiniCPM-V and Llama 4 cut pictures: llama.cpp, as results to compare with have it, or reference, as served
    #[arg(long, value_name = "WHOSE", default_value = "llama.cpp", value_parser = ["llama.cpp", "reference"])]
    cutting: String,
    /// Write the prompt's chunks: tokens, and pictures with their sizes
    #[arg(long, value_name = "FILE.json", requires = "mmproj")]
    chunks: Option<PathBuf>,
    /// Write the encoder's rows: NumPy, float32 [rows, length]
    #[arg(long, value_name = "FILE.npy", requires = "mmproj")]
    rows: Option<PathBuf>,
}

impl PictureArgs {
    pub fn text(&self) -> Option<(&Path, &Path)> {
        self.text.as_deref().zip(self.mmproj.as_deref())
    }
}

/// The logits behind the prompt.
pub fn run(
    pictures: &PictureArgs,
    device: &DeviceArgs,
    vectors: bool,
    file: &Path,
    (text, mmproj): (&Path, &Path),
) -> anyhow::Result<Vec<f32>> {
    let prompt = outside::read_text(text, MAX_TEXT).with_context(|| format!("cannot read {}", text.display()))?;
    let decoded = pictures.picture.iter().map(|path| {
        let bytes = outside::read_regular(path, MAX_PICTURE).with_context(|| format!("cannot read {}", path.display()))?;
        images::decode(&bytes, &DecodeLimits::default()).with_context(|| path.display().to_string())
    });
    let decoded = decoded.collect::<anyhow::Result<Vec<_>>>()?;
    let opened = Arc::new(GgufFile::open(file)?);
    let tokenizer = Tokenizer::open(&opened)?;
    let language = Weights::load(opened)?.spec;
    let chosen = device.backend(Backend::Cpu)?;
    let kind = backend(chosen).unwrap_or(crate::engine::BackendKind::Cpu);
    let cutting = if pictures.cutting == "reference" { Cutting::Reference } else { Cutting::LlamaCpp };
    let mut reader = PictureReader::open(mmproj, &language, &tokenizer, 0, (kind, device.index()))?.with_cutting(cutting);
    let parts = reader.read(&prompt, &decoded, &tokenizer)?;
    let prompt = items(&parts);
    ensure!(!prompt.is_empty(), "{}: the prompt is empty", text.display());
    if let Some(path) = &pictures.chunks {
        let chunks = Value::Array(chunks(&parts));
        outside::write(path, |out| serde_json::to_writer(out, &chunks).map_err(Into::into))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &pictures.rows {
        let width = language.embedding_width();
        let runs = parts.iter().filter_map(|part| if let PromptPart::Rows(rows) = part { Some(&rows.run) } else { None });
        let rows: Vec<Vec<f32>> = runs.flat_map(|run| run.embeddings.chunks(width).map(<[f32]>::to_vec)).collect();
        write_npy(path, &rows, width).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let longest = prompt.len();
    Rows::open(device, vectors, file, longest, longest)?.last_of(prompt_batch(&prompt))
}

/// The prompt's parts with their positions.
fn chunks(parts: &[PromptPart]) -> Vec<Value> {
    let mut position = 0;
    let chunk = |part: &PromptPart| match part {
        PromptPart::Tokens(ids) => {
            let chunk = json!({"pos": position, "tokens": ids});
            position += ids.len() as u32;
            chunk
        }
        PromptPart::Rows(rows) => {
            let (count, first) = (rows.run.num_rows, position);
            let crc = format!("{:08x}", rows.crc);
            let mut chunk = json!({"pos": first, "rows": count, "width": rows.width, "height": rows.height, "rgb_crc32": crc});
            position += match rows.run.layout {
                Layout::Line => count as u32,
                Layout::Grid { height, width } => {
                    let place = |row: u32| [first, first + row / width, first + row % width];
                    chunk["positions"] = json!((0..count as u32).map(place).collect::<Vec<_>>());
                    height.max(width)
                }
            };
            chunk["positions_used"] = json!(position - first);
            chunk
        }
    };
    parts.iter().map(chunk).collect()
}
