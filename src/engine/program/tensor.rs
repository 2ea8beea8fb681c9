//! [`Tensor`]: weights that a program reads, and what is done to them when a model is loaded.

use crate::EngineError;
use crate::decay::lightning_factors;
use crate::latent::halves;
use crate::program::scope::Span;
use model::{Stack, StackLayout, TensorRole, Weight, Weights};

/// The index of a tensor in [`Program::tensors`](super::Program::tensors).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub usize);

/// `count` matrices of `rows` rows and `cols` columns. A vector has one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name of the tensor in the file, or a name for what has none.
    pub name: String,
    pub source: Source,
    /// The part of the source that the tensor is. Rows, columns and matrices are those of this part.
    pub slice: Slice,
    pub rows: usize,
    pub cols: usize,
    pub count: usize,
    /// The number of matrices that a row reads. 0 for tables, of which a row reads one row.
    pub read: usize,
}

/// Where the weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The tensor of a role in a layer, as the file holds it.
    File(TensorRole, usize),
    /// Matrix `index` of `count` in the tensor of a role outside the layers.
    Part { role: TensorRole, index: usize, count: usize },
    /// A vector of the file, changed.
    Changed(TensorRole, usize, Change),
    /// The transpose of a matrix of the file outside the layers.
    Transposed(TensorRole),
    /// Sines and cosines of a place: row p has sin(p · f), then cos(p · f), with `cols` / 2 frequencies f = 10000^(−2 i / cols).
    Waves,
    /// The matrices from each head's query to the latent space, transposed from a layer's combined tensor.
    LatentKeys(usize),
    /// The matrices from the latent space to each head's value, in a layer's combined tensor.
    LatentValues(usize),
    /// A vector of ones: the weights of a norm without weights.
    Ones,
    /// The decay of each head of a layer with lightning attention.
    LightningFactors { layer: usize, num_layers: usize },
}

/// A part of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slice {
    Whole,
    /// Neighbouring rows of a matrix.
    Rows(Span),
    /// Neighbouring columns of a matrix, or elements of a vector.
    Columns(Span),
    /// Neighbouring matrices of a stack.
    Matrices(Span),
}

/// A change of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// 1 / x
    Reciprocal,
    /// x / sqrt(length)
    OverRootOfLength,
    /// x / length
    OverLength,
    /// −x
    Negated,
}

impl Tensor {
    /// Looks up the weights of a matrix or stack in the file, with all columns. `None` for what is computed.
    pub fn weight(&self, weights: &Weights) -> Option<Weight> {
        let weight = self.source_weight(weights)?;
        match self.slice {
            Slice::Whole | Slice::Columns(_) => Some(weight),
            Slice::Rows(span) => {
                let offset = weight.offset + span.first * weight.quant.row_bytes(weight.cols);
                Some(Weight { rows: span.len, offset, ..weight })
            }
            Slice::Matrices(span) => Some(some_matrices(&weight, span)),
        }
    }

    fn source_weight(&self, weights: &Weights) -> Option<Weight> {
        match self.source {
            Source::File(role, layer) | Source::Changed(role, layer, _) => weights.get(role, layer).copied(),
            Source::Part { role, index, count } => weights.get(role, 0).map(|whole| weights.part(whole, index, count)),
            Source::LatentKeys(layer) => latent_halves(weights, layer).map(|[keys, _]| keys),
            Source::LatentValues(layer) => latent_halves(weights, layer).map(|[_, values]| values),
            Source::Transposed(role) => weights.get(role, 0).copied(),
            Source::Ones | Source::Waves | Source::LightningFactors { .. } => None,
        }
    }

    /// Looks up weights that the model needs.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] if the file does not have them.
    pub fn required_weight(&self, weights: &Weights) -> Result<Weight, EngineError> {
        self.weight(weights).ok_or_else(|| missing(&self.name))
    }

    /// All weights of a vector as float32.
    pub fn vector(&self, weights: &Weights) -> Vec<f32> {
        match self.slice {
            Slice::Columns(span) => self.source_vector(weights)[span.range()].to_vec(),
            _ => self.source_vector(weights),
        }
    }

    /// The part of the factors of a source's products that are the tensor's own: one, or one per matrix.
    pub fn own_scales(&self, scales: Vec<f32>) -> Vec<f32> {
        match self.slice {
            Slice::Matrices(span) if scales.len() > 1 => scales[span.range()].to_vec(),
            _ => scales,
        }
    }

    fn source_vector(&self, weights: &Weights) -> Vec<f32> {
        let file = |role, layer| weights.vector(role, layer).unwrap_or_default();
        match self.source {
            Source::File(role, layer) => file(role, layer),
            Source::Changed(role, layer, change) => change.apply(file(role, layer)),
            Source::Ones => vec![1.0; self.cols],
            Source::Waves => waves(self.rows, self.cols),
            Source::LightningFactors { layer, num_layers } => lightning_factors(self.cols, layer, num_layers),
            Source::Part { .. } | Source::Transposed(_) | Source::LatentKeys(_) | Source::LatentValues(_) => Vec::new(),
        }
    }
}

/// Neighbouring matrices of a stack.
fn some_matrices(stack: &Weight, span: Span) -> Weight {
    let rows = stack.rows / span.of * span.len;
    let whole = Weight { rows, stack: stack.stack.map(|stack| Stack { count: span.len, ..stack }), ..*stack };
    match stack.stack.map(|stack| stack.place) {
        None => Weight { offset: stack.offset + span.first * (stack.num_bytes() / span.of), ..whole },
        Some(StackLayout::Apart(bytes)) => Weight { offset: stack.offset + span.first * bytes, ..whole },
        Some(StackLayout::Tensors(first)) => {
            let place = StackLayout::Tensors(first + span.first);
            Weight { stack: Some(Stack { count: span.len, place }), ..whole }
        }
    }
}

/// The rows of [`Source::Waves`].
fn waves(rows: usize, cols: usize) -> Vec<f32> {
    let pairs = cols / 2;
    let angle = |row: usize, i: usize| row as f64 * 10_000f64.powf(-(i as f64) / pairs as f64);
    let row = |row| (0..pairs).map(move |i| angle(row, i).sin() as f32).chain((0..pairs).map(move |i| angle(row, i).cos() as f32));
    (0..rows).flat_map(row).collect()
}

/// The error of a tensor that the file does not have.
pub fn missing(name: &str) -> EngineError {
    EngineError::Tensor(format!("{name} is missing"))
}

impl Change {
    fn apply(self, mut all: Vec<f32>) -> Vec<f32> {
        let len = all.len() as f32;
        let factor = 1.0 / len.sqrt();
        all.iter_mut().for_each(|x| match self {
            Change::Reciprocal => *x = 1.0 / *x,
            Change::OverRootOfLength => *x *= factor,
            Change::OverLength => *x /= len,
            Change::Negated => *x = -*x,
        });
        all
    }
}

/// The rows of the keys and the rows of the values of a layer's combined tensor.
fn latent_halves(weights: &Weights, layer: usize) -> Option<[Weight; 2]> {
    Some(halves(weights.spec.layers.get(layer)?.latent()?, weights.get(TensorRole::AttnKvB, layer)?))
}
