//! [`ModelSpec`]: the hyperparameters that a forward pass needs. `from_gguf.rs` reads and validates them.

use super::arch::Arch;

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
    pub ffn_dim: usize,
    /// The context that the model was trained for, in tokens.
    pub context_length: usize,
    pub norm_eps: f32,
    /// Rotated elements a head.
    pub rope_dim: usize,
    pub rope_theta: f32,
    pub rope_scaling: RopeScaling,
    /// Tokens a windowed layer sees, itself included.
    pub sliding_window: Option<usize>,
    /// Scores are multiplied by this (1/sqrt(head_dim) unless the file says otherwise).
    pub attn_scale: f32,
}

impl ModelSpec {
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
