"""Writes exact_logits.json: the logits of Gemma 3n and Gemma 4 in float64, for tiny models whose float32 logits cannot be compared.

    make_exact_logits.py        (needs numpy, takes two minutes)

The models are lines of architectures.jsonl.gz. Their attention scores are not scaled, so random weights make the scores large, and a
difference grows from layer to layer. `rounding` has one value per prompt: the largest change of a logit in eight trials, each of which
adds a random relative error of float32's size (up to 2^-24) to every operation [standard deviations]. A float32 implementation differs
from the exact logits by a few times that amount.
"""

import gzip
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
NAMES = ("gemma3n-dense", "gemma4-dense", "gemma4-moe")
TRIALS = 8
# Gemma 3n's constants, which its files omit: the number of layers with their own keys, the number of layers with sparse gates, and the
# gates' cutoff in standard deviations.
OWN_KEYS, CUT_LAYERS, CUTOFF = 20, 10, float(np.float32(1.6448533535003662))


def weights(name: str, shape: list[int]) -> np.ndarray:
    """Makes weights like `weights` in tests/fixtures/architectures.rs."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    u = ((z >> np.uint64(40)).astype(np.float64) / 2**23 - 1).astype(np.float32).reshape(shape)
    if "rope_freqs" in name:
        scaled = np.float32(4.5) + np.float32(3.5) * u
    elif "norm" in name and name.endswith(".weight"):
        scaled = np.float32(1) + np.float32(0.25) * u
    elif "embd" in name and name.endswith(".weight"):
        scaled = u
    else:
        scaled = u * np.float32(2.1 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2)
    return scaled.astype(np.float64)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def length(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x * x).sum(-1, keepdims=True))


class Model:
    """A model in float64. `error`: the size of the random relative errors that every operation adds."""

    def __init__(self, layout: dict, error: float = 0.0, seed: int = 0):
        self.meta = {key.split(".", 1)[1]: value for key, _, _, value in layout["metadata"]}
        self.tensors = {name: weights(name, shape) for name, shape in layout["tensors"]}
        self.eps = self.meta["attention.layer_norm_rms_epsilon"]
        self.error, self.rng = error, np.random.default_rng(seed)

    def noisy(self, x: np.ndarray) -> np.ndarray:
        return x * (1 + self.error * self.rng.uniform(-1, 1, x.shape)) if self.error else x

    def linear(self, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return self.noisy(x @ matrix.T)

    def norm(self, x: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
        return self.noisy(x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight)

    def rotate(self, x: np.ndarray, theta: float, factors: np.ndarray | float = 1.0) -> np.ndarray:
        """Rotates x, in which element i is paired with i + dim / 2 [tokens, heads, dim]."""
        half = x.shape[-1] // 2
        angle = (np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half) / factors)[:, None]
        a, b = x[..., :half], x[..., half:]
        return self.noisy(np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1))

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None) -> np.ndarray:
        back = np.arange(len(q))[:, None] - np.arange(len(q))
        hidden = (back < 0) | (back >= (window or len(q)))
        group = q.shape[1] // k.shape[1]
        out = np.empty_like(q)
        for head in range(q.shape[1]):
            scores = np.where(hidden, -np.inf, self.noisy(q[:, head] @ k[:, head // group].T))
            out[:, head] = self.noisy(self.noisy(softmax(scores)) @ v[:, head // group])
        return out.reshape(len(q), -1)

    def inputs(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """The embeddings, and the layers' own inputs [tokens, layers, …]."""
        x = self.tensors["token_embd.weight"][ids] * np.sqrt(self.meta["embedding_length"])
        if "per_layer_token_embd.weight" not in self.tensors:
            return x, None
        own = self.tensors["per_layer_token_embd.weight"][ids].reshape(len(ids), self.meta["block_count"], -1)
        projected = self.linear(x, self.tensors["per_layer_model_proj.weight"]) / np.sqrt(x.shape[1])
        projected = self.norm(projected.reshape(own.shape), self.tensors["per_layer_proj_norm.weight"])
        return x, (projected + own * np.sqrt(own.shape[-1])) / np.sqrt(2)

    def feed_forward(self, h: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray, cutoff: float | None = None) -> np.ndarray:
        gated = self.linear(h, gate)
        if cutoff is not None:
            gated = np.maximum(gated - gated.mean(-1, keepdims=True) - cutoff * gated.std(-1, ddof=1, keepdims=True), 0)
        return self.linear(self.noisy(self.noisy(gelu(gated)) * self.linear(h, up)), down)

    def own_input(self, x: np.ndarray, own: np.ndarray, layer) -> np.ndarray:
        gated = self.noisy(self.noisy(gelu(self.linear(x, layer("inp_gate.weight")))) * own)
        return self.norm(self.linear(gated, layer("proj.weight")), layer("post_norm.weight"))

    def attention(self, h: np.ndarray, layer, dim: int, rope: tuple, window: int | None, kv: tuple | None) -> tuple[np.ndarray, tuple]:
        """The output of attention, and its keys and values. `kv`: the keys and values of an earlier layer."""

        def project(part: str) -> np.ndarray:
            bias = layer(f"attn_{part}.bias") if kv is None else None
            return (self.linear(h, layer(f"attn_{part}.weight")) + (0 if bias is None else bias)).reshape(len(h), -1, dim)

        q = self.rotate(self.norm(project("q"), layer("attn_q_norm.weight")), *rope)
        if kv is None:
            k = project("k")
            v = k if layer("attn_v.weight") is None else project("v")
            kv = self.rotate(self.norm(k, layer("attn_k_norm.weight")), *rope), self.norm(v)
        mixed = self.linear(self.attend(q, *kv, window), layer("attn_output.weight"))
        return self.norm(mixed, layer("post_attention_norm.weight")), kv

    def head(self, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return 30 * np.tanh(self.linear(self.norm(x[-1], self.tensors["output_norm.weight"]), matrix) / 30)

    def experts(self, x: np.ndarray, layer) -> np.ndarray:
        router_input = self.norm(x) * layer("ffn_gate_inp.scale") / np.sqrt(x.shape[1])
        shares = softmax(self.linear(router_input, layer("ffn_gate_inp.weight")))
        h, out = self.norm(x, layer("pre_ffw_norm_2.weight")), np.zeros_like(x)
        for row, share in enumerate(shares):
            best = np.argsort(-share)[: self.meta["expert_used_count"]]
            for expert in best:
                gate, up = np.split(layer("ffn_gate_up_exps.weight")[expert], 2)
                given = self.feed_forward(h[row : row + 1], gate, up, layer("ffn_down_exps.weight")[expert])[0]
                out[row] += given * layer("ffn_down_exps.scale")[expert] * share[expert] / share[best].sum()
        return self.norm(out, layer("post_ffw_norm_2.weight"))

    def gemma4(self, ids: list[int]) -> np.ndarray:
        x, own = self.inputs(ids)
        slides = self.meta["attention.sliding_window_pattern"]
        own_keys = len(slides) - self.meta["attention.shared_kv_layers"]
        cache = []
        for index, slide in enumerate(slides):
            layer = lambda part: self.tensors.get(f"blk.{index}.{part}")
            kind = "_swa" if slide else ""
            rope = self.meta["rope.freq_base" + kind], 1.0 if slide else self.tensors["rope_freqs.weight"]
            window = self.meta["attention.sliding_window"] if slide else None
            kv = None if index < own_keys else cache[own_keys - (2 if slide else 1)]
            h, dim = self.norm(x, layer("attn_norm.weight")), self.meta["attention.key_length" + kind]
            added, kv = self.attention(h, layer, dim, rope, window, kv)
            cache.append(kv)
            x = self.noisy(x + added)
            matrices = (layer(f"ffn_{part}.weight") for part in ("gate", "up", "down"))
            added = self.feed_forward(self.norm(x, layer("ffn_norm.weight")), *matrices)
            if layer("ffn_gate_inp.weight") is not None:
                added = self.norm(added, layer("post_ffw_norm_1.weight")) + self.experts(x, layer)
            x = self.noisy(x + self.norm(added, layer("post_ffw_norm.weight")))
            if own is not None:
                x = self.noisy(x + self.own_input(x, own[:, index], layer))
            x = self.noisy(x * layer("layer_output_scale.weight"))
        return self.head(x, self.tensors["token_embd.weight"])

    def gemma3n(self, ids: list[int]) -> np.ndarray:
        x, own = self.inputs(ids)
        others = [self.linear(x, matrix) for matrix in self.tensors["altup_proj.weight"]]
        streams = self.noisy(np.stack([x] + [other * length(x) / length(other) for other in others], 1))
        period, dim = self.meta["attention.sliding_window_pattern"], x.shape[1] // self.meta["attention.head_count"]
        cache = []
        for index in range(self.meta["block_count"]):
            layer = lambda part: self.tensors.get(f"blk.{index}.{part}")

            def route(x: np.ndarray) -> np.ndarray:
                normed = self.norm(x, layer("altup_router_norm.weight")) / x.shape[1]
                return self.noisy(np.tanh(self.linear(normed, layer("altup_router.weight"))))

            factors = self.linear(route(streams[:, 0]), layer("altup_predict_coef.weight")).reshape(-1, 4, 4)
            streams = self.noisy(streams + self.noisy(factors @ streams))
            x = streams[:, 0]
            h = self.norm(x, layer("attn_norm.weight"))
            low = self.linear(self.linear(h, layer("laurel_l.weight")), layer("laurel_r.weight"))
            laurel = self.noisy(h + self.norm(low, layer("laurel_post_norm.weight")))
            slide = index % period < period - 1
            window = self.meta["attention.sliding_window"] if slide else None
            kv = None if index < OWN_KEYS else cache[OWN_KEYS - (2 if slide else 1)]
            added, kv = self.attention(h, layer, dim, (10000.0,), window, kv)
            cache.append(kv)
            x = self.noisy((self.noisy(x + added) + laurel) / np.sqrt(2))
            matrices = [layer(f"ffn_{part}.weight") for part in ("gate", "up", "down")]
            added = self.feed_forward(self.norm(x, layer("ffn_norm.weight")), *matrices, CUTOFF if index < CUT_LAYERS else None)
            x = self.noisy(x + self.norm(added, layer("post_ffw_norm.weight")))
            factors = 1 + self.linear(route(x), layer("altup_correct_coef.weight"))
            streams = self.noisy(streams + factors[:, :, None] * (x - streams[:, 0])[:, None])
            added = self.own_input(streams[:, 0] * layer("altup_correct_scale.weight"), own[:, index], layer)
            streams[:, 1:] = self.noisy(streams[:, 1:] + added[:, None])
        x = streams[:, 0]
        others = [self.linear(streams[:, 1 + i], matrix) for i, matrix in enumerate(self.tensors["altup_unembd_proj.weight"])]
        merged = (x + sum(other * length(x) / length(other) for other in others)) / 4
        return self.head(merged, self.tensors["output.weight"])


def main() -> None:
    lines = gzip.open(HERE / "architectures.jsonl.gz", "rt").read().splitlines()
    prompts, layouts = json.loads(lines[0]), {layout["name"]: layout for layout in map(json.loads, lines[1:])}
    out = {}
    for name in NAMES:

        def run(prompt: list[int], **noise: float) -> np.ndarray:
            model = Model(layouts[name], **noise)
            return (model.gemma3n if name.startswith("gemma3n") else model.gemma4)(prompt)

        exact = [run(prompt) for prompt in prompts]
        trials = [[np.abs(run(p, error=2**-24, seed=i) - e).max() / e.std() for i in range(TRIALS)] for p, e in zip(prompts, exact)]
        out[name] = {
            "logits": [[float(f"{logit:.9g}") for logit in logits] for logits in exact],
            "rounding": [float(f"{max(worst):.2g}") for worst in trials],
        }
        print(name, out[name]["rounding"])
    (HERE / "exact_logits.json").write_text(json.dumps(out, separators=(",", ":")).replace("]],", "]],\n").replace("},", "},\n") + "\n")


main()
