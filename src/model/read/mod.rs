//! Reads a [`ModelSpec`] from GGUF metadata, and from the shapes of tensors if the metadata leaves a choice.

mod draft_head;
mod experts;
mod heads;
pub mod keys;
mod latent;
mod per_layer;
mod rope;
mod shape;
mod ssm;
mod windows;

use crate::arch::{Activation, Arch, Block, EmbeddingScale, LogitScale, Mixers, NormKind, Recurrent, RopePairing};
use crate::error::{ModelError, ModelFault};
use crate::kind::refuse_accessories;
use crate::spec::{FeedForward, LayerSpec, Mixer, ModelSpec, Pooling, RopeSections};
use crate::tensor_roles::TensorRole;
use crate::vocab_check;
use gguf::{GgufFile, Value};
use keys::{Fallible, Keys, MAX_DIM, metadata, shown};
use shape::Shape;

const MAX_LAYERS: usize = 10_000;

/// Keys of features that no engine computes, each with the value that switches the feature off.
const NOT_COMPUTED: &[(&str, f32)] = &[("hyper_connection.count", 1.0), ("attention.indexer.top_k", 0.0)];

impl ModelSpec {
    /// Reads and validates the hyperparameters. Also works for files without tensors: the vocabulary's length is then the vocabulary size.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, ModelError> {
        read(file).map_err(|fault| ModelError { path: file.path().to_owned(), fault })
    }
}

fn read(file: &GgufFile) -> Fallible<ModelSpec> {
    refuse_accessories(file)?;
    let name = match file.get("general.architecture") {
        Some(Value::String(name)) => name,
        Some(other) => return metadata("general.architecture", shown(other), "a string"),
        None => return metadata("general.architecture", "missing", "a string"),
    };
    let Some(arch) = Arch::by_name(name) else { return Err(ModelFault::UnknownArchitecture { name: name.clone() }) };
    let keys = Keys { file, arch };
    for (suffix, none) in NOT_COMPUTED {
        keys.absent(suffix, *none)?;
    }
    let hidden_dim = keys.required("embedding_length", MAX_DIM)?;
    let num_layers = num_layers(&keys)?;
    let context_length = keys.required("context_length", MAX_DIM)?;
    let eps = match arch.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let Some(norm_eps) = keys.positive(eps)? else { return keys.wrong(eps, "a positive number") };
    let [_, final_cap] = default_caps(arch);
    let shape = Shape { hidden_dim, num_layers, context_length, attn_cap: attn_cap(&keys)?, draft_head: None };
    let embedding_scale = match (keys.positive_or_none("embedding_scale")?, arch.embedding_scale) {
        (Some(scale), _) => scale,
        (None, EmbeddingScale::One) => 1.0,
        (None, EmbeddingScale::SqrtHidden) => (hidden_dim as f32).sqrt(),
        (None, EmbeddingScale::By(scale)) => scale,
    };
    let spec = ModelSpec {
        arch,
        name: model_name(file),
        vocab_size: read_vocab_size(&keys)?,
        hidden_dim,
        layers: read_layers(&keys, &shape)?,
        block: read_block(&keys)?,
        activation: arch.activation,
        rope_pairing: read_pairing(&keys),
        rope_sections: read_sections(&keys),
        xielu: read_xielu(&keys, num_layers)?,
        context_length,
        norm_eps,
        embedding_scale,
        residual_scale: keys.positive_or_none("residual_scale")?.unwrap_or(match arch.logit_scale {
            LogitScale::MiniCpm | LogitScale::MiniCpm3 => 1.4 / (num_layers as f32).sqrt(),
            _ => 1.0,
        }),
        logit_scale: read_logit_scale(&keys, hidden_dim)?,
        final_soft_cap: soft_cap(&keys, "final_logit_softcapping", final_cap)?,
        per_layer_input: per_layer::input(&keys, num_layers)?,
        deepstack: read_deepstack(&keys, num_layers)?,
        num_token_types: token_types(file)?,
        pooling: read_pooling(&keys)?,
        num_classes: keys.dims_of("cls.output.weight").map_or(0, |dims| dims.get(1).map_or(1, |&rows| rows as usize)),
        draft_head: None,
    };
    vocab_check::check(file, Some(spec.vocab_size))?;
    Ok(spec)
}

/// The number of layers. Excludes trailing layers that only predict further tokens (multi-token prediction).
fn num_layers(keys: &Keys) -> Fallible<usize> {
    let all = keys.required("block_count", MAX_LAYERS)?;
    match keys.count_or_none("nextn_predict_layers", MAX_LAYERS)? {
        Some(extra) if extra >= all => keys.wrong("nextn_predict_layers", format!("fewer than the {all} layers")),
        extra => Ok(all - extra.unwrap_or(0)),
    }
}

fn read_deepstack(keys: &Keys, num_layers: usize) -> Fallible<usize> {
    let suffix = "n_deepstack_layers";
    match keys.count_or_none(suffix, MAX_LAYERS)? {
        Some(count) if count > num_layers => keys.wrong(suffix, format!("at most the {num_layers} layers")),
        count => Ok(count.unwrap_or(0)),
    }
}

fn read_layers(keys: &Keys, shape: &Shape) -> Fallible<Vec<LayerSpec>> {
    let (arch, n) = (keys.arch, shape.num_layers);
    let latent = if arch.mixers == Mixers::Latent || latent::is_latent(keys) { Some(latent::read(keys, shape)?) } else { None };
    let mut layers = Vec::with_capacity(n);
    let heads = heads::read(keys, shape)?;
    let is_recurrent = ssm::recurrent_layers(keys, shape, &heads)?;
    let feed_forward = experts::read(keys, shape, &heads)?;
    let cutoffs = per_layer::gate_cutoffs(keys, n)?;
    for (i, ffn) in feed_forward.into_iter().enumerate() {
        let recurrent = |kind| ssm::read(keys, shape, kind, &heads);
        let attention = || latent.map_or_else(|| heads.attention(i).map_or(Mixer::None, Mixer::Attention), Mixer::Latent);
        let mixer = match arch.mixers {
            Mixers::Attention | Mixers::Latent => attention(),
            Mixers::Mamba1 => Mixer::Recurrent(recurrent(Recurrent::Mamba1)?),
            Mixers::Mamba2 => Mixer::Recurrent(recurrent(Recurrent::Mamba2)?),
            Mixers::WithMamba2 => match heads.attention(i) {
                Some(attention) => Mixer::Both(attention, recurrent(Recurrent::Mamba2)?),
                None => return keys.wrong("attention.head_count", "at least one head in every layer"),
            },
            _ if arch.one_part && ffn != FeedForward::None && shape.draft_head != Some(i) => Mixer::None,
            Mixers::Or(kind) | Mixers::Interval(kind) if is_recurrent[i] => Mixer::Recurrent(recurrent(kind)?),
            Mixers::Or(_) | Mixers::Interval(_) => attention(),
        };
        layers.push(LayerSpec { mixer, ffn, gate_cutoff: cutoffs[i] });
    }
    Ok(layers)
}

fn read_logit_scale(keys: &Keys, hidden_dim: usize) -> Fallible<f32> {
    let scale = keys.positive_or_none("logit_scale")?;
    Ok(match keys.arch.logit_scale {
        LogitScale::Unused => 1.0,
        LogitScale::Multiply(default) => scale.unwrap_or(default),
        LogitScale::Divide => 1.0 / scale.unwrap_or(1.0),
        LogitScale::MiniCpm => 1.0 / scale.unwrap_or(256.0 / hidden_dim as f32),
        LogitScale::MiniCpm3 => 256.0 / hidden_dim as f32,
    })
}

fn model_name(file: &GgufFile) -> String {
    let stem = || file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    file.name().map(str::to_owned).unwrap_or_else(stem)
}

fn read_vocab_size(keys: &Keys) -> Fallible<usize> {
    match keys.file.vocab_size() {
        Some(size) if (1..=MAX_DIM).contains(&size) => Ok(size),
        Some(size) => metadata("token_embd.weight", format!("{size} rows"), format!("1 to {MAX_DIM}")),
        None => metadata("token_embd.weight", "missing", "a tensor, or a vocabulary"),
    }
}

/// The soft caps of attention scores and logits of files that do not set them.
fn default_caps(arch: &Arch) -> [Option<f32>; 2] {
    arch.default_soft_caps.map_or([None, None], |caps| caps.map(|cap| (cap > 0.0).then_some(cap)))
}

fn attn_cap(keys: &Keys) -> Fallible<Option<f32>> {
    soft_cap(keys, "attn_logit_softcapping", default_caps(keys.arch)[0])
}

fn soft_cap(keys: &Keys, suffix: &str, default: Option<f32>) -> Fallible<Option<f32>> {
    if keys.value(suffix).is_none() { Ok(default) } else { keys.positive_or_none(suffix) }
}

fn token_types(file: &GgufFile) -> Fallible<usize> {
    let key = "tokenizer.ggml.token_type_count";
    match file.get(key) {
        None => Ok(0),
        Some(value) => match value.as_int().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= MAX_DIM) {
            Some(count) => Ok(count),
            None => metadata(key, shown(value), format!("an integer from 0 to {MAX_DIM}")),
        },
    }
}

/// The file's own choice, numbered as in ggml. A file without one holds a generative model, whose last row has seen the whole text, or an
/// encoder, whose rows count alike.
fn read_pooling(keys: &Keys) -> Fallible<Pooling> {
    let classifies = keys.dims_of("cls.output.weight").is_some();
    match keys.count_or_none("pooling_type", MAX_DIM)? {
        Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::First),
        Some(4) if classifies => Ok(Pooling::Rank),
        Some(4) => metadata("cls.output.weight", "missing", "the classifier of a model that ranks"),
        Some(3) => Ok(Pooling::Last),
        None if keys.arch.bidirectional => Ok(Pooling::Mean),
        None => Ok(Pooling::Last),
        Some(_) => keys.wrong("pooling_type", "0 (none), 1 (mean), 2 (first), 3 (last) or 4 (rank)"),
    }
}

/// The wiring of the branches, in architectures whose files differ.
fn read_block(keys: &Keys) -> Fallible<Block> {
    let arch = keys.arch;
    let one_norm = arch.optional.contains(&TensorRole::FfnNorm) && keys.dims_of(&TensorRole::FfnNorm.name(0)).is_none();
    Ok(match keys.flag("use_parallel_residual")? {
        Some(false) if arch.block == Block::Parallel => Block::Sequential,
        _ if one_norm && arch.block == Block::Sequential => Block::Parallel,
        _ => arch.block,
    })
}

/// The numbers of `rope.dimension_sections`. Empty if the file has none.
fn section_lengths(keys: &Keys) -> Vec<i64> {
    match keys.value("rope.dimension_sections") {
        Some(Value::Array(array)) => array.ints().unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The pairs of the rotation. Multi-section rotation pairs halves. For text, all its sections have the same position.
fn read_pairing(keys: &Keys) -> RopePairing {
    if section_lengths(keys).iter().any(|&n| n > 0) { RopePairing::Halves } else { keys.arch.rope }
}

/// The sections that rows with three positions need. None if there are none, or if they are not three: rows then have one position.
fn read_sections(keys: &Keys) -> Option<RopeSections> {
    let lengths = section_lengths(keys);
    let ([first, second, third] | [first, second, third, 0]) = lengths[..] else { return None };
    let mut pairs = [0; 3];
    for (pairs, length) in pairs.iter_mut().zip([first, second, third]) {
        *pairs = usize::try_from(length).ok().filter(|&n| n <= MAX_DIM)?;
    }
    (pairs != [0; 3]).then_some(RopeSections { pairs, interleaved: keys.arch.interleaved_sections })
}

fn read_xielu(keys: &Keys, num_layers: usize) -> Fallible<Vec<[f32; 4]>> {
    if keys.arch.activation != Activation::Xielu {
        return Ok(Vec::new());
    }
    let values = ["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"].map(|key| keys.floats(key, num_layers));
    let [negative, positive, beta, eps] = values;
    let (negative, positive, beta, eps) = (negative?, positive?, beta?, eps?);
    // The file holds alphas before their softplus. The alpha of negative inputs is at least beta.
    let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
    Ok((0..num_layers).map(|i| [beta[i] + softplus(negative[i]), softplus(positive[i]), beta[i], eps[i]]).collect())
}
