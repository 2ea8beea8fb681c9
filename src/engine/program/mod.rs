//! A model's forward pass as data: one walk over the model's description writes a [`Program`], and each backend lowers it to its kernels.
//!
//! A program says what is computed, in float32 and op by op. It holds no pointer and no type of a backend, so programs can be compared and
//! printed. Fusing ops, rounding between them and padding are matters of a lowering: `cpu/lower` and `cuda/lower`.

mod check;
mod links;
pub mod op;
mod parts;
mod print;
pub mod rules;
mod scope;
pub mod slices;
pub mod tensor;
#[cfg(test)]
mod tests;
pub mod uses;
mod walk;

pub use links::LayerLinks;
pub use op::{
    Activate, AddShared, AddSlice, Among, Attention, BufferId, Convolve, Correct, Covers, Decay, Delta, EachHead, Embed, Exchange, Experts,
    FinishHeads, Function, Heads, Linear, Map, Match, Mix, MixSource, Norm, NormParams, Op, Part, Predict, Scan, ToLength,
};
pub use parts::{EncoderProgram, Head, Program};
pub use rules::{RowSet, Rule, Within};
pub use scope::{Scope, Shard, Span};
pub use slices::Slices;
pub use tensor::{Source, TensorId};

use crate::EngineError;
use model::{VisionWeights, Weights};

impl Program {
    /// Writes the program of a part of a model. `links` says what its layers refer to.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names a missing tensor, or the op and the layer whose shapes do not fit. [`EngineError::Unsupported`] names
    /// what cannot be cut so, and its layer.
    pub fn new(weights: &Weights, links: &LayerLinks, scope: &Scope) -> Result<Self, EngineError> {
        scope.check(&weights.spec)?;
        let program = walk::Walk::new(weights, links, scope).program()?;
        program.check(weights.spec.hidden_dim)?;
        Ok(program)
    }
}

impl EncoderProgram {
    /// Writes the program of a picture encoder.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names a missing tensor, or the op and the layer whose shapes do not fit.
    pub fn new(vision: &VisionWeights) -> Result<Self, EngineError> {
        let spec = &vision.spec;
        let layers = spec.tower.num_layers();
        let rope = (spec.family.rotation != model::vision::Rotation::None).then_some(0);
        let links = LayerLinks { ropes: vec![rope; layers], caches: (0..layers).map(Some).collect() };
        let encoder = walk::Walk::of_encoder(vision, &links, &Scope::whole(&spec.tower)).encoder_program(spec)?;
        encoder.check(spec.row_width())?;
        Ok(encoder)
    }
}
