//! Computes a classifier's scores of a vector. A text has only one vector, so the host computes them.

use model::{TensorRole, Weights};

/// A dense layer: out = W · x + bias.
struct Dense {
    matrix: Vec<f32>, // [rows, cols]
    bias: Option<Vec<f32>>,
    cols: usize,
}

/// A classifier: output(tanh(dense(x))), or output(x) without a dense layer.
pub struct Classifier {
    dense: Option<Dense>,
    output: Dense,
}

impl Dense {
    fn load(weights: &Weights, matrix: TensorRole, bias: TensorRole) -> Option<Self> {
        let cols = weights.get(matrix, 0)?.cols;
        Some(Self { matrix: weights.vector(matrix, 0)?, bias: weights.vector(bias, 0), cols })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let product = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32;
        let mut out: Vec<f32> = self.matrix.chunks_exact(self.cols.max(1)).map(product).collect();
        if let Some(bias) = &self.bias {
            out.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        out
    }
}

impl Classifier {
    /// Loads the classifier. None if the model has none.
    pub fn load(weights: &Weights) -> Option<Self> {
        let output = Dense::load(weights, TensorRole::ClassifierOutput, TensorRole::ClassifierOutputBias)?;
        Some(Self { dense: Dense::load(weights, TensorRole::Classifier, TensorRole::ClassifierBias), output })
    }

    pub fn scores(&self, x: &[f32]) -> Vec<f32> {
        let inner = self.dense.as_ref().map(|dense| dense.apply(x).into_iter().map(f32::tanh).collect::<Vec<_>>());
        self.output.apply(inner.as_deref().unwrap_or(x))
    }
}
