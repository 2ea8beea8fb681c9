//! The parameters of a norm.

use model::NormKind;

/// A norm's parameters. A LayerNorm usually has a bias, an RMS norm seldom.
pub struct Norm {
    pub kind: NormKind,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub eps: f32,
}
