//! [`PictureRules`]: what becomes of a model's pictures, as the mmproj file and the language model say.

use std::path::Path;
use std::sync::Arc;

use super::error::PictureError;
use super::facts::{EncoderFacts, RowShape};
use super::settings::settings;
use gguf::GgufFile;
use images::{Cutting, Family, PickedRow, PicturePlan, PictureSettings, PlanChunk, Rgb, RowOrder, RowsChunk, chunk_source};
use model::{ModelSpec, VisionSpec, VisionWeights};
use scheduler::{Layout, RowRun};
use tokenizer::Tokenizer;

/// How pictures are cut, and where their rows stand in the language model.
pub struct PictureRules {
    settings: PictureSettings,
    encoder: VisionSpec,
    /// Whether the language model rotates by three positions.
    has_grids: bool,
    /// Whether the rows of a picture see each other.
    are_whole: bool,
    /// Whether some layer would let them.
    may_be_whole: bool,
    /// The most rows that may have to be in one step.
    most_together: usize,
}

/// The rows of a picture, a run for each chunk of its plan that holds rows.
#[derive(Debug)]
pub struct EncodedPicture {
    pub runs: Vec<RowRun>,
}

impl EncodedPicture {
    /// The size in memory [bytes].
    pub fn num_bytes(&self) -> usize {
        self.runs.iter().map(|run| size_of::<RowRun>() + 4 * run.embeddings.len()).sum()
    }
}

impl PictureRules {
    /// Opens a mmproj file for a language model.
    ///
    /// # Errors
    /// The file is malformed, or does not belong to the language model: both widths are named.
    pub fn open(path: &Path, language: &ModelSpec, tokenizer: &Tokenizer) -> anyhow::Result<(Self, VisionWeights)> {
        let file = Arc::new(GgufFile::open(path)?);
        let weights = VisionWeights::load(file.clone())?;
        let facts = EncoderFacts::of(&file, &weights)?;
        facts
            .check(&RowShape::of(language))
            .map_err(|fault| anyhow::anyhow!("{}: {fault}: take the mmproj of this model", path.display()))?;
        let settings = settings(&file, &weights.spec)?;
        let has = |text: &str| matches!(tokenizer.encode(text, true)[..], [id] if tokenizer.is_control(id));
        let rules = Self {
            settings: settings.with_vocabulary(has),
            encoder: weights.spec.clone(),
            has_grids: language.rope_sections.is_some(),
            // Gemma 4's models whose layers have inputs of their own are causal.
            are_whole: language.has_whole_pictures() && language.per_layer_input == 0,
            may_be_whole: language.has_whole_pictures(),
            most_together: usize::MAX,
        };
        Ok((rules, weights))
    }

    /// Refuses pictures whose rows see each other if a step of the language model does not hold them.
    pub(super) fn limit_steps(&mut self, max_batch_tokens: usize) {
        self.most_together = max_batch_tokens;
    }

    /// Treats pictures as another program does, for comparisons: how some are cut, and which rows see each other.
    pub(super) fn set_cutting(&mut self, cutting: Cutting) {
        self.settings.cutting = cutting;
        self.are_whole = self.are_whole || self.may_be_whole && cutting == Cutting::LlamaCpp;
    }

    /// The most patches that the encoder gets at once.
    pub(super) fn most_patches(&self) -> usize {
        self.settings.most_patches()
    }

    /// The patches of a tile.
    pub(super) fn num_patches(&self, tile: &Rgb) -> usize {
        let patches = |side: u32| side as usize / self.encoder.patch_size;
        patches(tile.height) * patches(tile.width)
    }

    /// The family of encoders.
    pub fn family(&self) -> Family {
        self.settings.family
    }

    /// What becomes of a picture of this size. `number`: its place among the prompt's pictures, from 0 on.
    ///
    /// # Errors
    /// The model reads no picture of this size.
    pub fn plan(&self, (width, height): (u32, u32), number: usize) -> Result<PicturePlan, PictureError> {
        let plan = self.settings.plan(width, height, number)?;
        let patches = |side: u32| side as usize / self.encoder.patch_size;
        for tile in &plan.tiles {
            self.encoder.check_grid([patches(tile.height), patches(tile.width)]).map_err(PictureError::Grid)?;
        }
        let rows = rows_chunks(&plan).map(|(_, chunk)| chunk.num_rows).max().unwrap_or(0);
        if self.are_whole && rows > self.most_together {
            return Err(PictureError::TooManyRows { rows, most: self.most_together });
        }
        Ok(plan)
    }

    /// The size of a row of embeddings in memory [bytes].
    pub fn row_bytes(&self) -> usize {
        self.encoder.row_width() * size_of::<f32>()
    }

    /// The runs of a plan's chunks, in order, without embeddings. They have the length and the positions of those of [`Self::encoded`].
    pub fn planned(&self, plan: &PicturePlan) -> Vec<RowRun> {
        let run = |chunk: &RowsChunk| self.run(plan, chunk, Arc::default(), [0; 32]);
        rows_chunks(plan).map(|(_, chunk)| run(chunk)).collect()
    }

    /// SHA-256 of a picture's pixels with the settings.
    pub(super) fn picture_id(&self, picture: &Rgb) -> [u8; 32] {
        self.settings.picture_id(picture)
    }

    /// The runs of a picture. `rows`: those of each tile; `newline`: the encoder's row between rows of tiles.
    pub(super) fn encoded(&self, id: &[u8; 32], plan: &PicturePlan, rows: &[Vec<f32>], newline: &[f32]) -> EncodedPicture {
        let run = |(index, chunk): (usize, &RowsChunk)| {
            let embeddings = match &chunk.order {
                RowOrder::AsEncoded => rows[chunk.tiles.start].as_slice().into(),
                RowOrder::Picked(picked) => {
                    let width = self.encoder.row_width();
                    let row = |row: &PickedRow| match *row {
                        PickedRow::Encoded { tile, row } => &rows[tile as usize][row as usize * width..][..width],
                        PickedRow::Newline => newline,
                    };
                    picked.iter().flat_map(row).copied().collect()
                }
            };
            self.run(plan, chunk, embeddings, chunk_source(id, index))
        };
        EncodedPicture { runs: rows_chunks(plan).map(run).collect() }
    }

    fn run(&self, plan: &PicturePlan, chunk: &RowsChunk, embeddings: Arc<[f32]>, source: [u8; 32]) -> RowRun {
        let tile = &plan.tiles[chunk.tiles.start];
        let layout = match self.has_grids {
            true => Layout::Grid { height: tile.grid_height, width: tile.grid_width },
            false => Layout::Line,
        };
        RowRun { source, num_rows: chunk.num_rows, embeddings, layout, is_whole: self.are_whole }
    }
}

/// The chunks of rows, each with its index among all chunks.
fn rows_chunks(plan: &PicturePlan) -> impl Iterator<Item = (usize, &RowsChunk)> {
    plan.chunks.iter().enumerate().filter_map(|(index, chunk)| match chunk {
        PlanChunk::Rows(rows) => Some((index, rows)),
        PlanChunk::Text(_) => None,
    })
}
