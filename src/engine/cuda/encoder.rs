//! [`CudaEncoder`]: runs a picture encoder's program on a GPU, beside the language model's steps.

use super::encoder_describe::EncoderDescription;
use super::load::CopyPlan;
use super::lower::{DeviceProgram, row_set};
use super::raii::{Context, EncoderRunner, Lent};
use super::sys;
use crate::EngineError;
use crate::encoder::{Encoder, Picture, grids, passes};
use crate::picture_layout::PictureLayout;
use crate::program::{RowSet, Rule, Within};
use model::vision::Places;
use model::{TensorRole, VisionSpec, VisionWeights};
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct CudaEncoder {
    runner: EncoderRunner,
    spec: VisionSpec,
    /// The rules of the lists of mixed rows that a step brings.
    mixes: Vec<Rule>,
    /// The lists of rows that see each other: what they see, and the set of the rows that do.
    spans: Vec<(Within, RowSet)>,
    /// The set of the output's rows.
    output_rows: RowSet,
    newline: Vec<f32>,
    patches_per_pass: usize,
}

/// A list of mixed rows as the C side takes it.
struct TermList {
    ends: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl CudaEncoder {
    /// Copies an encoder's weights to a device, whose file may be unmapped afterwards. `most_patches`: the most patches of a picture.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] names the op that the device does not compute. [`EngineError::OutOfMemory`] if the encoder does not
    /// fit.
    pub fn new(context: Context, vision: &VisionWeights, most_patches: usize) -> Result<Self, EngineError> {
        let description = EncoderDescription::new(vision, most_patches)?;
        let need = description.need()?;
        let (needed, (memory, device)) = (need.weights + need.scratch, context.memory()?);
        if needed > memory.free {
            return Err(EngineError::OutOfMemory(format!("the picture encoder needs {needed} bytes and {} are free", memory.free)));
        }
        let model = description.begin(context)?;
        CopyPlan::new(description.program()).copy(&model, &vision.weights)?;
        let runner = EncoderRunner::new(model)?;
        tracing::info!(device, bytes = needed, "the picture encoder is open");
        let (output_rows, patches_per_pass) = (description.output_rows(), description.patches_per_pass());
        let DeviceProgram { mixes, spans, .. } = description.into_program();
        let newline = vision.weights.vector(TensorRole::NewlineEmbd, 0).unwrap_or_default();
        let mut encoder = Self { runner, spec: vision.spec.clone(), mixes, spans, output_rows, newline, patches_per_pass };
        encoder.warm_up(most_patches)?;
        Ok(encoder)
    }

    /// Encodes an empty picture, so that the kernels are loaded. Otherwise the steps of a language model would wait for that.
    fn warm_up(&mut self, most_patches: usize) -> Result<(), EngineError> {
        let VisionSpec { merge, patch_size, image_size, num_places, .. } = self.spec;
        let side = match self.spec.family.places {
            Places::Learned => image_size / patch_size,
            Places::Axes => (most_patches.isqrt().min(num_places) / merge).max(1) * merge,
            _ => (most_patches.isqrt() / merge).max(1) * merge,
        };
        let pixels = side * patch_size;
        let rgb = vec![0; 3 * pixels * pixels];
        self.encode(&[Picture { width: pixels, height: pixels, rgb: &rgb }]).map(drop)
    }

    /// The bytes of a device's memory that an encoder takes.
    ///
    /// # Errors
    /// As [`CudaEncoder::new`].
    pub fn need(vision: &VisionWeights, most_patches: usize) -> Result<u64, EngineError> {
        let need = EncoderDescription::new(vision, most_patches)?.need()?;
        Ok(need.weights + need.scratch)
    }

    /// Encodes pictures together.
    fn encode_pass(&mut self, pictures: &[Picture], grids: &[[usize; 2]]) -> Result<Vec<Vec<f32>>, EngineError> {
        let layout = PictureLayout::new(&self.spec, grids);
        let size = self.spec.patch_size;
        let pixels = pictures.iter().map(|picture| picture.rgb).collect::<Vec<_>>().concat();
        let starts: Vec<usize> = pictures.iter().scan(0, |end, picture| Some(std::mem::replace(end, *end + picture.rgb.len()))).collect();
        let patch = |patch: &crate::picture_layout::Patch| {
            let line = 3 * pictures[patch.picture].width;
            let first = starts[patch.picture] + patch.row * size * line + 3 * patch.col * size;
            sys::pen_patch { first: first as u32, line: line as u32 }
        };
        let patches: Vec<_> = layout.patches().iter().map(patch).collect();
        let place = |row| {
            let [_, row, col] = layout.positions(row, self.spec.family.rotation);
            [row, col]
        };
        let positions: Vec<u32> = (0..layout.num_rows(RowSet::Tower)).flat_map(place).collect();
        let mut rows = [0; sys::PEN_NUM_ROW_SETS];
        RowSet::ALL.iter().for_each(|&set| rows[row_set(set) as usize] = layout.num_rows(set) as u32);
        let lists: Vec<TermList> = self.mixes.iter().map(|&rule| terms(&layout, rule)).collect();
        let terms: Vec<_> = lists
            .iter()
            .map(|list| sys::pen_terms {
                num_parts: list.ends.len() as u32,
                num_terms: list.rows.len() as u32,
                ends: list.ends.as_ptr(),
                rows: list.rows.as_ptr(),
                weights: list.weights.as_ptr(),
            })
            .collect();
        let span_lists: Vec<_> = self.spans.iter().map(|&(within, queries)| spans(&layout, within, queries)).collect();
        let spans: Vec<_> = span_lists.iter().map(|list| sys::pen_spans { num_spans: list.len() as u32, spans: list.as_ptr() }).collect();
        let raw = sys::pen_pictures {
            num_pixels: pixels.len() as u32,
            num_terms: terms.len() as u32,
            num_spans: spans.len() as u32,
            rows: rows.as_ptr(),
            pixels: pixels.as_ptr(),
            patches: patches.as_ptr(),
            positions: positions.as_ptr(),
            terms: terms.as_ptr(),
            spans: spans.as_ptr(),
        };
        let width = self.spec.row_width();
        let mut out = vec![0f32; layout.num_rows(self.output_rows) * width];
        // SAFETY: every pointer leads into a local list, which lives through the call, with the list's length. The patches and positions
        // are one per row of their sets.
        let lent = unsafe { Lent::new(raw) };
        // SAFETY: there is a float for each element of the output's rows.
        unsafe { self.runner.encode(&lent, &mut out)? };
        // the first picture's rows stay where they are: copying 20 MB takes as long as some layers
        let ranges = layout.of_pictures(self.output_rows);
        let mut rows: Vec<_> = ranges.iter().rev().map(|range| out.split_off(range.start * width)).collect();
        rows.reverse();
        Ok(rows)
    }
}

fn terms(layout: &PictureLayout, rule: Rule) -> TermList {
    let terms = layout.terms(rule);
    let (rows, weights) = terms.all().iter().copied().unzip();
    TermList { ends: terms.ends().to_vec(), rows, weights }
}

/// The rows of each group with those that they see.
fn spans(layout: &PictureLayout, within: Within, queries: RowSet) -> Vec<sys::pen_span> {
    let keys = layout.groups(within);
    let of_queries = if queries == RowSet::Tower { keys.clone() } else { layout.of_pictures(queries) };
    let span = |(rows, keys): (std::ops::Range<usize>, std::ops::Range<usize>)| sys::pen_span {
        first: rows.start as u32,
        rows: rows.len() as u32,
        first_key: keys.start as u32,
        keys: keys.len() as u32,
    };
    of_queries.into_iter().zip(keys).map(span).collect()
}

/// The number of encoders at work, on any device.
static NUM_AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Counts an encoder as at work until it is dropped.
struct AtWork;

impl AtWork {
    fn begin() -> Self {
        NUM_AT_WORK.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        NUM_AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether an encoder is at work.
pub fn is_at_work() -> bool {
    NUM_AT_WORK.load(Ordering::Relaxed) > 0
}

impl Encoder for CudaEncoder {
    fn spec(&self) -> &VisionSpec {
        &self.spec
    }

    fn newline_row(&self) -> &[f32] {
        &self.newline
    }

    fn patches_per_pass(&self) -> usize {
        self.patches_per_pass
    }

    fn encode(&mut self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>, EngineError> {
        let grids = grids(pictures, &self.spec)?;
        let _at_work = AtWork::begin();
        let num_patches: Vec<usize> = grids.iter().map(|[rows, cols]| rows * cols).collect();
        let mut rows = Vec::with_capacity(pictures.len());
        for pass in passes(&num_patches, self.patches_per_pass) {
            rows.extend(self.encode_pass(&pictures[pass.clone()], &grids[pass])?);
        }
        Ok(rows)
    }
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
