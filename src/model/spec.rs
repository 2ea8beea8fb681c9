//! [`ModelSpec`]: the hyperparameters that a forward pass needs. `from_gguf.rs` reads and validates them.

use super::TensorSlot;
use super::arch::{Arch, DENSE};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): dimensions that turn more than `beta_fast` times in the original context keep their
    /// frequency, those that turn less than `beta_slow` times are divided by the factor, with a ramp between.
    Yarn {
        factor: f32,
        original_context: usize,
        /// Sine and cosine are multiplied by this, nothing more: 0.1 ln(factor) + 1 is already in it.
        attn_factor: f32,
        beta_fast: f32,
        beta_slow: f32,
    },
    /// LongRoPE (Ding et al. 2024): each pair's frequency is divided by a factor of its own, from one of two tensors: `rope_factors_long`
    /// where the engine was opened for more than the original context, else `rope_factors_short`.
    Long {
        original_context: usize,
        /// Sine and cosine are multiplied by this.
        attn_factor: f32,
    },
}

/// Feed-forward layers of which a row computes with a few, picked by a router (Shazeer et al. 2017).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// Of these, how many a row computes with.
    pub used: usize,
    /// Of each.
    pub ffn_dim: usize,
    /// Of the one that all rows share; 0: there is none.
    pub shared_ffn_dim: usize,
    /// The weights of a row's experts add up to 1.
    pub normalise: bool,
}

#[derive(Clone, Debug)]
pub struct ModelSpec {
    pub arch: &'static Arch,
    /// `general.name`, or the file's stem.
    pub name: String,
    pub vocab_size: usize,
    pub hidden_dim: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// Of a layer without experts.
    pub ffn_dim: usize,
    /// None: the feed-forward layers are dense.
    pub experts: Option<Experts>,
    /// The context that the model was trained for, in tokens.
    pub context_length: usize,
    pub norm_eps: f32,
    /// Rotated elements a head; 0: positions are learned.
    pub rope_dim: usize,
    pub rope_theta: f32,
    pub rope_scaling: RopeScaling,
    /// Tokens a windowed layer sees, itself included.
    pub sliding_window: Option<usize>,
    /// Scores are multiplied by this (1/sqrt(head_dim) unless the file says otherwise).
    pub attn_scale: f32,
    /// Scaled scores s become cap · tanh(s / cap).
    pub attn_soft_cap: Option<f32>,
    /// So do logits.
    pub final_soft_cap: Option<f32>,
}

impl ModelSpec {
    /// Every slot that the forward pass may use, and whether it must.
    pub fn slots(&self) -> impl Iterator<Item = (TensorSlot, bool)> {
        let (experts, long) = (self.experts.is_some(), matches!(self.rope_scaling, RopeScaling::Long { .. }));
        let kept = move |slot: &&TensorSlot| !(experts && DENSE.contains(slot));
        let experts = if experts { self.arch.experts } else { &[] };
        let factors: &[TensorSlot] = if long { &[TensorSlot::RopeFactorsLong, TensorSlot::RopeFactorsShort] } else { &[] };
        let required = self.arch.required.iter().filter(kept).chain(experts).chain(factors).map(|&slot| (slot, true));
        required.chain(self.arch.optional.iter().filter(kept).map(|&slot| (slot, false)))
    }

    /// The longest sequence that the model can tell positions of; None: rotations have no end.
    pub fn max_positions(&self) -> Option<usize> {
        self.arch.learned_positions.then_some(self.context_length)
    }

    /// Does `layer` attend to the sliding window only?
    pub fn is_windowed(&self, layer: usize) -> bool {
        self.sliding_window.is_some() && (self.arch.global_every == 0 || !(layer + 1).is_multiple_of(self.arch.global_every))
    }

    /// RoPE base of `layer`.
    pub fn rope_theta_of(&self, layer: usize) -> f32 {
        match self.arch.local_rope_theta {
            Some(theta) if self.is_windowed(layer) => theta,
            _ => self.rope_theta,
        }
    }

    /// RoPE scaling of `layer`: layers with a base of their own were never stretched.
    pub fn rope_scaling_of(&self, layer: usize) -> RopeScaling {
        if self.arch.local_rope_theta.is_some() && self.is_windowed(layer) { RopeScaling::None } else { self.rope_scaling }
    }
}
