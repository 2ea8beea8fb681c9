"""The shapes of real models.

Dimensions come from the `config.json` that the model's makers publish under the name in the comment. Tensor types are those of the model's
common GGUF files: `Q4_K_M` as llama.cpp's quantiser picks them, or as the model's makers published them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    arch: str
    billions: float  # parameters, as the makers round them; `--list` prints this next to the count from the tensors
    mixers: str  # one letter per layer: Attention, Window, Latent attention, Mamba 2, Delta rule, short Convolution
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
    shared: int = 0  # inner dimension of the shared expert
    shared_router: bool = False
    choice_bias: bool = False  # whether a bias is added when experts are chosen
    latent: tuple = ()  # latent attention: rank, columns of a key with and without rotation, columns of a value
    ssm: tuple = ()  # convolution taps, inner size, state size, heads, groups
    biases: bool = False  # whether attention's output, the router and the experts have biases
    qkv_bias: bool = False
    qk_norm: bool = False
    gate_in_query: bool = False
    norms: tuple = ("attn_norm", "ffn_norm")
    output_norm: str = "output_norm"
    keys: dict = field(default_factory=dict)

    def layers(self, count=None):
        """Each layer's mixer, and whether it has experts. `count`: keep this many layers, with at least one of each kind if possible."""
        every = [(mixer, bool(self.experts) and i >= self.dense) for i, mixer in enumerate(self.mixers)]
        firsts = sorted(every.index(kind) for kind in set(every))
        others = [i for i in range(len(every)) if i not in firsts]
        return [every[i] for i in sorted((firsts + others)[: count or len(every)])]


def at(layers, mixer, places, other):
    return "".join(mixer if i in places else other for i in range(layers))


QWEN_NEXT = dict(
    hidden=2048, heads=16, kv_heads=2, head_dim=256, context=262144, theta=1e7, eps=1e-6, shared=512, shared_router=True,
    ssm=(4, 32 * 128, 128, 32, 16), qk_norm=True, gate_in_query=True, norms=("attn_norm", "post_attention_norm"),
)  # fmt: skip
LLAMA_1B = dict(
    arch="llama", billions=1.23, mixers="A" * 16, hidden=2048, ffn=8192, vocab=128256, heads=32, kv_heads=8, head_dim=64,
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
        "qwen3next", 80, "DDDA" * 12, ffn=5120, vocab=151936, experts=(512, 10, 512), keys={"rope.dimension_count": 64}, **QWEN_NEXT,
    ),
    # Qwen/Qwen3.5-35B-A3B, the text model alone, without the layer that predicts a second token
    "qwen3.5-35b-a3b": Shape(
        "qwen35moe", 35, "DDDA" * 10, ffn=512, vocab=248320, experts=(256, 8, 512),
        keys={"rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0]}, **QWEN_NEXT,
    ),
    # mistralai/Mixtral-8x7B-Instruct-v0.1
    "mixtral-8x7b": Shape("llama", 46.7, "A" * 32, 4096, 14336, 32000, 32, 8, 128, 32768, 1e6, experts=(8, 2, 14336)),
    # deepseek-ai/DeepSeek-V2-Lite, without the scaling of long contexts
    "deepseek-v2-lite": Shape(
        "deepseek2", 15.7, "L" * 27, 2048, 10944, 102400, 16, 1, 576, 163840, 1e4, 1e-6, experts=(64, 6, 1408), dense=1, shared=2816,
        latent=(512, 64, 128, 128),
        keys={"rope.dimension_count": 64, "attention.kv_lora_rank": 512, "attention.value_length": 512, "attention.key_length_mla": 192,
              "attention.value_length_mla": 128, "expert_shared_count": 2, "expert_weights_scale": 1.0},
    ),
    # Qwen/Qwen3-8B
    "qwen3-8b": Shape("qwen3", 8.2, "A" * 36, 4096, 12288, 151936, 32, 8, 128, 40960, 1e6, 1e-6, qk_norm=True),
    # google/gemma-3-4b-it, the text model alone
    "gemma-3-4b": Shape(
        "gemma3", 4, at(34, "A", range(5, 34, 6), "W"), 2560, 10240, 262208, 8, 4, 256, 131072, 1e6, 1e-6, tied=True, qk_norm=True,
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        keys={"attention.sliding_window": 1024, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    # google/gemma-3-27b-it, the text model alone
    "gemma-3-27b": Shape(
        "gemma3", 27, at(62, "A", range(5, 62, 6), "W"), 5376, 21504, 262208, 32, 16, 128, 131072, 1e6, 1e-6, tied=True, qk_norm=True,
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        keys={"attention.sliding_window": 1024, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    # zai-org/GLM-4.5-Air, without the layer that predicts a second token
    "glm-4.5-air": Shape(
        "glm4moe", 106, "A" * 46, 4096, 10944, 151552, 96, 8, 128, 131072, 1e6, experts=(128, 8, 1408), dense=1, shared=1408,
        choice_bias=True, qkv_bias=True, norms=("attn_norm", "post_attention_norm"),
        keys={"rope.dimension_count": 64, "expert_shared_count": 1, "expert_gating_func": 2, "expert_weights_norm": True,
              "expert_weights_scale": 1.0},
    ),
    # ibm-granite/granite-4.0-h-small; without rotation
    "granite-4-small": Shape(
        "granitehybrid", 32, at(40, "A", (5, 15, 25, 35), "M"), 4096, 768, 100352, 32, 8, 128, 131072, 1e4, tied=True,
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
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": Shape("llama", 0.135, "A" * 30, 576, 1536, 49152, 9, 3, 64, 8192, 1e5, tied=True, quant="Q8_0"),
}  # fmt: skip
