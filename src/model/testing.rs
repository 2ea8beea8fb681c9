//! Builds tiny models with random weights, for tests that open a model file.

use crate::arch::{Arch, EmbeddingScale, Layers, NormKind, Positions};
use crate::load::FUSED;
use crate::quant::{QUANTS, Quant};
use crate::spec::{
    Attention, AttnGate, Experts, FeedForward, HeadNorm, LayerSpec, Mixer, ModelSpec, Pooling, RopeScaling, RopeSpec, RunSight,
};
use crate::tensor_roles::TensorRole;
use gguf::GgufBuilder;

/// The shape of a tiny model. The defaults suit every type in `QUANTS`, because rows are whole blocks of 256 weights.
#[derive(Clone, Debug)]
pub struct TinyModel {
    pub arch: &'static Arch,
    /// The type of the matrices. Norms and biases are F32.
    pub quant: &'static Quant,
    pub seed: u64,
    pub num_layers: usize,
    pub hidden_dim: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub ffn_dim: usize,
    pub experts: Option<Experts>,
    pub rope_scaling: RopeScaling,
    /// Must be at least 300 if the model has a tokenizer.
    pub vocab_size: usize,
    pub context_length: usize,
    pub sliding_window: Option<usize>,
    /// Whether to write a byte-level vocabulary, so that the model can be served.
    pub tokenizer: bool,
    /// Whether to write the optional tensors.
    pub optional: bool,
}

/// Architectures that every backend computes. Together they cover everything that the tests need.
pub const PLAIN: &[&str] = &["llama", "qwen2", "gemma3", "qwen3", "gemma2", "phi3", "gpt2", "qwen2moe", "qwen3moe"];

/// The last role that every backend knows.
const LAST_PLAIN: TensorRole = TensorRole::PostFfnNorm;

/// LongRoPE as in Phi 3's files, but with an original context so short that tests exceed it.
const LONG: RopeScaling = RopeScaling::Long { original_context: 64, attn_factor: 1.19 };

impl TinyModel {
    pub fn new(arch: &'static Arch) -> Self {
        TinyModel {
            arch,
            quant: &QUANTS[0],
            seed: 1,
            num_layers: if let Layers::NotEvery(n) = arch.windowed { n + 1 } else { 2 },
            hidden_dim: 256,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 64,
            ffn_dim: 256,
            experts: arch.experts.needed.then(|| TinyModel::experts(arch)),
            rope_scaling: if arch.name == "phi3" { LONG } else { RopeScaling::None },
            vocab_size: 320,
            context_length: 512,
            sliding_window: matches!(arch.windowed, Layers::NotEvery(_)).then_some(16),
            tokenizer: false,
            optional: false,
        }
    }

    /// Five experts. Each row uses two.
    pub fn experts(arch: &Arch) -> Experts {
        let shared_ffn_dim = if arch.required.contains(&TensorRole::SharedRouter) { 512 } else { 0 };
        let rule = &arch.experts;
        let (gating, normalise) = (rule.gating, rule.normalise);
        Experts { count: 5, used: 2, ffn_dim: 256, shared_ffn_dim, gating, normalise, scale: 1.0, chunk_group: 1, ..Experts::default() }
    }

    /// One model per architecture of [`PLAIN`], and a second one with experts if the architecture has optional experts.
    pub fn all() -> impl Iterator<Item = TinyModel> {
        PLAIN.iter().filter_map(|name| Arch::by_name(name)).flat_map(|arch| {
            let tiny = TinyModel { optional: true, ..TinyModel::new(arch) };
            let may_route = tiny.experts.is_none() && arch.experts.known;
            let routed = may_route.then(|| TinyModel { experts: Some(TinyModel::experts(arch)), ..tiny.clone() });
            std::iter::once(tiny).chain(routed)
        })
    }

    /// A name for files and messages.
    pub fn name(&self) -> String {
        format!("{}{}-{}", self.arch.name, if self.experts.is_some() { "-experts" } else { "" }, self.quant.name)
    }

    pub fn spec(&self) -> ModelSpec {
        let ffn = self.experts.map_or(FeedForward::Dense(self.ffn_dim), FeedForward::Experts);
        let layers =
            (0..self.num_layers).map(|i| LayerSpec { mixer: Mixer::Attention(self.attention(i)), ffn, gate_cutoff: None }).collect();
        let scaled = self.arch.embedding_scale == EmbeddingScale::SqrtHidden;
        ModelSpec {
            arch: self.arch,
            name: String::new(),
            vocab_size: self.vocab_size,
            hidden_dim: self.hidden_dim,
            layers,
            block: self.arch.block,
            activation: self.arch.activation,
            rope_pairing: self.arch.rope,
            rope_sections: None,
            xielu: Vec::new(),
            context_length: self.context_length,
            norm_eps: 1e-5,
            embedding_scale: if scaled { (self.hidden_dim as f32).sqrt() } else { 1.0 },
            residual_scale: 1.0,
            logit_scale: 1.0,
            final_soft_cap: None,
            per_layer_input: 0,
            deepstack: 0,
            num_token_types: 0,
            pooling: Pooling::Last,
            num_classes: 0,
            draft_head: None,
        }
    }

    fn attention(&self, layer: usize) -> Attention {
        let rotates = self.arch.positions == Positions::Rope;
        let norm = |role| if self.arch.required.contains(&role) { HeadNorm::Head } else { HeadNorm::None };
        let rope = RopeSpec { dim: self.head_dim, theta: self.arch.default_rope_theta, scaling: self.rope_scaling, factors: true };
        Attention {
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            rope: rotates.then_some(rope),
            window: self.sliding_window.filter(|_| self.arch.windowed.contains(layer)),
            scale: 1.0,
            soft_cap: None,
            clamp: None,
            alibi: None,
            temperature: None,
            q_norm: norm(TensorRole::AttnQNorm),
            k_norm: norm(TensorRole::AttnKNorm),
            v_norm: HeadNorm::None,
            gate: AttnGate::None,
            kv_of: None,
            picture_rows: RunSight::Causal,
        }
    }

    /// The fused tensor that holds a role, with all its roles, in files of this architecture.
    fn fused(&self, role: TensorRole) -> Option<(&'static str, &'static [TensorRole])> {
        let fuses: &[&str] = match self.arch.name {
            "phi3" => &["attn_qkv.weight", "ffn_up.weight"],
            "gpt2" => &["attn_qkv.weight", "attn_qkv.bias"],
            _ => &[],
        };
        FUSED.iter().find(|(pattern, parts)| parts.contains(&role) && fuses.iter().any(|name| pattern.ends_with(name))).copied()
    }

    /// Builds the file: metadata, weights and, if `tokenizer` is set, the vocabulary. The same seed gives the same bytes.
    pub fn build(&self) -> GgufBuilder {
        let key = |suffix: &str| format!("{}.{suffix}", self.arch.name);
        let mut file = GgufBuilder::new().kv("general.architecture", self.arch.name).kv("general.name", format!("tiny {}", self.arch.name));
        for (suffix, value) in [
            ("block_count", self.num_layers),
            ("context_length", self.context_length),
            ("embedding_length", self.hidden_dim),
            ("feed_forward_length", self.ffn_dim),
            ("attention.head_count", self.num_heads),
            ("attention.head_count_kv", self.num_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            file.set(&key(suffix), value as u32);
        }
        let rms = self.arch.norm == NormKind::Rms;
        file.set(&key(if rms { "attention.layer_norm_rms_epsilon" } else { "attention.layer_norm_epsilon" }), 1e-5f32);
        if let Some(experts) = self.experts {
            for (suffix, value) in [
                ("expert_count", experts.count),
                ("expert_used_count", experts.used),
                ("expert_feed_forward_length", experts.ffn_dim),
                ("expert_shared_feed_forward_length", experts.shared_ffn_dim),
            ] {
                file.set(&key(suffix), value as u32);
            }
        }
        if let RopeScaling::Long { original_context, attn_factor } = self.rope_scaling {
            file.set(&key("rope.scaling.original_context_length"), original_context as u32);
            file.set(&key("rope.scaling.attn_factor"), attn_factor);
        }
        if let Some(window) = self.sliding_window {
            file.set(&key("attention.sliding_window"), window as u32);
        }
        if self.tokenizer {
            file = with_byte_vocabulary(file, self.vocab_size);
        }
        let (spec, mut random) = (self.spec(), Random(self.seed));
        let global = spec.global_roles().into_iter().map(|wanted| (0, wanted));
        let layers = (0..self.num_layers).flat_map(|layer| spec.layer_roles(layer).into_iter().map(move |wanted| (layer, wanted)));
        for (layer, (role, required)) in global.chain(layers) {
            let Some(mut dims) = role.dims(&spec, layer).filter(|_| required || self.optional && role as u32 <= LAST_PLAIN as u32) else {
                continue;
            };
            file = match self.fused(role) {
                None => self.add(file, &role.name(layer), &dims, &mut random),
                Some((pattern, parts)) if parts[0] == role => {
                    let last = dims.len() - 1;
                    dims[last] = parts.iter().filter_map(|part| part.dims(&spec, layer)).map(|dims| dims[last]).sum();
                    self.add(file, &pattern.replace("{}", &layer.to_string()), &dims, &mut random)
                }
                Some(_) => file,
            };
        }
        file
    }

    /// Splits each stack of experts into one tensor per expert, the last expert first.
    pub fn with_split_experts(mut file: GgufBuilder) -> GgufBuilder {
        let is_stack = |name: &str| name.ends_with("_exps.weight");
        let stacks: Vec<_> = file.tensors.iter().filter(|tensor| is_stack(&tensor.name)).cloned().collect();
        file.tensors.retain(|tensor| !is_stack(&tensor.name));
        for stack in stacks {
            let (count, shape) = (stack.dims[2] as usize, &stack.dims[..2]);
            for (i, bytes) in stack.bytes.chunks_exact(stack.bytes.len() / count).enumerate().rev() {
                file = file.tensor(&stack.name.replace("_exps.", &format!(".{i}.")), shape, stack.type_id, bytes.to_vec());
            }
        }
        file
    }

    fn add(&self, file: GgufBuilder, name: &str, dims: &[usize], random: &mut Random) -> GgufBuilder {
        let shape: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let count = dims.iter().product();
        if name.ends_with("ffn_gate_inp.weight") {
            // A router is F32, as in real files. Its scores are so far apart that rounding seldom changes the choice of experts.
            let weights: Vec<f32> = (0..count).map(|_| 0.5 * random.centred()).collect();
            return file.tensor_f32(name, &shape, &weights);
        }
        if dims.len() > 1 {
            return file.tensor(name, &shape, self.quant.id, random_blocks(self.quant, count, random));
        }
        // Norms and frequency factors are around 1, biases around 0.
        let centre = if name.ends_with(".bias") { 0.0 } else { 1.0 };
        let weights: Vec<f32> = (0..count).map(|_| centre + 0.2 * random.centred()).collect();
        file.tensor_f32(name, &shape, &weights)
    }
}

/// SplitMix64 (Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn centred(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Random blocks of `count` weights, with a standard deviation of about 0.05 and a mean near 0.
pub fn random_blocks(quant: &Quant, count: usize, random: &mut Random) -> Vec<u8> {
    let mut uniform = || 0.09 * random.centred();
    match quant.name {
        "F32" => return (0..count).flat_map(|_| uniform().to_le_bytes()).collect(),
        "F16" => return (0..count).flat_map(|_| half::f16::from_f32(uniform()).to_le_bytes()).collect(),
        "BF16" => return (0..count).flat_map(|_| half::bf16::from_f32(uniform()).to_le_bytes()).collect(),
        _ => {}
    }
    // The offset and a typical value of each float16 field in a block. All other bits are random.
    let halves: &[(usize, f32)] = match quant.name {
        "Q4_0" => &[(0, 0.01)],
        "Q4_1" => &[(0, 0.01), (2, -0.075)],
        "Q5_0" => &[(0, 0.005)],
        "Q5_1" => &[(0, 0.005), (2, -0.0775)],
        "Q8_0" => &[(0, 0.0007)],
        "Q2_K" => &[(80, 0.004), (82, 0.006)],
        "Q3_K" => &[(108, 0.0015)],
        "Q4_K" => &[(0, 0.0003), (2, 0.00225)],
        "Q5_K" => &[(0, 0.00015), (2, 0.00225)],
        "Q6_K" => &[(208, 0.00004)],
        "IQ1_S" => &[(0, 0.007)],
        "IQ2_XXS" | "IQ2_XS" | "IQ2_S" => &[(0, 0.001)],
        "IQ3_XXS" | "IQ3_S" => &[(0, 0.00035)],
        "IQ4_NL" => &[(0, 0.0007)],
        "IQ4_XS" => &[(0, 0.00004)],
        "TQ1_0" => &[(52, 0.06)],
        "TQ2_0" => &[(64, 0.04)],
        "IQ1_M" | "MXFP4" | "NVFP4" => &[],
        other => unreachable!("{other} is missing in this table"),
    };
    let mut bytes: Vec<u8> = (0..quant.row_bytes(count)).map(|_| random.next_u64() as u8).collect();
    for block in bytes.chunks_exact_mut(quant.block_bytes) {
        for &(at, value) in halves {
            let jitter = 1.0 + 0.3 * random.centred();
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(value * jitter).to_le_bytes());
        }
        match quant.name {
            // The scale becomes the half 0x1f.., with one nibble at the top of each word of group scales.
            "IQ1_M" => [block[51] >> 4, 0xf, 0xf, 0x1]
                .into_iter()
                .enumerate()
                .for_each(|(i, n)| block[49 + 2 * i] = block[49 + 2 * i] & 15 | n << 4),
            "MXFP4" => block[0] = 119 + block[0] % 4,
            // scales around 2^-6
            "NVFP4" => block[..4].iter_mut().for_each(|scale| *scale = 4 + *scale % 12),
            _ => {}
        }
    }
    bytes
}

/// The character that represents a byte in byte-level vocabularies (GPT-2's table).
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or_default()
}

/// Adds a vocabulary of `size` tokens (256 bytes, a few merges, ChatML's markers as control tokens, unused ids) and a ChatML template.
fn with_byte_vocabulary(file: GgufBuilder, size: usize) -> GgufBuilder {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let merges = ["t h", "h e", "i n", "\u{120} t", "\u{120} a"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    let special = tokens.len() as u32;
    tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    types.resize(tokens.len(), 3);
    while tokens.len() < size {
        tokens.push(format!("<|unused{}|>", tokens.len()));
        types.push(5);
    }
    file.kv("tokenizer.ggml.model", "gpt2")
        .kv("tokenizer.ggml.pre", "gpt-2")
        .kv("tokenizer.ggml.tokens", tokens)
        .kv("tokenizer.ggml.token_type", types)
        .kv("tokenizer.ggml.merges", merges.map(str::to_owned).to_vec())
        .kv("tokenizer.ggml.bos_token_id", special)
        .kv("tokenizer.ggml.eos_token_id", special + 2)
        .kv("tokenizer.ggml.add_bos_token", false)
        .kv(
            "tokenizer.chat_template",
            "{% for message in messages %}\
             {{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
             {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        )
}
