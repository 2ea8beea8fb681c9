//! Opens mmproj files: looks up the tensor of each role and checks its shape and type.

use std::sync::Arc;

use super::family::{ClassRow, Places, Step};
use super::read::read;
use super::spec::VisionSpec;
use crate::error::{ModelError, ModelFault};
use crate::load::{FoundTensors, assign_part, refuse_unused};
use crate::read::keys::{Fallible, MAX_DIM, metadata};
use crate::tensor_check::check;
use crate::tensor_roles::TensorRole::{self, *};
use crate::weights::{Weight, Weights};
use gguf::{GgufFile, TensorInfo};

/// An open picture encoder. Every role that its steps need has a tensor of the expected shape.
pub struct VisionWeights {
    pub spec: VisionSpec,
    /// The tensors. The model that they belong to is the tower.
    pub weights: Weights,
}

/// The elements of a head of a resampler.
pub const RESAMPLER_HEAD: usize = 128;

impl VisionWeights {
    /// Validates the encoder in an open file. Copies nothing: the weights stay in the file's map.
    pub fn load(file: Arc<GgufFile>) -> Result<Self, ModelError> {
        match assign(&file) {
            Ok((spec, FoundTensors { by_role, part_tensors })) => {
                let weights = Weights { spec: spec.tower.clone(), file, by_role, part_tensors };
                Ok(Self { spec, weights })
            }
            Err(fault) => Err(ModelError { path: file.path().to_owned(), fault }),
        }
    }
}

/// The search for the tensors outside of the layers.
struct Search<'a> {
    file: &'a GgufFile,
    spec: VisionSpec,
    found: FoundTensors,
    /// The number of the deepstack's projector.
    layer: usize,
}

fn assign(file: &GgufFile) -> Fallible<(VisionSpec, FoundTensors)> {
    file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))?;
    let spec = read(file)?;
    let mut search = Search { file, spec, found: FoundTensors::default(), layer: 0 };
    let tower = search.spec.tower.clone();
    for layer in 0..tower.num_layers() {
        assign_part(file, &tower, layer, &tower.layer_roles(layer), &mut search.found)?;
    }
    search.inputs()?;
    search.projector()?;
    if search.has(NewlineEmbd) {
        search.vector(NewlineEmbd, search.spec.output_dim)?;
    }
    search.deepstack()?;
    refuse_unused(file, &tower, &search.found)?;
    Ok((search.spec, search.found))
}

impl Search<'_> {
    fn has(&self, role: TensorRole) -> bool {
        self.tensor(role).is_some()
    }

    fn name(&self, role: TensorRole) -> String {
        let prefix = if role.per_layer() { self.spec.tower.arch.prefix } else { "" };
        format!("{prefix}{}", role.name(self.layer))
    }

    fn tensor(&self, role: TensorRole) -> Option<&TensorInfo> {
        self.file.tensor_index(&self.name(role)).map(|index| &self.file.tensors()[index])
    }

    /// Whether the file must have a tensor.
    fn is_required(&self, role: TensorRole) -> bool {
        !self.spec.family.optional.contains(&role)
    }

    /// Takes a tensor of these dimensions, innermost first, as a matrix of `cols` columns. Leaves it out if it is optional and missing.
    fn take(&mut self, role: TensorRole, dims: &[usize], cols: usize) -> Fallible<()> {
        let name = self.name(role);
        let Some(index) = self.file.tensor_index(&name) else {
            return match self.is_required(role) {
                true => Err(ModelFault::MissingTensor { tensor: name, expected: dims.to_vec() }),
                false => Ok(()),
            };
        };
        let quant = check(&self.file.tensors()[index], dims, dims.len() == 1)?;
        let rows = dims.iter().product::<usize>() / cols.max(1);
        // a row of a reshaped tensor must begin with a block
        if !cols.is_multiple_of(quant.block_size) {
            let expected = format!("one whose blocks divide the {cols} columns, such as F32, F16 or BF16");
            return Err(ModelFault::TensorType { tensor: name, found: quant.name.to_owned(), expected });
        }
        self.found.by_role.insert((role, self.layer), Weight { quant, rows, cols, tensor: index, offset: 0, stack: None, scale: None });
        Ok(())
    }

    fn vector(&mut self, role: TensorRole, len: usize) -> Fallible<()> {
        self.take(role, &[len], len)
    }

    /// The elements of a tensor's dimension, which the file alone knows.
    fn length(&self, role: TensorRole, dimension: usize) -> Fallible<usize> {
        let name = self.name(role);
        let Some(tensor) = self.tensor(role) else { return Err(ModelFault::MissingTensor { tensor: name, expected: Vec::new() }) };
        match tensor.dims.get(dimension).and_then(|&n| usize::try_from(n).ok()) {
            Some(n) if (1..=MAX_DIM).contains(&n) => Ok(n),
            _ => Err(ModelFault::TensorShape { tensor: name, found: tensor.dims.clone(), expected: Vec::new() }),
        }
    }

    /// A matrix of `cols` columns, and its bias. Returns its rows.
    fn product(&mut self, role: TensorRole, bias: Option<TensorRole>, cols: usize) -> Fallible<usize> {
        let rows = self.length(role, 1)?;
        self.take(role, &[cols, rows], cols)?;
        if let Some(bias) = bias {
            self.vector(bias, rows)?;
        }
        Ok(rows)
    }

    /// What turns pixels into the rows of the first layer.
    fn inputs(&mut self) -> Fallible<()> {
        let (p, hidden) = (self.spec.patch_size, self.spec.tower.hidden_dim);
        let patch = self.spec.patch_len();
        for role in [PatchEmbd, PatchEmbdOfSecondFrame] {
            // Llama 4's is a matrix already.
            let is_matrix = self.tensor(role).is_some_and(|tensor| tensor.dims.len() == 2);
            let dims = if is_matrix { vec![patch, hidden] } else { vec![p, p, 3, hidden] };
            if role == PatchEmbd || self.has(role) {
                self.take(role, &dims, patch)?;
            }
        }
        self.vector(PatchEmbdBias, hidden)?;
        if self.spec.family.is_encoder_free {
            self.vector(PixelNorm, patch)?;
            self.vector(PixelNormBias, patch)?;
            for role in [EmbeddedNorm, EmbeddedNormBias, PlacedNorm, PlacedNormBias] {
                self.vector(role, hidden)?;
            }
        }
        for role in [PatchNorm, PreNorm, PreNormBias] {
            if self.has(role) {
                self.vector(role, hidden)?;
            }
        }
        let class_row = self.spec.family.class_row;
        if class_row != ClassRow::None {
            self.vector(ClassEmbd, hidden)?;
        }
        let side = self.spec.image_size / self.spec.patch_size;
        let count = match self.spec.family.places {
            Places::None => return Ok(()),
            Places::Learned => side * side + usize::from(class_row != ClassRow::None),
            Places::Buckets(side) => side * side,
            Places::Resized(_) | Places::Axes => self.length(PatchPositions, 1)?,
        };
        self.spec.num_places = count;
        if self.spec.family.places == Places::Axes {
            return self.take(PatchPositions, &[hidden, count, 2], hidden);
        }
        if matches!(self.spec.family.places, Places::Resized(_)) && count.isqrt().pow(2) != count {
            let found = vec![hidden as u64, count as u64];
            let expected = vec![hidden as u64, (count.isqrt() as u64).pow(2)];
            return Err(ModelFault::TensorShape { tensor: self.name(PatchPositions), found, expected });
        }
        self.take(PatchPositions, &[hidden, count], hidden)
    }

    /// The steps of the projector, each with the tensors for rows as wide as the step before leaves them.
    fn projector(&mut self) -> Fallible<()> {
        let family = self.spec.family;
        let mut width = self.spec.tower.hidden_dim;
        for &step in family.projector {
            if step.tensor().is_some_and(|role| !self.is_required(role) && !self.has(role)) {
                continue;
            }
            // Without a matrix for joined patches there is nothing to join (Pixtral).
            if matches!(step, Step::Join { .. }) && self.spec.merge == 1 && family.class_row == ClassRow::None {
                continue;
            }
            width = self.step(step, width)?;
            self.spec.steps.push(step);
        }
        self.spec.output_dim = width;
        Ok(())
    }

    /// Takes the tensors of a step for rows of `width` elements. Returns the width of its output.
    fn step(&mut self, step: Step, width: usize) -> Fallible<usize> {
        match step {
            Step::Norm(_, weight, bias) => {
                self.vector(weight, width)?;
                bias.map_or(Ok(()), |bias| self.vector(bias, width))?;
                Ok(width)
            }
            Step::Product(MmMerger, bias) => {
                let (merge, is_matrix) = (self.spec.merge, self.tensor(MmMerger).is_some_and(|tensor| tensor.dims.len() == 2));
                if is_matrix {
                    return self.product(MmMerger, bias, width);
                }
                let rows = self.length(MmMerger, 3)?;
                self.take(MmMerger, &[merge, merge, width / (merge * merge), rows], width)?;
                bias.map_or(Ok(()), |bias| self.vector(bias, rows))?;
                Ok(rows)
            }
            Step::Product(matrix, bias) => self.product(matrix, bias, width),
            Step::Transposed(matrix) => {
                let cols = self.length(matrix, 0)?;
                self.take(matrix, &[cols, width], cols)?;
                Ok(cols)
            }
            Step::Gated { gate, up, .. } => {
                let rows = self.length(gate, 1)?;
                self.take(gate, &[width, rows], width)?;
                self.take(up, &[width, rows], width)?;
                Ok(rows)
            }
            Step::Join { .. } => match width.checked_mul(self.spec.merge * self.spec.merge) {
                Some(joined) if joined <= MAX_DIM => Ok(joined),
                _ => metadata("clip.vision.embedding_length", width.to_string(), format!("at most {MAX_DIM} elements per joined row")),
            },
            Step::Standardise { bias, scale } => {
                self.vector(bias, width)?;
                self.vector(scale, width)?;
                Ok(width)
            }
            Step::Resample => self.resampler(width),
            Step::Breaks(row) => {
                self.vector(row, width)?;
                Ok(width)
            }
            Step::Weightless | Step::Mean | Step::Activate(_) | Step::RootOfLength => Ok(width),
        }
    }

    fn resampler(&mut self, width: usize) -> Fallible<usize> {
        let (dim, count) = (self.length(Queries, 0)?, self.length(Queries, 1)?);
        if !dim.is_multiple_of(RESAMPLER_HEAD) {
            let found = self.tensor(Queries).map(|tensor| tensor.dims.clone()).unwrap_or_default();
            let expected = vec![dim.next_multiple_of(RESAMPLER_HEAD) as u64, count as u64];
            return Err(ModelFault::TensorShape { tensor: self.name(Queries), found, expected });
        }
        self.spec.num_queries = count;
        self.take(Queries, &[dim, count], dim)?;
        self.take(ResamplerKv, &[width, dim], width)?;
        for role in [ResamplerQ, ResamplerK, ResamplerV, ResamplerOut, ResamplerProj] {
            self.take(role, &[dim, dim], dim)?;
        }
        let norms = [ResamplerQNorm, ResamplerKvNorm, ResamplerPostNorm];
        let biases = [ResamplerQNormBias, ResamplerKvNormBias, ResamplerPostNormBias];
        for role in norms.into_iter().chain(biases).chain([ResamplerQBias, ResamplerKBias, ResamplerVBias, ResamplerOutBias]) {
            self.vector(role, dim)?;
        }
        Ok(dim)
    }

    /// The projectors behind layers of the tower, whose rows are as wide as those of the last one.
    fn deepstack(&mut self) -> Fallible<()> {
        let joined = self.spec.tower.hidden_dim * self.spec.merge * self.spec.merge;
        for layer in self.spec.deep_layers.clone() {
            self.layer = layer;
            self.vector(DeepNorm, joined)?;
            self.vector(DeepNormBias, joined)?;
            let inner = self.product(DeepFc1, Some(DeepFc1Bias), joined)?;
            let output = self.product(DeepFc2, Some(DeepFc2Bias), inner)?;
            if output != self.spec.output_dim {
                let found = vec![inner as u64, output as u64];
                let expected = vec![inner as u64, self.spec.output_dim as u64];
                return Err(ModelFault::TensorShape { tensor: self.name(DeepFc2), found, expected });
            }
        }
        self.layer = 0;
        Ok(())
    }
}
