//! Lists the tensor roles that a model's layers fill.

use crate::arch::{Arch, Beside, Block, Recurrent};
use crate::spec::{Attention, FeedForward, HeadNorm, Latent, Mixer, ModelSpec, Pooling, RopeScaling, Ssm};
use crate::tensor_roles::TensorRole::{self, *};

/// A role, and whether a file must fill it.
pub type Wanted = (TensorRole, bool);

/// Roles of norms, by the part of a layer that they belong to.
const MIXER_NORMS: &[TensorRole] = &[AttnNorm, AttnNormBias, PostAttnNorm, PostAttnNormBias];
const FFN_NORMS: &[TensorRole] = &[FfnNorm, FfnNormBias, PostFfnNorm, PostFfnNormBias, FfnNormExps];
const QKV_BIASES: &[TensorRole] = &[AttnQBias, AttnKBias, AttnVBias];
/// Roles of a draft head, besides those of its layer.
const DRAFT_HEAD: &[Wanted] = &[
    (NextnProj, true),
    (NextnTokenNorm, true),
    (NextnRowNorm, true),
    (NextnTokenEmbd, false),
    (NextnOutput, false),
    (NextnOutputNorm, false),
];
const ALTUP: &[TensorRole] =
    &[AltupCorrectCoef, AltupCorrectScale, AltupPredictCoef, AltupRouter, AltupRouterNorm, LaurelL, LaurelR, LaurelPostNorm];

impl ModelSpec {
    /// Every role outside the layers that the forward pass uses.
    pub fn global_roles(&self) -> Vec<Wanted> {
        let mut all = vec![(TokenEmbd, true), (Output, false), (OutputBias, false)];
        let globals = |roles: &[TensorRole], required| {
            roles.iter().filter(|role| !role.per_layer()).map(move |&role| (role, required)).collect::<Vec<_>>()
        };
        all.extend(globals(self.arch.required, true));
        all.extend(globals(self.arch.optional, false));
        let ropes =
            || self.layers.iter().filter_map(|layer| layer.attention().and_then(|a| a.rope).or(layer.latent().and_then(|l| l.rope)));
        if ropes().any(|rope| matches!(rope.scaling, RopeScaling::Long { .. })) {
            all.extend([(RopeFactorsLong, true), (RopeFactorsShort, true)]);
        }
        if ropes().any(|rope| rope.factors) {
            all.push((RopeFreqs, false));
        }
        if self.num_token_types > 0 {
            all.push((TokenTypes, false));
        }
        if self.num_classes > 0 && self.pooling == Pooling::Rank {
            all.extend([(Classifier, false), (ClassifierBias, false), (ClassifierOutput, true), (ClassifierOutputBias, false)]);
        }
        if self.per_layer_input > 0 {
            all.extend([PerLayerTokenEmbd, PerLayerModelProj, PerLayerProjNorm].map(|role| (role, true)));
        }
        if self.arch.block == Block::Altup {
            all.extend([(AltupProj, true), (AltupUnembdProj, true)]);
        }
        all.retain(|(role, _)| !self.arch.ignored.contains(role));
        all
    }

    /// Every role of a layer that the forward pass uses.
    pub fn layer_roles(&self, layer: usize) -> Vec<Wanted> {
        let (arch, of) = (self.arch, &self.layers[layer]);
        let mut all = Vec::new();
        match &of.mixer {
            Mixer::None => {}
            Mixer::Attention(attention) => all.extend(attention_roles(arch, attention)),
            Mixer::Latent(latent) => all.extend(latent_roles(latent)),
            Mixer::Recurrent(ssm) => all.extend(ssm_roles(arch, ssm)),
            Mixer::Both(attention, ssm) => {
                all.extend(attention_roles(arch, attention));
                all.extend(ssm_roles(arch, ssm));
            }
        }
        all.extend(ffn_roles(arch, &of.ffn));
        let norms = |roles: &'static [TensorRole], there: bool| roles.iter().filter(move |_| there);
        for role in norms(MIXER_NORMS, of.mixer != Mixer::None).chain(norms(FFN_NORMS, of.ffn != FeedForward::None)) {
            if arch.required.contains(role) {
                all.push((*role, true));
            } else if arch.optional.contains(role) {
                all.push((*role, false));
            }
        }
        let extra = |role| arch.required.contains(&role) || arch.optional.contains(&role);
        all.extend(
            [LayerOutputScale, AttnScale, FfnScale]
                .into_iter()
                .filter(|&role| extra(role))
                .map(|role| (role, arch.required.contains(&role))),
        );
        if self.per_layer_input > 0 {
            all.extend([PerLayerGate, PerLayerProj, PerLayerPostNorm].map(|role| (role, true)));
        }
        if arch.block == Block::Altup {
            all.extend(ALTUP.iter().map(|&role| (role, true)));
        }
        all.retain(|(role, _)| !arch.ignored.contains(role));
        if self.draft_head == Some(layer) {
            all.extend(DRAFT_HEAD);
        }
        all
    }
}

fn attention_roles(arch: &Arch, a: &Attention) -> Vec<Wanted> {
    let needed = |role: TensorRole| (role, arch.required.contains(&role));
    let mut all = vec![(AttnQ, true), (AttnOutput, true), needed(AttnOutputBias), (AttnSinks, false)];
    if a.kv_of.is_none() {
        // Gemma 4's global layers may use their keys as values.
        all.extend([(AttnK, true), (AttnV, !arch.weightless_v_norm || arch.required.contains(&AttnV))]);
        all.extend(QKV_BIASES.iter().map(|&role| needed(role)));
    }
    let has_weights = |norm| !matches!(norm, HeadNorm::None | HeadNorm::Weightless);
    if has_weights(a.q_norm) {
        all.extend([(AttnQNorm, true), (AttnQNormBias, false)]);
    }
    if has_weights(a.k_norm) && a.kv_of.is_none() {
        all.extend([(AttnKNorm, true), (AttnKNormBias, false)]);
    }
    all.extend([AttnGate, AttnSubNorm].into_iter().filter(|role| arch.required.contains(role)).map(|role| (role, true)));
    all
}

fn latent_roles(l: &Latent) -> Vec<Wanted> {
    let q: &[TensorRole] = if l.q_rank == 0 { &[AttnQ] } else { &[AttnQA, AttnQANorm, AttnQB] };
    let kv: &[TensorRole] = if l.split { &[AttnKB, AttnVB] } else { &[AttnKvB] };
    let all = q.iter().chain(kv).chain(&[AttnKvA, AttnKvANorm, AttnOutput]);
    all.map(|&role| (role, true)).chain([(AttnOutputBias, false)]).collect()
}

fn ssm_roles(arch: &Arch, s: &Ssm) -> Vec<Wanted> {
    let (required, optional): (&[TensorRole], &[TensorRole]) = match s.kind {
        Recurrent::Mamba1 => (&[SsmIn, SsmConv, SsmX, SsmDt, SsmDtBias, SsmA, SsmD, SsmOut], &[SsmConvBias, SsmDtNorm, SsmBNorm, SsmCNorm]),
        Recurrent::MambaPlamo => {
            (&[SsmIn, SsmConv, SsmX, SsmDt, SsmDtBias, SsmA, SsmD, SsmOut, SsmDtNorm, SsmBNorm, SsmCNorm], &[SsmConvBias])
        }
        Recurrent::Mamba2 => (&[SsmIn, SsmConv, SsmDtBias, SsmA, SsmD, SsmOut], &[SsmConvBias, SsmNorm]),
        Recurrent::Delta => (&[AttnQkv, AttnGate, SsmAlpha, SsmBeta, SsmConv, SsmDtBias, SsmA, SsmNorm, SsmOut], &[]),
        Recurrent::DeltaNext => (&[SsmBa, SsmConv, SsmDtBias, SsmA, SsmNorm, SsmOut], &[AttnQkv, AttnGate, SsmIn]),
        Recurrent::Kda => (
            &[AttnQ, AttnK, AttnV, SsmConvQ, SsmConvK, SsmConvV, SsmFA, SsmFB, SsmBeta, SsmA, SsmDtBias, SsmGA, SsmGB, SsmNorm, AttnOutput],
            &[],
        ),
        Recurrent::ShortConv => (&[ShortConvIn, ShortConv, ShortConvOut], &[]),
        Recurrent::Lightning => (&[AttnQkv, AttnGate, AttnSubNorm, AttnOutput], &[]),
    };
    let is_required = |role: &TensorRole| arch.required.contains(role);
    required.iter().map(|&role| (role, true)).chain(optional.iter().map(|&role| (role, is_required(&role)))).collect()
}

fn ffn_roles(arch: &Arch, ffn: &FeedForward) -> Vec<Wanted> {
    let needed = |role: TensorRole| (role, arch.required.contains(&role));
    let gated = |role: TensorRole| arch.gated.then_some((role, true));
    let mut all = Vec::new();
    if ffn.dense().is_some() {
        all.extend(gated(FfnGate));
        all.extend([(FfnUp, true), (FfnDown, true)]);
        all.extend([FfnUpBias, FfnDownBias].map(needed));
        if arch.gated {
            all.push(needed(FfnGateBias));
        }
        all.extend(
            [FfnSubNorm, FfnActScales].into_iter().filter(|role| arch.required.contains(role) || arch.optional.contains(role)).map(needed),
        );
    }
    let Some(experts) = ffn.experts() else { return all };
    all.extend(gated(FfnGateExps));
    all.extend([(FfnRouter, true), (FfnUpExps, true), (FfnDownExps, true)]);
    all.extend([FfnRouterBias, ExpertChoiceBias, FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias].map(needed));
    if arch.experts.beside == Beside::Normed {
        all.extend([FfnNormExps, FfnRouterScale, PostFfnNorm1, PostFfnNorm2].map(|role| (role, true)));
        all.push((FfnDownExpsScale, false));
    }
    if experts.shared_ffn_dim > 0 {
        all.extend(gated(FfnGateShexp));
        all.extend([(FfnUpShexp, true), (FfnDownShexp, true), needed(SharedRouter)]);
    }
    if experts.chunk_ffn_dim > 0 {
        all.extend([FfnGateChexps, FfnUpChexps, FfnDownChexps].map(|role| (role, true)));
    }
    all
}
