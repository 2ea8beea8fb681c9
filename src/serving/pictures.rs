//! Pictures in prompts: which tokens and rows of embeddings a text with pictures becomes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};

use engine::{BackendKind, Encoder, Picture};
use gguf::{GgufFile, Value};
use images::{Cutting, Family, PickedRow, PicturePlan, PictureSettings, PlanChunk, Rgb, RowOrder, RowsChunk, chunk_source};
use model::{ModelSpec, VisionSpec, VisionWeights};
use scheduler::{Items, RowRun};
pub use scheduler::{Layout, prompt_batch};
use tokenizer::Tokenizer;

/// What stands for a picture in a text.
pub const MARKER: &str = "<__media__>";

/// A picture encoder that belongs to a language model.
pub struct PictureReader {
    encoder: Box<dyn Encoder>,
    settings: PictureSettings,
    /// Whether the language model rotates by three positions.
    has_grids: bool,
    /// Whether the rows of a picture see each other.
    are_whole: bool,
    /// Whether some layer would let them.
    may_be_whole: bool,
}

/// A part of a prompt.
pub enum PromptPart {
    Tokens(Vec<u32>),
    Rows(PictureRows),
}

/// Rows of a picture or of one of its tiles.
pub struct PictureRows {
    pub run: RowRun,
    /// The size of the first tile, and the checksum of its pixels.
    pub width: u32,
    pub height: u32,
    pub crc: u32,
}

impl PictureReader {
    /// Opens a mmproj file for a language model.
    ///
    /// # Errors
    /// The file is malformed, or does not belong to the language model: both widths are named.
    pub fn open(path: &Path, language: &ModelSpec, tokenizer: &Tokenizer, threads: usize, backend: BackendKind) -> anyhow::Result<Self> {
        let file = Arc::new(GgufFile::open(path)?);
        let weights = VisionWeights::load(file.clone())?;
        let (own, due) = ([weights.spec.output_dim, weights.spec.deep_layers.len()], [language.hidden_dim, language.deepstack]);
        ensure!(
            own == due,
            "{}: rows of {} elements and {} further slices, expected {} and {} for the language model: take the mmproj of this model",
            path.display(),
            own[0],
            own[1],
            due[0],
            due[1]
        );
        let settings = settings(&file, &weights.spec).with_context(|| path.display().to_string())?;
        let has = |text: &str| matches!(tokenizer.encode(text, true)[..], [id] if tokenizer.is_control(id));
        Ok(Self {
            settings: settings.with_vocabulary(has),
            has_grids: language.rope_sections.is_some(),
            // Gemma 4's models whose layers have inputs of their own are causal.
            are_whole: language.has_whole_pictures() && language.per_layer_input == 0,
            may_be_whole: language.has_whole_pictures(),
            encoder: engine::open_encoder(weights, threads, backend)?,
        })
    }

    /// Treats pictures as another program does, for comparisons: how some are cut, and which rows see each other.
    #[must_use]
    pub fn with_cutting(mut self, cutting: Cutting) -> Self {
        self.settings.cutting = cutting;
        self.are_whole = self.are_whole || self.may_be_whole && cutting == Cutting::LlamaCpp;
        self
    }

    /// The parts of a prompt whose text has a [`MARKER`] for each picture. Control tokens in the text become ids.
    ///
    /// # Errors
    /// The text has another number of markers, or a picture cannot be cut or encoded.
    pub fn read(&mut self, text: &str, pictures: &[Rgb], tokenizer: &Tokenizer) -> anyhow::Result<Vec<PromptPart>> {
        let texts: Vec<&str> = text.split(MARKER).collect();
        let count = texts.len() - 1;
        ensure!(count == pictures.len(), "the text has {count} markers {MARKER} for {} pictures, expected one for each", pictures.len());
        let (mut parts, mut open) = (Vec::new(), String::new());
        for (number, text) in texts.iter().enumerate() {
            open.push_str(text);
            let Some(picture) = pictures.get(number) else { continue };
            let plan = self.settings.plan(picture.width, picture.height, number)?;
            let tiles = plan.prepare(picture);
            let rows = self.encode(&tiles).with_context(|| format!("picture {number}"))?;
            let id = self.settings.picture_id(picture);
            for (index, chunk) in plan.chunks.iter().enumerate() {
                match chunk {
                    PlanChunk::Text(text) => open.push_str(text),
                    PlanChunk::Rows(chunk) => {
                        push_tokens(&mut parts, &mut open, tokenizer);
                        let run = self.run(&plan, chunk, &rows, chunk_source(&id, index));
                        let tile = &tiles[chunk.tiles.start];
                        parts.push(PromptPart::Rows(PictureRows { run, width: tile.width, height: tile.height, crc: tile.crc32() }));
                    }
                }
            }
        }
        push_tokens(&mut parts, &mut open, tokenizer);
        Ok(parts)
    }

    /// The rows of each tile. One tile at a time, which bounds the encoder's memory.
    fn encode(&mut self, tiles: &[Rgb]) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut all = Vec::with_capacity(tiles.len());
        for tile in tiles {
            let picture = Picture { width: tile.width as usize, height: tile.height as usize, rgb: &tile.pixels };
            all.extend(self.encoder.encode(&[picture])?);
        }
        Ok(all)
    }

    fn run(&self, plan: &PicturePlan, chunk: &RowsChunk, rows: &[Vec<f32>], source: [u8; 32]) -> RowRun {
        let width = self.encoder.spec().row_width();
        let embeddings: Arc<[f32]> = match &chunk.order {
            RowOrder::AsEncoded => rows[chunk.tiles.start].as_slice().into(),
            RowOrder::Picked(picked) => {
                let row = |row: &PickedRow| match *row {
                    PickedRow::Encoded { tile, row } => &rows[tile as usize][row as usize * width..][..width],
                    PickedRow::Newline => self.encoder.newline_row(),
                };
                picked.iter().flat_map(row).copied().collect()
            }
        };
        let tile = &plan.tiles[chunk.tiles.start];
        let layout = match self.has_grids {
            true => Layout::Grid { height: tile.grid_height, width: tile.grid_width },
            false => Layout::Line,
        };
        RowRun { source, num_rows: embeddings.len() / width.max(1), embeddings, layout, is_whole: self.are_whole }
    }
}

/// Adds the tokens of the text since the last rows. The first ones begin with BOS, if the model's prompts do.
fn push_tokens(parts: &mut Vec<PromptPart>, text: &mut String, tokenizer: &Tokenizer) {
    let bos = tokenizer.bos().filter(|_| parts.is_empty() && tokenizer.starts_with_bos());
    let ids: Vec<u32> = bos.into_iter().chain(tokenizer.encode(text, true)).collect();
    text.clear();
    if !ids.is_empty() {
        parts.push(PromptPart::Tokens(ids));
    }
}

/// The items of a prompt.
pub fn items(parts: &[PromptPart]) -> Items {
    let (mut first, mut runs) = (Vec::new(), Vec::<(RowRun, Vec<u32>)>::new());
    for part in parts {
        match part {
            PromptPart::Rows(rows) => runs.push((rows.run.clone(), Vec::new())),
            PromptPart::Tokens(ids) => runs.last_mut().map_or(&mut first, |(_, behind)| behind).extend(ids),
        }
    }
    Items::with_runs(first, runs)
}

/// How the file's pictures are cut, resized and normalised.
pub(super) fn settings(file: &GgufFile, spec: &VisionSpec) -> anyhow::Result<PictureSettings> {
    let pinpoints = file.get_ints("clip.vision.image_grid_pinpoints").unwrap_or_default();
    let name = spec.family.name;
    let family = Family::of_projector(name, !pinpoints.is_empty()).with_context(|| format!("pictures of {name} cannot be cut"))?;
    let number = |suffix: &str| file.get(&format!("clip.vision.{suffix}")).and_then(Value::as_int).filter(|&n| n > 0);
    let narrow = |suffix: &str| number(suffix).and_then(|n| u32::try_from(n).ok());
    let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut settings = PictureSettings { patch_size: of(spec.patch_size), merge: of(spec.merge), ..PictureSettings::of(family) };
    settings.image_size = narrow("image_size").unwrap_or(settings.image_size);
    settings.longest_side = narrow("preproc_image_size").unwrap_or(settings.longest_side);
    settings.min_tiles = narrow("preproc_min_tiles").unwrap_or(settings.min_tiles);
    settings.max_tiles = narrow("preproc_max_tiles").unwrap_or(settings.max_tiles);
    settings = settings.with_default_bounds();
    settings.min_pixels = number("image_min_pixels").and_then(|n| u64::try_from(n).ok()).unwrap_or(settings.min_pixels);
    settings.max_pixels = number("image_max_pixels").and_then(|n| u64::try_from(n).ok()).unwrap_or(settings.max_pixels);
    if spec.num_queries > 0 {
        settings.query_rows = of(spec.num_queries);
    }
    if !pinpoints.is_empty() {
        let pairs = pinpoints.as_chunks::<2>().0.iter().map(|&[a, b]| Some((u32::try_from(a).ok()?, u32::try_from(b).ok()?)));
        settings.pinpoints = pairs.collect::<Option<_>>().context("clip.vision.image_grid_pinpoints: expected pairs of sizes")?;
    }
    (settings.mean, settings.std) = (spec.pixels.mean, spec.pixels.deviation);
    settings.check().map_err(|why| anyhow::anyhow!("clip.vision: {why}"))?;
    Ok(settings)
}

#[cfg(test)]
#[path = "pictures_tests.rs"]
mod tests;
