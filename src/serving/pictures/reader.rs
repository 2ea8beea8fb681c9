//! [`PictureReader`]: reads a prompt with pictures without a server.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};

use super::rules::{EncodedPicture, PictureRules};
use engine::{BackendKind, Encoder, EncoderOptions, Picture};
use images::{Cutting, PicturePlan, PlanChunk, Rgb};
use model::{ModelSpec, VisionWeights};
use scheduler::{Items, RowRun};
use tokenizer::Tokenizer;

/// What stands for a picture in a text.
pub const MARKER: &str = "<__media__>";

/// A picture encoder that belongs to a language model.
pub struct PictureReader {
    pub(super) rules: Arc<PictureRules>,
    encoder: Box<dyn Encoder>,
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
    /// As [`PictureRules::open`], or the encoder cannot be opened.
    pub fn open(
        path: &Path,
        language: &ModelSpec,
        tokenizer: &Tokenizer,
        threads: usize,
        place: (BackendKind, u32),
    ) -> anyhow::Result<Self> {
        let (rules, weights) = PictureRules::open(path, language, tokenizer)?;
        Self::over(Arc::new(rules), weights, threads, place)
    }

    /// An encoder for rules that are open already, on the device of its language model.
    pub(super) fn over(
        rules: Arc<PictureRules>,
        weights: VisionWeights,
        threads: usize,
        place: (BackendKind, u32),
    ) -> anyhow::Result<Self> {
        let options = EncoderOptions { place, threads, most_patches: rules.most_patches() };
        Ok(Self { rules, encoder: engine::open_encoder(weights, options)? })
    }

    /// Treats pictures as another program does, for comparisons: how some are cut, and which rows see each other.
    #[must_use]
    pub fn with_cutting(mut self, cutting: Cutting) -> Self {
        if let Some(rules) = Arc::get_mut(&mut self.rules) {
            rules.set_cutting(cutting);
        }
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
            let plan = self.rules.plan((picture.width, picture.height), number)?;
            let tiles = plan.prepare(picture);
            let id = self.rules.picture_id(picture);
            let rows = self.encode(&tiles.iter().collect::<Vec<_>>(), &mut || Ok(())).with_context(|| format!("picture {number}"))?;
            let encoded = self.encoded(&id, &plan, &rows);
            let mut runs = encoded.runs.into_iter();
            for chunk in &plan.chunks {
                match chunk {
                    PlanChunk::Text(text) => open.push_str(text),
                    PlanChunk::Rows(chunk) => {
                        push_tokens(&mut parts, &mut open, tokenizer);
                        let tile = &tiles[chunk.tiles.start];
                        let of_run = |run| PictureRows { run, width: tile.width, height: tile.height, crc: tile.crc32() };
                        parts.extend(runs.next().map(of_run).map(PromptPart::Rows));
                    }
                }
            }
        }
        push_tokens(&mut parts, &mut open, tokenizer);
        Ok(parts)
    }

    /// The rows of each tile. `goes_on` is asked before each of the encoder's passes.
    pub(super) fn encode(&mut self, tiles: &[&Rgb], goes_on: &mut dyn FnMut() -> anyhow::Result<()>) -> anyhow::Result<Vec<Vec<f32>>> {
        let num_patches: Vec<usize> = tiles.iter().map(|tile| self.rules.num_patches(tile)).collect();
        let mut rows = Vec::with_capacity(tiles.len());
        for pass in engine::passes(&num_patches, self.encoder.patches_per_pass()) {
            goes_on()?;
            let pictures: Vec<_> = tiles[pass]
                .iter()
                .map(|tile| Picture { width: tile.width as usize, height: tile.height as usize, rgb: &tile.pixels })
                .collect();
            rows.extend(self.encoder.encode(&pictures)?);
        }
        Ok(rows)
    }

    /// The runs of a picture with the rows of its tiles.
    pub(super) fn encoded(&self, id: &[u8; 32], plan: &PicturePlan, rows: &[Vec<f32>]) -> EncodedPicture {
        self.rules.encoded(id, plan, rows, self.encoder.newline_row())
    }

    /// The most patches of several pictures that are encoded in one pass. 0: each picture has a pass of its own.
    pub(super) fn patches_per_pass(&self) -> usize {
        self.encoder.patches_per_pass()
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
