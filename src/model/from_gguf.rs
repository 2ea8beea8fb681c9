//! Reads a [`ModelSpec`] from GGUF metadata. Each value is checked before it is used as a size.

use crate::arch::{Arch, NormKind};
use crate::error::{ModelError, ModelFault};
use crate::kind::refuse_accessories;
use crate::slots::TensorSlot;
use crate::spec::{Experts, ModelSpec, RopeScaling};
use crate::vocab_check;
use gguf::{Array, GgufFile, Value};

/// Far above any real dimension. The product of two dimensions must fit into 64 bits.
const MAX_DIM: usize = (1 << 31) - 1;
const MAX_LAYERS: usize = 10_000;
/// The engines store ids of experts in 16 bits.
const MAX_EXPERTS: usize = 1 << 16;

/// Keys of features that no engine computes, with the value that means that the model does not use the feature.
const NOT_COMPUTED: &[(&str, f32)] = &[
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("expert_gating_func", 1.0), // softmax
    ("expert_weights_scale", 1.0),
    ("expert_group_count", 1.0),
    ("leading_dense_block_count", 0.0),
];

type Fallible<T> = Result<T, ModelFault>;

impl ModelSpec {
    /// Reads and validates the hyperparameters. Works for files without tensors too: the vocabulary's length is then the vocabulary size.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, ModelError> {
        read(file).map_err(|fault| ModelError { path: file.path().to_owned(), fault })
    }
}

/// Access to the metadata of one architecture.
struct Keys<'a> {
    file: &'a GgufFile,
    arch: &'static Arch,
}

fn metadata<T>(key: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Fallible<T> {
    Err(ModelFault::Metadata { key: key.into(), found: found.into(), expected: expected.into() })
}

/// A value in the form that error messages show.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        Value::Array(array) => format!("an array of {} {}", array.len(), array.type_name()),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(flag) => flag.to_string(),
        other => other.as_int().map_or_else(|| other.type_name().to_owned(), |n| n.to_string()),
    }
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch.name)
    }

    fn value(&self, suffix: &str) -> Option<&Value> {
        self.file.get(&self.key(suffix))
    }

    /// An integer from 1 to `max`, if the file has the key. An array (one entry per layer) must have equal entries.
    fn count(&self, suffix: &str, max: usize) -> Fallible<Option<usize>> {
        let Some(value) = self.value(suffix) else { return Ok(None) };
        let number = match value {
            Value::Array(array) => {
                array.ints().filter(|ints| ints.windows(2).all(|w| w[0] == w[1])).and_then(|ints| Some((*ints.first()?).into()))
            }
            other => other.as_int(),
        };
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n)),
            _ => metadata(self.key(suffix), shown(value), format!("an integer from 1 to {max}")),
        }
    }

    /// Like `count`, for a key that every file must have.
    fn required(&self, suffix: &str, max: usize) -> Fallible<usize> {
        match self.count(suffix, max)? {
            Some(n) => Ok(n),
            None => metadata(self.key(suffix), "missing", format!("an integer from 1 to {max}")),
        }
    }

    /// A positive finite float, if the file has the key.
    fn positive(&self, suffix: &str) -> Fallible<Option<f32>> {
        let Some(value) = self.value(suffix) else { return Ok(None) };
        match value.as_f32() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => metadata(self.key(suffix), shown(value), "a positive number"),
        }
    }

    /// Like `positive`, for keys whose value 0 means none.
    fn positive_or_zero(&self, suffix: &str) -> Fallible<Option<f32>> {
        let zero = self.value(suffix).and_then(Value::as_f32) == Some(0.0);
        if zero { Ok(None) } else { self.positive(suffix) }
    }

    /// Refuses a feature that no engine computes. The values 0 and `none` mean that the model does not use it.
    fn absent(&self, suffix: &str, none: f32) -> Fallible<()> {
        match self.value(suffix) {
            Some(value) if ![Some(0.0), Some(none)].contains(&value.as_f32().or(value.as_int().map(|n| n as f32))) => {
                metadata(self.key(suffix), shown(value), "0 or no such key (not supported)")
            }
            _ => Ok(()),
        }
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
    let num_layers = keys.required("block_count", MAX_LAYERS)?;
    let hidden_dim = keys.required("embedding_length", MAX_DIM)?;
    let (num_heads, num_kv_heads, head_dim) = read_heads(&keys, hidden_dim)?;
    let context_length = keys.required("context_length", MAX_DIM)?;
    let rope_dim = if arch.learned_positions { 0 } else { read_rope_dim(&keys, head_dim)? };
    let eps = match arch.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let Some(norm_eps) = keys.positive(eps)? else { return metadata(keys.key(eps), "missing", "a positive number") };
    let ffn_dim = keys.required("feed_forward_length", MAX_DIM)?;
    let caps = arch.default_soft_caps;
    let spec = ModelSpec {
        arch,
        name: model_name(file),
        vocab_size: read_vocab_size(&keys)?,
        hidden_dim,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        ffn_dim,
        experts: read_experts(&keys, ffn_dim)?,
        context_length,
        norm_eps,
        rope_dim,
        rope_theta: keys.positive("rope.freq_base")?.unwrap_or(arch.default_rope_theta),
        rope_scaling: read_rope_scaling(&keys, context_length)?,
        sliding_window: read_window(&keys, context_length)?,
        attn_scale: read_attn_scale(&keys, num_layers, hidden_dim / num_heads, head_dim)?,
        attn_soft_cap: read_soft_cap(&keys, "attn_logit_softcapping", caps.map(|[attn, _]| attn))?,
        final_soft_cap: read_soft_cap(&keys, "final_logit_softcapping", caps.map(|[_, last]| last))?,
        state_width: 0,
    };
    vocab_check::check(file, Some(spec.vocab_size))?;
    Ok(spec)
}

fn model_name(file: &GgufFile) -> String {
    let stem = || file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    file.name().map(str::to_owned).unwrap_or_else(stem)
}

/// Number of heads, number of key-value heads, elements per head.
fn read_heads(keys: &Keys, hidden_dim: usize) -> Fallible<(usize, usize, usize)> {
    let heads = keys.required("attention.head_count", MAX_DIM)?;
    let kv_heads = keys.count("attention.head_count_kv", MAX_DIM)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return metadata(keys.key("attention.head_count_kv"), kv_heads.to_string(), format!("a divisor of the {heads} heads"));
    }
    let head_dim = match keys.count("attention.key_length", MAX_DIM)? {
        Some(dim) => dim,
        None if hidden_dim.is_multiple_of(heads) => hidden_dim / heads,
        None => {
            return metadata(
                keys.key("attention.head_count"),
                heads.to_string(),
                format!("a divisor of the embedding length {hidden_dim}"),
            );
        }
    };
    if !head_dim.is_multiple_of(2) {
        return metadata(keys.key("attention.key_length"), head_dim.to_string(), "an even number of elements per head");
    }
    if let Some(value_dim) = keys.count("attention.value_length", MAX_DIM)?.filter(|&dim| dim != head_dim) {
        return metadata(keys.key("attention.value_length"), value_dim.to_string(), format!("the key length {head_dim}"));
    }
    if heads.checked_mul(head_dim).is_none_or(|width| width > MAX_DIM) {
        return metadata(
            keys.key("attention.head_count"),
            heads.to_string(),
            format!("heads of {head_dim} with at most {MAX_DIM} elements in all"),
        );
    }
    Ok((heads, kv_heads, head_dim))
}

fn read_vocab_size(keys: &Keys) -> Fallible<usize> {
    match keys.file.vocab_size() {
        Some(size) if (1..=MAX_DIM).contains(&size) => Ok(size),
        Some(size) => metadata("token_embd.weight", format!("{size} rows"), format!("1 to {MAX_DIM}")),
        None => metadata("token_embd.weight", "missing", "a tensor, or a vocabulary"),
    }
}

fn read_rope_dim(keys: &Keys, head_dim: usize) -> Fallible<usize> {
    let dim = keys.count("rope.dimension_count", MAX_DIM)?.unwrap_or(head_dim);
    if dim > head_dim || !dim.is_multiple_of(2) {
        let expected = format!("an even number up to the {head_dim} elements of a head");
        return metadata(keys.key("rope.dimension_count"), dim.to_string(), expected);
    }
    Ok(dim)
}

fn read_rope_scaling(keys: &Keys, context_length: usize) -> Fallible<RopeScaling> {
    // `rope.scale_linear` is the older key for linear scaling.
    let factor = keys.positive("rope.scaling.factor")?.or(keys.positive("rope.scale_linear")?).unwrap_or(1.0);
    let kind = match keys.value("rope.scaling.type") {
        // Phi's files have the tensors of factors but no key for the type.
        None if keys.file.tensor_index(&TensorSlot::RopeFactorsLong.name(0)).is_some() => "longrope",
        None => "linear",
        Some(Value::String(kind)) => kind,
        Some(other) => return metadata(keys.key("rope.scaling.type"), shown(other), "a string"),
    };
    let original_context =
        || -> Fallible<usize> { Ok(keys.count("rope.scaling.original_context_length", MAX_DIM)?.unwrap_or(context_length)) };
    let attn_factor = keys.positive("rope.scaling.attn_factor")?.or(keys.positive("rope.scaling.yarn_attn_factor")?).unwrap_or(1.0);
    match kind {
        "none" | "linear" if attn_factor != 1.0 => {
            metadata(keys.key("rope.scaling.attn_factor"), attn_factor.to_string(), format!("1 or no such key with {kind} scaling"))
        }
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "longrope" => Ok(RopeScaling::Long { original_context: original_context()?, attn_factor }),
        "yarn" => {
            if factor < 1.0 {
                return metadata(keys.key("rope.scaling.factor"), factor.to_string(), "1 or more for yarn");
            }
            if let Some(ext) = keys.positive("rope.scaling.yarn_ext_factor")?.filter(|&ext| ext != 1.0) {
                return metadata(keys.key("rope.scaling.yarn_ext_factor"), ext.to_string(), "1 or no such key (not supported)");
            }
            let (fast, slow) = (keys.positive("rope.scaling.yarn_beta_fast")?, keys.positive("rope.scaling.yarn_beta_slow")?);
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original_context()?,
                attn_factor: attn_factor * (0.1 * factor.ln() + 1.0),
                beta_fast: fast.unwrap_or(32.0),
                beta_slow: slow.unwrap_or(1.0),
            })
        }
        other => metadata(keys.key("rope.scaling.type"), format!("{other:?}"), "none, linear, yarn or longrope"),
    }
}

/// None if the file has no experts. Architectures without dense layers must have some.
fn read_experts(keys: &Keys, ffn_dim: usize) -> Fallible<Option<Experts>> {
    let (arch, suffix) = (keys.arch, "expert_count");
    if arch.experts.is_empty() {
        keys.absent(suffix, 0.0)?;
        return Ok(None);
    }
    let may_be_dense = arch.required.contains(&TensorSlot::FfnDown);
    let none = keys.value(suffix).is_none_or(|value| value.as_int() == Some(0));
    if may_be_dense && none {
        return Ok(None);
    }
    let count = keys.required(suffix, MAX_EXPERTS)?;
    let used = keys.required("expert_used_count", count)?;
    // The first files set only the total length of the experts that a row uses.
    let share = if may_be_dense { ffn_dim } else { (ffn_dim / used).max(1) };
    let shared = arch.experts.contains(&TensorSlot::SharedRouter);
    let shared_ffn_dim = if shared { keys.count("expert_shared_feed_forward_length", MAX_DIM)?.unwrap_or(ffn_dim) } else { 0 };
    let normalise = match keys.value("expert_weights_norm") {
        None => arch.normalise_experts,
        Some(Value::Bool(flag)) => *flag,
        Some(other) => return metadata(keys.key("expert_weights_norm"), shown(other), "a boolean"),
    };
    let ffn_dim = keys.count("expert_feed_forward_length", MAX_DIM)?.unwrap_or(share);
    Ok(Some(Experts { count, used, ffn_dim, shared_ffn_dim, normalise }))
}

fn read_soft_cap(keys: &Keys, suffix: &str, default: Option<f32>) -> Fallible<Option<f32>> {
    if keys.value(suffix).is_none() { Ok(default) } else { keys.positive_or_zero(suffix) }
}

/// The sliding window. None if no layer has one, or if it is no shorter than the context.
fn read_window(keys: &Keys, context_length: usize) -> Fallible<Option<usize>> {
    let every = keys.arch.global_every;
    let window = if every > 0 {
        match keys.arch.default_window.filter(|_| keys.value("attention.sliding_window").is_none()) {
            Some(window) => Some(window),
            None => Some(keys.required("attention.sliding_window", MAX_DIM)?),
        }
    } else {
        // Some converters write 0 for no window.
        let none = keys.value("attention.sliding_window").is_some_and(|value| value.as_int() == Some(0));
        if none { None } else { keys.count("attention.sliding_window", MAX_DIM)? }
    };
    if every > 0
        && let Some(pattern) = keys.value("attention.sliding_window_pattern")
    {
        let alike = match pattern {
            Value::Array(Array::Bool(windowed)) => windowed.iter().enumerate().all(|(i, &w)| w != (i + 1).is_multiple_of(every)),
            other => other.as_int() == Some(every as i128),
        };
        if !alike {
            let expected = format!("a pattern in which every {every}th layer is global");
            return metadata(keys.key("attention.sliding_window_pattern"), shown(pattern), expected);
        }
    }
    // A layer with a window may have a RoPE base of its own, so a window that is too long to matter is dropped only if all layers are
    // alike.
    Ok(window.filter(|&window| every > 0 || window < context_length))
}

fn read_attn_scale(keys: &Keys, num_layers: usize, width: usize, head_dim: usize) -> Fallible<f32> {
    if let Some(scale) = keys.positive("attention.scale")? {
        return Ok(scale);
    }
    // Gemma 3 27B and Gemma 2 27B divide by hidden_dim / num_heads (168 and 144) instead of the elements of a head (128). Their files do
    // not say so; the number of layers distinguishes them from the smaller models.
    let dim = if matches!((keys.arch.name, num_layers), ("gemma3", 62) | ("gemma2", 46)) { width } else { head_dim };
    Ok(1.0 / (dim as f32).sqrt())
}
