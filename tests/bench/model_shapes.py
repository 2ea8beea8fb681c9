"""The shapes of real models: their dimensions, metadata and tensors, by the names that GGUF files have.

Dimensions are those of the `config.json` that the model's makers publish, under the name in the comment. Tensor types are those that
the common GGUF files of the model have: `Q4_K_M` as llama.cpp's quantiser picks them, or as the model's makers published them.
"""

from dataclasses import dataclass, field

from gguf_writer import TYPES, Tensor

# Tensors that a quantiser leaves alone: vectors, and these.
FLOATS = ("norm.weight", "ffn_gate_inp.weight", "ssm_a", "ssm_d", "conv1d.weight", "shortconv.conv.weight")
# Elements of vectors that are the same everywhere. Other vectors are random.
VALUES = {"norm.weight": 1.0, "ssm_a": -1.0, "ssm_d": 1.0, "rope_freqs.weight": 1.0}
# What rows that are no whole blocks of 256 get instead.
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


@dataclass(frozen=True)
class Shape:
    arch: str
    billions: float  # parameters, as the makers count them
    mixers: str  # one letter per layer: Attention, Window, Mamba 2, Delta rule, short Convolution
    hidden: int
    ffn: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    theta: float
    eps: float = 1e-5
    tied: bool = False
    quant: str = "Q4_K_M"
    experts: tuple = ()  # count, used per row, inner dimension
    dense: int = 0  # leading layers without experts
    shared: int = 0  # inner dimension of the expert that all rows share
    shared_router: bool = False
    choice_bias: bool = False  # a bias on the choice of experts
    ssm: tuple = ()  # taps of the convolution, inner size, state size, heads, groups
    biases: bool = False  # on attention's output, the router and the experts
    qkv_bias: bool = False
    qk_norm: bool = False
    gate_in_query: bool = False
    norms: tuple = ("attn_norm", "ffn_norm")
    output_norm: str = "output_norm"
    keys: dict = field(default_factory=dict)

    def layers(self, count=None):
        """Per layer: its mixer, and whether it has experts. With a `count`, as many layers, and of each kind at least one if possible."""
        every = [(mixer, bool(self.experts) and i >= self.dense) for i, mixer in enumerate(self.mixers)]
        firsts = sorted(every.index(kind) for kind in set(every))
        others = [i for i in range(len(every)) if i not in firsts]
        return [every[i] for i in sorted((firsts + others)[: count or len(every)])]


def metadata(shape, name, vocab, layers):
    mixers = [mixer for mixer, _ in layers]
    keys = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": len(layers),
        "feed_forward_length": shape.ffn,
        "vocab_size": vocab,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": [shape.kv_heads if mixer in "AW" else 0 for mixer in mixers] if {"M", "C"} & set(mixers) else shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": shape.theta,
    }
    if "W" in mixers:
        keys["attention.sliding_window_pattern"] = [mixer == "W" for mixer in mixers]
    if "D" in mixers:
        keys["attention.recurrent_layers"] = [mixer == "D" for mixer in mixers]
    if shape.ssm:
        names = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
        keys |= {f"ssm.{key}": value for key, value in zip(names, shape.ssm)}
    if shape.experts:
        names = ("expert_count", "expert_used_count", "expert_feed_forward_length")
        keys |= dict(zip(names, shape.experts)) | {"leading_dense_block_count": sum(not routed for _, routed in layers)}
    if shape.shared:
        keys["expert_shared_feed_forward_length"] = shape.shared
    own = {f"{shape.arch}.{key}": value for key, value in (keys | shape.keys).items()}
    return {"general.architecture": shape.arch, "general.name": f"random {name}"} | own | {"tokenizer.ggml.model": "no_vocab"}


def attention(s):
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    rows = {"q": q * 2 if s.gate_in_query else q, "k": kv, "v": kv}
    yield from ((f"attn_{part}.weight", (s.hidden, rows[part])) for part in rows)
    yield "attn_output.weight", (q, s.hidden)
    if s.qkv_bias:
        yield from ((f"attn_{part}.bias", (rows[part],)) for part in rows)
    if s.qk_norm:
        yield from ((f"attn_{part}_norm.weight", (s.head_dim,)) for part in "qk")
    if s.biases:
        yield from (("attn_output.bias", (s.hidden,)), ("attn_sinks.weight", (s.heads,)))


def recurrent(s):
    taps, inner, state, heads, groups = s.ssm
    channels = inner + 2 * groups * state
    yield from (("ssm_conv1d.weight", (taps, channels)), ("ssm_dt.bias", (heads,)), ("ssm_out.weight", (inner, s.hidden)))
    if "M" in s.mixers:
        yield from (("ssm_in.weight", (s.hidden, inner + channels + heads)), ("ssm_conv1d.bias", (channels,)))
        yield from (("ssm_a", (1, heads)), ("ssm_d", (1, heads)), ("ssm_norm.weight", (inner // groups, groups)))
        return
    yield from (("attn_qkv.weight", (s.hidden, channels)), ("attn_gate.weight", (s.hidden, inner)))
    yield from (("ssm_a", (heads,)), ("ssm_norm.weight", (inner // heads,)))
    if s.arch == "qwen3next":
        yield "ssm_ba.weight", (s.hidden, 2 * heads)
    else:
        yield from ((f"ssm_{part}.weight", (s.hidden, heads)) for part in ("alpha", "beta"))


def convolution(s):
    yield "shortconv.in_proj.weight", (s.hidden, 3 * s.hidden)
    yield "shortconv.conv.weight", (s.keys["shortconv.l_cache"], s.hidden)
    yield "shortconv.out_proj.weight", (s.hidden, s.hidden)


def gated(s, suffix, inner, *experts):
    """A gated feed-forward network, or a stack of them."""
    yield from ((f"ffn_{part}{suffix}.weight", (s.hidden, inner, *experts)) for part in ("gate", "up"))
    yield f"ffn_down{suffix}.weight", (inner, s.hidden, *experts)


def routed_ffn(s):
    count, _, inner = s.experts
    yield "ffn_gate_inp.weight", (s.hidden, count)
    yield from gated(s, "_exps", inner, count)
    if s.shared:
        yield from gated(s, "_shexp", s.shared)
    if s.shared_router:
        yield "ffn_gate_inp_shexp.weight", (s.hidden,)
    if s.choice_bias:
        yield "exp_probs_b.bias", (count,)
    if s.biases:
        yield "ffn_gate_inp.bias", (count,)
        yield from ((f"ffn_{part}_exps.bias", (rows, count)) for part, rows in (("gate", inner), ("up", inner), ("down", s.hidden)))


MIXERS = {"A": attention, "W": attention, "M": recurrent, "D": recurrent, "C": convolution}


def tensors(shape, vocab, layers):
    """Every tensor of a model, with its type."""
    named = [("token_embd.weight", (shape.hidden, vocab)), (f"{shape.output_norm}.weight", (shape.hidden,))]
    if not shape.tied:
        named.append(("output.weight", (shape.hidden, vocab)))
    if shape.arch == "llama":
        named.append(("rope_freqs.weight", (shape.head_dim // 2,)))
    for i, (mixer, routed) in enumerate(layers):
        parts = [(f"{norm}.weight", (shape.hidden,)) for norm in shape.norms]
        parts += [*MIXERS[mixer](shape), *(routed_ffn(shape) if routed else gated(shape, "", shape.ffn))]
        named += [(f"blk.{i}.{name}", dims) for name, dims in parts]
    with_values = [name for name, _ in named if name.endswith("attn_v.weight")]
    depth = {name: (i, len(with_values)) for i, name in enumerate(with_values)}
    depth |= {name: (int(name.split(".")[1]), len(layers)) for name, _ in named if "ffn_down" in name}
    return [tensor(shape, name, dims, depth.get(name)) for name, dims in named]


def tensor(shape, name, dims, depth):
    value = next((value for end, value in VALUES.items() if name.endswith(end)), None)
    if len(dims) == 1 or name.endswith((*FLOATS, ".bias")):
        return Tensor(name, dims, "F32", value)
    kind = weight_type(shape, name, depth)
    if dims[0] % TYPES[kind][1]:
        kind = SMALLER_BLOCKS[kind]
    return Tensor(name, dims, kind)


def weight_type(shape, name, depth):
    """The type of a matrix. `depth`: its place among the values' or the down projections of all layers, and how many there are."""
    if shape.quant == "MXFP4":
        return "MXFP4" if "_exps" in name else "Q8_0"
    if shape.quant != "Q4_K_M":
        return shape.quant
    if name == "output.weight" or shape.tied and name == "token_embd.weight":
        return "Q6_K"
    if name.endswith("attn_qkv.weight"):
        return "Q5_K"
    if depth:  # the first and the last eighth, and every third between them
        i, count = depth
        return "Q6_K" if i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2 else "Q4_K"
    return "Q4_K"


def step_bytes(shape, vocab, layers, batch, context):
    """Bytes that a decode step of `batch` sequences cannot avoid: the weights, each expert that some row uses once (if rows choose at
    random), float16 keys and values, and the recurrent state, which is read and written in float32."""
    total = 0.0
    for t in tensors(shape, vocab, layers):
        if t.name == "token_embd.weight" and not shape.tied:
            total += batch * t.bytes / vocab
        elif "_exps" in t.name:
            count, used, _ = shape.experts
            total += t.bytes * (1 - (1 - used / count) ** batch)
        else:
            total += t.bytes
    mixers = [mixer for mixer, _ in layers]
    rows = mixers.count("A") * context + mixers.count("W") * min(context, shape.keys.get("attention.sliding_window", context))
    state = 0
    if shape.ssm:
        taps, inner, size, _, groups = shape.ssm
        state = sum(mixer in "MD" for mixer in mixers) * ((taps - 1) * (inner + 2 * groups * size) + inner * size)
    state += mixers.count("C") * (shape.keys.get("shortconv.l_cache", 1) - 1) * shape.hidden
    return total + batch * (rows * 2 * shape.kv_heads * shape.head_dim * 2 + 2 * state * 4)


def at(layers, mixer, places, other):
    return "".join(mixer if i in places else other for i in range(layers))


QWEN_NEXT = dict(
    hidden=2048, heads=16, kv_heads=2, head_dim=256, context=262144, theta=1e7, eps=1e-6, shared=512, shared_router=True,
    ssm=(4, 32 * 128, 128, 32, 16), qk_norm=True, gate_in_query=True, norms=("attn_norm", "post_attention_norm"),
)  # fmt: skip
LLAMA_1B = dict(
    arch="llama", billions=1.24, mixers="A" * 16, hidden=2048, ffn=8192, vocab=128256, heads=32, kv_heads=8, head_dim=64,
    context=131072, theta=5e5, tied=True,
)  # fmt: skip

SHAPES = {
    # openai/gpt-oss-20b; types of the GGUF file that was published with it
    "gpt-oss-20b": Shape(
        "gpt-oss", 20.9, "WA" * 12, 2880, 2880, 201088, 64, 8, 64, 131072, 150000.0, quant="MXFP4", experts=(32, 4, 2880), biases=True,
        qkv_bias=True, norms=("attn_norm", "post_attention_norm"),
        keys={"attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
              "rope.scaling.original_context_length": 4096},
    ),
    # Qwen/Qwen3-30B-A3B
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 30.5, "A" * 48, 2048, 6144, 151936, 32, 4, 128, 40960, 1e6, 1e-6, experts=(128, 8, 768), qk_norm=True,
    ),
    # Qwen/Qwen3-Next-80B-A3B-Instruct, without the layer that predicts a second token
    "qwen3-next-80b-a3b": Shape(
        "qwen3next", 79.7, "DDDA" * 12, ffn=5120, vocab=151936, experts=(512, 10, 512), keys={"rope.dimension_count": 64}, **QWEN_NEXT,
    ),
    # Qwen/Qwen3.5-35B-A3B, the text model alone, without the layer that predicts a second token
    "qwen3.5-35b-a3b": Shape(
        "qwen35moe", 34.7, "DDDA" * 10, ffn=512, vocab=248320, experts=(256, 8, 512),
        keys={"rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0]}, **QWEN_NEXT,
    ),
    # google/gemma-3-27b-it, the text model alone
    "gemma-3-27b": Shape(
        "gemma3", 27.0, at(62, "A", range(5, 62, 6), "W"), 5376, 21504, 262208, 32, 16, 128, 131072, 1e6, 1e-6, tied=True, qk_norm=True,
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        keys={"attention.sliding_window": 1024, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    # zai-org/GLM-4.5-Air, without the layer that predicts a second token
    "glm-4.5-air": Shape(
        "glm4moe", 106.8, "A" * 46, 4096, 10944, 151552, 96, 8, 128, 131072, 1e6, experts=(128, 8, 1408), dense=1, shared=1408,
        choice_bias=True, qkv_bias=True, norms=("attn_norm", "post_attention_norm"),
        keys={"rope.dimension_count": 64, "expert_shared_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
              "expert_weights_scale": 1.0},
    ),
    # ibm-granite/granite-4.0-h-small; without rotation
    "granite-4-small": Shape(
        "granitehybrid", 32.2, at(40, "A", (5, 15, 25, 35), "M"), 4096, 768, 100352, 32, 8, 128, 131072, 1e4, tied=True,
        experts=(72, 10, 768), shared=1536, ssm=(4, 8192, 128, 128, 1),
        keys={"rope.scaling.finetuned": False, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 16.0,
              "attention.scale": 0.0078125},
    ),
    # LiquidAI/LFM2-8B-A1B
    "lfm2-8b-a1b": Shape(
        "lfm2moe", 8.3, at(24, "A", (2, 6, 10, 14, 18, 21), "C"), 2048, 7168, 65536, 32, 8, 64, 128000, 1e6, tied=True, qk_norm=True,
        experts=(32, 4, 1792), dense=2, choice_bias=True, output_norm="token_embd_norm",
        keys={"expert_gating_func": 2, "shortconv.l_cache": 3},
    ),
    # LiquidAI/LFM2-1.2B
    "lfm2-1.2b": Shape(
        "lfm2", 1.17, at(16, "A", (2, 5, 8, 10, 12, 14), "C"), 2048, 8192, 65536, 32, 8, 64, 128000, 1e6, tied=True, qk_norm=True,
        output_norm="token_embd_norm", keys={"shortconv.l_cache": 3},
    ),
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": Shape("llama", 8.03, "A" * 32, 4096, 14336, 128256, 32, 8, 128, 131072, 5e5),
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": Shape(**LLAMA_1B),
    "llama-3.2-1b-f16": Shape(**LLAMA_1B, quant="F16"),
}  # fmt: skip
