//! [`ModelSpec`]: the hyperparameters that a forward pass needs. `from_gguf.rs` reads and validates them.

use crate::arch::{Arch, DENSE};
use crate::slots::TensorSlot;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// YaRN (Peng et al. 2023). Dimensions that turn more than `beta_fast` times within the original context keep their frequency. The
    /// frequency of those that turn less than `beta_slow` times is divided by the factor. Between them is a linear ramp.
    Yarn {
        factor: f32,
        original_context: usize,
        /// Factor of sine and cosine. It includes YaRN's own 0.1 ln(factor) + 1.
        attn_factor: f32,
        beta_fast: f32,
        beta_slow: f32,
    },
    /// LongRoPE (Ding et al. 2024). The frequency of each pair is divided by a factor of its own. The factors come from the tensor
    /// `rope_factors_long` if the engine was opened for more than the original context, and otherwise from `rope_factors_short`.
    Long {
        original_context: usize,
        /// Factor of sine and cosine.
        attn_factor: f32,
    },
}

/// A mixture of experts: several feed-forward networks per layer, of which a router picks a few for each row (Shazeer et al. 2017).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// Number of experts that each row uses.
    pub used: usize,
    /// Inner dimension of each expert.
    pub ffn_dim: usize,
    /// Inner dimension of the expert that all rows share. 0: there is none.
    pub shared_ffn_dim: usize,
    /// Whether the weights of a row's experts are scaled to add up to 1.
    pub normalise: bool,
}

#[derive(Clone, Debug)]
pub struct ModelSpec {
    pub arch: &'static Arch,
    /// `general.name`, or the file name without its extension.
    pub name: String,
    pub vocab_size: usize,
    pub hidden_dim: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// Inner dimension of a dense feed-forward layer.
    pub ffn_dim: usize,
    /// None if the feed-forward layers are dense.
    pub experts: Option<Experts>,
    /// Longest context that the model was trained for, in tokens.
    pub context_length: usize,
    pub norm_eps: f32,
    /// Rotated elements per head. 0 if positions are learned.
    pub rope_dim: usize,
    pub rope_theta: f32,
    pub rope_scaling: RopeScaling,
    /// Number of tokens that a row sees in a layer with a sliding window, including its own.
    pub sliding_window: Option<usize>,
    /// Factor of the attention scores: 1/sqrt(head_dim) unless the file sets another.
    pub attn_scale: f32,
    /// A scaled attention score s becomes cap · tanh(s / cap).
    pub attn_soft_cap: Option<f32>,
    /// A logit x becomes cap · tanh(x / cap).
    pub final_soft_cap: Option<f32>,
    /// Floats of recurrent state per sequence and layer. 0: the model attends to its context instead.
    pub state_width: usize,
}

impl ModelSpec {
    /// Every slot that the forward pass uses, and whether the slot is required.
    pub fn slots(&self) -> impl Iterator<Item = (TensorSlot, bool)> {
        let (experts, long) = (self.experts.is_some(), matches!(self.rope_scaling, RopeScaling::Long { .. }));
        let kept = move |slot: &&TensorSlot| !(experts && DENSE.contains(slot));
        let experts = if experts { self.arch.experts } else { &[] };
        let factors: &[TensorSlot] = if long { &[TensorSlot::RopeFactorsLong, TensorSlot::RopeFactorsShort] } else { &[] };
        let required = self.arch.required.iter().filter(kept).chain(experts).chain(factors).map(|&slot| (slot, true));
        required.chain(self.arch.optional.iter().filter(kept).map(|&slot| (slot, false)))
    }

    /// Number of positions that the model has embeddings for. None if it uses RoPE, which has no limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.arch.learned_positions.then_some(self.context_length)
    }

    /// Whether `layer` attends to the sliding window only.
    pub fn is_windowed(&self, layer: usize) -> bool {
        self.sliding_window.is_some() && (self.arch.global_every == 0 || !(layer + 1).is_multiple_of(self.arch.global_every))
    }

    /// The RoPE base of `layer`.
    pub fn rope_theta_of(&self, layer: usize) -> f32 {
        match self.arch.local_rope_theta {
            Some(theta) if self.is_windowed(layer) => theta,
            _ => self.rope_theta,
        }
    }

    /// The RoPE scaling of `layer`. Layers with a RoPE base of their own are not scaled.
    pub fn rope_scaling_of(&self, layer: usize) -> RopeScaling {
        if self.arch.local_rope_theta.is_some() && self.is_windowed(layer) { RopeScaling::None } else { self.rope_scaling }
    }
}
