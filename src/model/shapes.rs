//! Computes the shape of each tensor role from the hyperparameters.

use crate::arch::Recurrent;
use crate::spec::{ALTUP_STREAMS, Attention, HeadNorm, Latent, LayerSpec, ModelSpec, Ssm};
use crate::tensor_roles::TensorRole;

impl TensorRole {
    /// The dimensions in a model of this spec, innermost first: `[length]` for a vector, `[columns, rows]` for a matrix, and
    /// `[columns, rows, experts]` for a stack of experts. None if the layer has no such tensor.
    pub fn dims(self, spec: &ModelSpec, layer: usize) -> Option<Vec<usize>> {
        if !self.per_layer() {
            return self.global_dims(spec);
        }
        let of = spec.layers.get(layer)?;
        self.common_dims(spec)
            .or_else(|| of.ssm().and_then(|ssm| self.ssm_dims(spec.hidden_dim, ssm)))
            .or_else(|| of.attention().and_then(|attention| self.attention_dims(spec.hidden_dim, attention)))
            .or_else(|| of.latent().and_then(|latent| self.latent_dims(spec.hidden_dim, latent)))
            .or_else(|| self.ffn_dims(spec.hidden_dim, of))
    }

    fn global_dims(self, spec: &ModelSpec) -> Option<Vec<usize>> {
        use TensorRole::*;
        let (hidden, own) = (spec.hidden_dim, spec.per_layer_input);
        let rope_dim = spec.layers.iter().filter_map(rope_dim_with_factors).max();
        Some(match self {
            TokenEmbd | Output => vec![hidden, spec.vocab_size],
            PositionEmbd => vec![hidden, spec.context_length],
            TokenTypes => vec![hidden, spec.num_token_types],
            OutputNorm | OutputNormBias | TokenNorm | TokenNormBias => vec![hidden],
            OutputBias => vec![spec.vocab_size],
            RopeFreqs | RopeFactorsLong | RopeFactorsShort => vec![rope_dim? / 2],
            Classifier => vec![hidden, hidden],
            ClassifierBias => vec![hidden],
            ClassifierOutput => vec![hidden, spec.num_classes],
            ClassifierOutputBias => vec![spec.num_classes],
            PerLayerTokenEmbd => vec![own * spec.num_layers(), spec.vocab_size],
            PerLayerModelProj => vec![hidden, own * spec.num_layers()],
            PerLayerProjNorm => vec![own],
            AltupProj | AltupUnembdProj => vec![hidden, hidden, ALTUP_STREAMS - 1],
            _ => return None,
        })
    }

    fn common_dims(self, spec: &ModelSpec) -> Option<Vec<usize>> {
        use TensorRole::*;
        let (hidden, own, streams) = (spec.hidden_dim, spec.per_layer_input, ALTUP_STREAMS);
        Some(match self {
            AttnNorm | AttnNormBias | PostAttnNorm | PostAttnNormBias | FfnNorm | FfnNormBias | PostFfnNorm | PostFfnNormBias
            | FfnNormExps | PostFfnNorm1 | PostFfnNorm2 | FfnRouterScale | PerLayerPostNorm | AltupCorrectScale | AltupRouterNorm
            | LaurelPostNorm => vec![hidden],
            LayerOutputScale => vec![1],
            NextnProj => vec![2 * hidden, hidden],
            NextnTokenNorm | NextnRowNorm | NextnOutputNorm => vec![hidden],
            NextnTokenEmbd | NextnOutput => vec![hidden, spec.vocab_size],
            AttnScale | FfnScale => vec![hidden],
            PerLayerGate => vec![hidden, own],
            PerLayerProj => vec![own, hidden],
            AltupCorrectCoef => vec![streams, streams],
            AltupPredictCoef => vec![streams, streams * streams],
            AltupRouter => vec![hidden, streams],
            _ => return None,
        })
    }

    fn attention_dims(self, hidden: usize, a: &Attention) -> Option<Vec<usize>> {
        use TensorRole::*;
        let (heads, keys, values) = (a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim, a.num_kv_heads * a.value_dim);
        let q_rows = heads * a.gate.query_rows();
        let norm = |kind, count| match kind {
            HeadNorm::Head => Some(vec![a.head_dim]),
            HeadNorm::OwnHead => Some(vec![a.head_dim, count]),
            HeadNorm::Row => Some(vec![a.head_dim * count]),
            HeadNorm::None | HeadNorm::Weightless => None,
        };
        Some(match self {
            AttnQ => vec![hidden, q_rows],
            AttnK => vec![hidden, keys],
            AttnV => vec![hidden, values],
            AttnQBias => vec![q_rows],
            AttnKBias => vec![keys],
            AttnVBias => vec![values],
            AttnQNorm | AttnQNormBias => norm(a.q_norm, a.num_heads)?,
            AttnKNorm | AttnKNormBias => norm(a.k_norm, a.num_kv_heads)?,
            AttnGate => vec![hidden, a.num_heads * a.value_dim],
            AttnSinks => vec![a.num_heads],
            AttnSubNorm => vec![a.num_heads * a.value_dim],
            AttnOutput => vec![a.num_heads * a.value_dim, hidden],
            AttnOutputBias => vec![hidden],
            _ => return None,
        })
    }

    fn latent_dims(self, hidden: usize, l: &Latent) -> Option<Vec<usize>> {
        use TensorRole::*;
        let q_rows = l.num_heads * (l.nope_dim + l.rope_dim);
        Some(match self {
            AttnQ => vec![hidden, q_rows],
            AttnQA => vec![hidden, l.q_rank],
            AttnQANorm => vec![l.q_rank],
            AttnQB => vec![l.q_rank, q_rows],
            AttnKvA => vec![hidden, l.kv_rank + l.rope_dim],
            AttnKvANorm => vec![l.kv_rank],
            AttnKvB => vec![l.kv_rank, l.num_heads * (l.nope_dim + l.value_dim)],
            AttnKB => vec![l.nope_dim, l.kv_rank, l.num_heads],
            AttnVB => vec![l.kv_rank, l.value_dim, l.num_heads],
            AttnOutput => vec![l.num_heads * l.value_dim, hidden],
            AttnOutputBias => vec![hidden],
            _ => return None,
        })
    }

    fn ssm_dims(self, hidden: usize, s: &Ssm) -> Option<Vec<usize>> {
        use TensorRole::*;
        let (inner, shared) = (s.inner, 2 * s.groups * s.state);
        Some(match (self, s.kind) {
            (ShortConvIn, Recurrent::ShortConv) => vec![hidden, 3 * hidden],
            (ShortConv, Recurrent::ShortConv) => vec![s.conv, hidden],
            (ShortConvOut, Recurrent::ShortConv) => vec![hidden, hidden],
            (AttnQkv, Recurrent::Lightning) => vec![hidden, 3 * inner],
            (AttnGate, Recurrent::Lightning | Recurrent::Delta | Recurrent::DeltaNext) => vec![hidden, inner],
            (AttnSubNorm, Recurrent::Lightning) => vec![inner],
            (AttnOutput, Recurrent::Lightning | Recurrent::Kda) => vec![inner, hidden],
            (AttnQ | AttnK | AttnV, Recurrent::Kda) => vec![hidden, inner],
            (SsmConvQ | SsmConvK | SsmConvV, Recurrent::Kda) => vec![s.conv, inner],
            (SsmFA | SsmGA, Recurrent::Kda) => vec![hidden, s.state],
            (SsmFB | SsmGB, Recurrent::Kda) => vec![s.state, inner],
            (SsmDtBias, Recurrent::Kda) => vec![inner],
            (SsmNorm, Recurrent::Kda) => vec![s.state],
            (SsmBeta | SsmAlpha, Recurrent::Kda | Recurrent::Delta) => vec![hidden, s.heads],
            (AttnQkv, Recurrent::Delta | Recurrent::DeltaNext) => vec![hidden, inner + shared],
            (SsmIn, Recurrent::DeltaNext) => vec![hidden, 2 * inner + shared],
            (SsmBa, Recurrent::DeltaNext) => vec![hidden, 2 * s.heads],
            (SsmNorm, Recurrent::Delta | Recurrent::DeltaNext) => vec![inner / s.heads],
            (SsmNorm, Recurrent::Mamba2) => vec![inner / s.groups, s.groups],
            (SsmIn, Recurrent::Mamba1 | Recurrent::MambaPlamo) => vec![hidden, 2 * inner],
            (SsmIn, Recurrent::Mamba2) => vec![hidden, 2 * inner + shared + s.heads],
            (SsmConv, Recurrent::Mamba1 | Recurrent::MambaPlamo) => vec![s.conv, inner],
            (SsmConvBias, Recurrent::Mamba1 | Recurrent::MambaPlamo) => vec![inner],
            (SsmConv, _) => vec![s.conv, inner + shared],
            (SsmConvBias, _) => vec![inner + shared],
            (SsmX, _) => vec![inner, s.time_rank(hidden) + 2 * s.state],
            (SsmDt, Recurrent::MambaPlamo) => vec![s.time_rank(hidden), s.heads],
            (SsmDt, _) => vec![s.heads, inner],
            (SsmA, Recurrent::Mamba1) => vec![s.state, inner],
            (SsmD | SsmDtBias, Recurrent::Mamba1) => vec![inner],
            (SsmA | SsmD | SsmDtBias, _) => vec![s.heads],
            (SsmDtNorm, _) => vec![s.time_rank(hidden)],
            (SsmBNorm | SsmCNorm, _) => vec![s.state],
            (SsmOut, _) => vec![inner, hidden],
            _ => return None,
        })
    }

    fn ffn_dims(self, hidden: usize, layer: &LayerSpec) -> Option<Vec<usize>> {
        use TensorRole::*;
        let experts = layer.ffn.experts();
        Some(match self {
            FfnGate | FfnUp => vec![hidden, layer.ffn.dense()?],
            FfnGateBias | FfnUpBias | FfnSubNorm | FfnActScales => vec![layer.ffn.dense()?],
            FfnDown => vec![layer.ffn.dense()?, hidden],
            FfnDownBias => vec![hidden],
            FfnRouter => vec![hidden, experts?.count],
            FfnRouterBias | ExpertChoiceBias | FfnDownExpsScale => vec![experts?.count],
            FfnGateExps | FfnUpExps => vec![hidden, experts?.ffn_dim, experts?.count],
            FfnDownExps => vec![experts?.ffn_dim, hidden, experts?.count],
            FfnGateExpsBias | FfnUpExpsBias => vec![experts?.ffn_dim, experts?.count],
            FfnDownExpsBias => vec![hidden, experts?.count],
            SharedRouter => vec![hidden],
            FfnGateShexp | FfnUpShexp => vec![hidden, experts?.shared_ffn_dim],
            FfnDownShexp => vec![experts?.shared_ffn_dim, hidden],
            FfnGateChexps | FfnUpChexps => vec![hidden, experts?.chunk_ffn_dim, experts?.num_chunks()],
            FfnDownChexps => vec![experts?.chunk_ffn_dim, hidden, experts?.num_chunks()],
            LaurelL => vec![hidden, 64],
            LaurelR => vec![64, hidden],
            _ => return None,
        })
    }

    /// Whether the role holds a vector. The engines keep vectors as float32, whatever float type the file has.
    pub fn is_vector(self, spec: &ModelSpec, layer: usize) -> bool {
        self.dims(spec, layer).is_some_and(|dims| dims.len() == 1)
    }
}

fn rope_dim_with_factors(layer: &LayerSpec) -> Option<usize> {
    let rope = layer.attention().and_then(|a| a.rope).or(layer.latent().and_then(|l| l.rope))?;
    rope.factors.then_some(rope.dim)
}
