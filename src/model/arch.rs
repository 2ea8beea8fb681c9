//! `ARCHS`: one row an architecture.

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (0, 1), (2, 3) …
    Adjacent,
    /// (0, d/2), (1, d/2 + 1) …
    Halves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    Rms,
    Layer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// tanh approximation
    Gelu,
}

/// What sets an architecture apart; everything else is the model file's metadata.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    pub rope: RopePairing,
    pub norm: Norm,
    pub activation: Activation,
    /// Embeddings are multiplied by sqrt(hidden).
    pub scale_embeddings: bool,
    /// Every `n`-th layer attends to the whole context, the others to the sliding window (0: all layers alike).
    pub global_every: usize,
    /// RoPE base of the layers with a sliding window, where it differs.
    pub local_rope_theta: Option<f32>,
    pub required: &'static [super::TensorSlot],
    pub optional: &'static [super::TensorSlot],
}

pub const ARCHS: &[Arch] = &[];
