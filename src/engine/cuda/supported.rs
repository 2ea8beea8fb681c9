//! What the kernels compute of what a model may ask for. Everything else is refused by name.

use crate::EngineError;
use model::arch::{Beside, Block, Gating, Positions, WindowKind};
use model::spec::{Attention, HeadNorm};
use model::{Activation, Experts, FeedForward, Mixer, ModelSpec, NormKind, Pooling, TensorSlot, Weights};

/// A model whose layers differ in window and rotation only.
pub struct Uniform {
    /// The first layer's.
    pub attention: Attention,
    /// Inner dimension of the dense layers, or of the shared expert.
    pub ffn_dim: usize,
    pub experts: Option<Experts>,
}

impl Uniform {
    /// # Errors
    /// [`EngineError::Unsupported`] names the first feature that no kernel computes.
    pub fn of(weights: &Weights) -> Result<Self, EngineError> {
        let spec = &weights.spec;
        let refuse = |what: &str| {
            let text = format!("{what} (architecture {}) on a GPU: use --backend cpu", spec.arch.name);
            Err(EngineError::Unsupported(text))
        };
        if let Some(what) = foreign_feature(spec) {
            return refuse(what);
        }
        // kernels know the slots up to the last of the first architectures
        if let Some((slot, layer)) = weights.by_slot.keys().find(|(slot, _)| *slot as u32 > TensorSlot::PostFfnNorm as u32) {
            return refuse(&format!("tensor {}", slot.name(*layer)));
        }
        if let Some(scale) = weights.by_slot.values().find_map(|weight| weight.scale) {
            return refuse(&format!("tensor {}", weights.file.tensors()[scale].name));
        }
        let (Some(first), Some(ffn)) = (spec.attention(), spec.layers.first().map(|layer| layer.ffn)) else {
            return refuse("layers without attention");
        };
        for layer in &spec.layers {
            let Mixer::Attention(attention) = layer.mixer else { return refuse("layers without attention") };
            let like_first = Attention { window: first.window, rope: first.rope, ..attention } == *first;
            let same_rotation = attention.rope.map(|rope| rope.dim) == first.rope.map(|rope| rope.dim);
            if !like_first || !same_rotation || layer.ffn != ffn {
                return refuse("layers of different shapes");
            }
            if let Some(what) = foreign_attention(&attention) {
                return refuse(what);
            }
        }
        let (ffn_dim, experts) = match ffn {
            FeedForward::Dense(dim) => (dim, None),
            FeedForward::Experts(experts) if plain(&experts) => (experts.shared_ffn_dim, Some(experts)),
            _ => return refuse("such experts"),
        };
        Ok(Self { attention: *first, ffn_dim, experts })
    }
}

/// What the model as a whole asks for that no kernel computes.
fn foreign_feature(spec: &ModelSpec) -> Option<&'static str> {
    let arch = spec.arch;
    let rms_with_bias = arch.norm == NormKind::Rms && arch.required.contains(&TensorSlot::OutputNormBias);
    let cases = [
        (spec.is_recurrent(), "models with recurrent state"),
        (spec.block != Block::Sequential, "layers whose branches are not wired one after another"),
        (!arch.required.contains(&TensorSlot::AttnNorm), "layers without a norm before attention"),
        (arch.weightless_norms || rms_with_bias, "such norms"),
        (!matches!(arch.positions, Positions::Rope | Positions::Learned), "such positions"),
        (!matches!(arch.activation, Activation::Silu | Activation::Gelu), "such an activation"),
        (arch.window_kind != WindowKind::Sliding || arch.bidirectional, "such windows"),
        (arch.norm_after_rope, "norms behind the rotation"),
        (spec.residual_scale != 1.0 || spec.logit_scale != 1.0, "scaled branches or logits"),
        (spec.pooling == Pooling::Rank, "classifiers"),
        (spec.per_layer_input > 0 || spec.num_token_types > 0, "further embeddings"),
        (arch.experts.activation.is_some() || arch.experts.beside != Beside::Either, "such experts"),
        (arch.experts.weigh_input || arch.experts.early_router || arch.experts.mean_shared, "such experts"),
    ];
    cases.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
}

fn foreign_attention(a: &Attention) -> Option<&'static str> {
    let norm = |norm| !matches!(norm, HeadNorm::None | HeadNorm::Head);
    let cases = [
        (a.head_dim != a.value_dim, "values whose heads are shorter than the keys'"),
        (a.clamp.is_some() || a.temperature.is_some(), "clamped or scaled queries"),
        (norm(a.q_norm) || norm(a.k_norm) || a.v_norm != HeadNorm::None, "such norms of queries or keys"),
        (a.kv_of.is_some(), "layers that share keys and values"),
    ];
    cases.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
}

/// Whether the experts are chosen by a softmax over all of them.
fn plain(experts: &Experts) -> bool {
    experts.gating == Gating::Softmax && experts.groups == 0 && experts.scale == 1.0
}
