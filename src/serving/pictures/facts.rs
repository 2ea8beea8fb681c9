//! What a mmproj file and a language model say of each other.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use super::settings::settings;
use engine::BackendKind;
use gguf::GgufFile;
use model::{ModelSpec, VisionWeights};

/// The rows of pictures that a language model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// The language model's architecture.
    pub architecture: &'static str,
    /// The elements of a row, and the further slices for the first layers (deepstack).
    pub width: usize,
    pub slices: usize,
}

impl RowShape {
    pub fn of(spec: &ModelSpec) -> Self {
        Self { architecture: spec.arch.name, width: spec.hidden_dim, slices: spec.deepstack }
    }
}

/// A picture encoder, described by its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderFacts {
    /// `clip.projector_type`
    pub family: &'static str,
    /// The elements of a row, and the further slices.
    pub width: usize,
    pub slices: usize,
    /// The most rows that a picture becomes.
    pub most_rows: usize,
    /// Size of the file [bytes].
    pub bytes: u64,
    /// The memory that the encoder takes on a GPU [bytes]. 0 if it runs on the CPU instead.
    pub gpu_bytes: u64,
    /// The architectures that the encoder is for. Empty: any.
    languages: &'static [&'static str],
}

impl EncoderFacts {
    /// Reads a mmproj file: all tensors are checked, and none is read.
    ///
    /// # Errors
    /// The file cannot be read, is no picture encoder, or is one of a family that is not supported.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = Arc::new(GgufFile::open(path)?);
        Self::of(&file, &VisionWeights::load(file.clone())?)
    }

    pub(super) fn of(file: &GgufFile, weights: &VisionWeights) -> anyhow::Result<Self> {
        let spec = &weights.spec;
        let settings = settings(file, spec).with_context(|| file.path().display().to_string())?;
        let (most_rows, gpu_bytes) = (settings.most_rows(), engine::encoder_bytes(weights, settings.most_patches(), BackendKind::Cuda));
        let (width, slices, languages) = (spec.output_dim, spec.deep_layers.len(), spec.family.languages);
        Ok(Self { family: spec.family.name, width, slices, most_rows, bytes: file.file_bytes(), gpu_bytes, languages })
    }

    /// The memory that the encoder takes on a device of a backend [bytes].
    pub fn bytes_on(&self, backend: BackendKind) -> u64 {
        match backend {
            BackendKind::Cpu => self.bytes,
            BackendKind::Cuda => self.gpu_bytes,
        }
    }

    /// Checks that the encoder belongs to a language model.
    ///
    /// # Errors
    /// What differs, with both values.
    pub fn check(&self, model: &RowShape) -> Result<(), String> {
        let Self { family, width, slices, .. } = self;
        if !self.languages.is_empty() && !self.languages.contains(&model.architecture) {
            let (known, architecture) = (self.languages.join(", "), model.architecture);
            return Err(format!("it encodes pictures for models of the architecture {known} ({family}), and the model is {architecture}"));
        }
        if (*width, *slices) != (model.width, model.slices) {
            let further = |slices: usize| if slices == 0 { String::new() } else { format!(" and {slices} further slices") };
            let (due, more) = (model.width, further(model.slices));
            return Err(format!("its rows have {width} elements{}, and those of the model have {due}{more}", further(*slices)));
        }
        Ok(())
    }
}
