"""A second implementation of every architecture: a forward pass in numpy and float32, over tensors with their GGUF names.

It is slow and simple on purpose. It computes a whole prompt at once and shares only the published papers with the engines: Su et al. 2021
(RoPE), Peng et al. 2023 (YaRN), Ding et al. 2024 (LongRoPE), Zhang and Sennrich 2019 (RMSNorm), Shazeer et al. 2017 (experts)."""

from __future__ import annotations

import numpy as np

F = np.float32


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Oracle:
    """`kv`: the metadata. `tensors`: float32 arrays by name, outermost dimension first."""

    def __init__(self, kv: dict, tensors: dict, context: int):
        self.t, self.arch, self.context = tensors, kv["general.architecture"], context
        self.get = lambda key, default=None: kv.get(f"{self.arch}.{key}", default)
        get = self.get
        self.hidden, self.layers, self.heads = get("embedding_length"), get("block_count"), get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.dim = get("attention.key_length", self.hidden // self.heads)
        self.rope_dim = get("rope.dimension_count", self.dim)
        self.scale = get("attention.scale", 1 / np.sqrt(self.dim))
        self.gemma = self.arch.startswith("gemma")
        self.activation = gelu if self.gemma or self.arch == "gpt2" else silu

    # --- parts ---

    def norm(self, x, name):
        x = x.astype(np.float64)
        if name + ".bias" in self.t:
            x = x - x.mean(-1, keepdims=True)
            y = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.get("attention.layer_norm_epsilon")) * self.t[name + ".weight"]
            return (y + self.t[name + ".bias"]).astype(F)
        return (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + self.get("attention.layer_norm_rms_epsilon")) * self.t[name + ".weight"]
        ).astype(F)

    def linear(self, x, name):
        y = x @ self.t[name + ".weight"].T
        return y + self.t[name + ".bias"] if name + ".bias" in self.t else y

    def windowed(self, layer):
        every = {"gemma2": 2, "gemma3": 6}.get(self.arch, 0)
        return self.get("attention.sliding_window", 0) > 0 and (every == 0 or (layer + 1) % every != 0)

    def rotations(self, layer, positions):
        """Cosines and sines [positions, pairs]."""
        n, kind = self.rope_dim, self.get("rope.scaling.type", "none")
        theta = self.get("rope.freq_base", 1e6 if self.arch == "gemma3" else 1e4)
        factor, original = (
            self.get("rope.scaling.factor", 1.0),
            self.get("rope.scaling.original_context_length", self.get("context_length")),
        )
        if self.arch == "gemma3" and self.windowed(layer):
            theta, kind = 1e4, "none"
        pair = np.arange(n // 2, dtype=np.float64)
        frequency, amplitude = theta ** (-2 * pair / n), 1.0
        if "rope_factors_long.weight" in self.t:
            which = "long" if self.context > original else "short"
            frequency, amplitude = frequency / self.t[f"rope_factors_{which}.weight"], self.get("rope.scaling.attn_factor", 1.0)
        elif "rope_freqs.weight" in self.t:
            frequency = frequency / self.t["rope_freqs.weight"]
        if kind == "linear":
            frequency = frequency / factor
        if kind == "yarn":
            turns = lambda beta: n * np.log(original / (beta * 2 * np.pi)) / (2 * np.log(theta))
            low, high = (
                max(0, np.floor(turns(self.get("rope.scaling.yarn_beta_fast", 32)))),
                min(n - 1, np.ceil(turns(self.get("rope.scaling.yarn_beta_slow", 1)))),
            )
            keep = 1 - np.clip((pair - low) / max(high - low, 0.001), 0, 1)
            frequency = frequency * keep + frequency / factor * (1 - keep)
            amplitude = (0.1 * np.log(factor) + 1) * self.get("rope.scaling.attn_factor", 1.0)
        angle = np.outer(positions, frequency)
        return (np.cos(angle) * amplitude).astype(F)[:, None], (np.sin(angle) * amplitude).astype(F)[:, None]

    def rotate(self, x, cos, sin):
        n, out = self.rope_dim, x.copy()
        first, second = (slice(0, n, 2), slice(1, n, 2)) if self.arch == "llama" else (slice(0, n // 2), slice(n // 2, n))
        a, b = x[..., first], x[..., second]
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out

    def attention(self, layer, h):
        b, n = f"blk.{layer}.", len(h)
        positions = np.arange(n)
        if b + "attn_qkv.weight" in self.t:
            width = [self.heads * self.dim, self.kv_heads * self.dim]
            q, k, v = np.split(self.linear(h, b + "attn_qkv"), [width[0], sum(width)], axis=-1)
        else:
            q, k, v = (self.linear(h, b + f"attn_{m}") for m in "qkv")
        q, k, v = q.reshape(n, self.heads, self.dim), k.reshape(n, self.kv_heads, self.dim), v.reshape(n, self.kv_heads, self.dim)
        if b + "attn_q_norm.weight" in self.t:
            q, k = self.norm(q, b + "attn_q_norm"), self.norm(k, b + "attn_k_norm")
        if self.arch != "gpt2":
            turn = self.rotations(layer, positions)
            q, k = self.rotate(q, *turn), self.rotate(k, *turn)
        hidden = positions[None, :] > positions[:, None]
        if self.windowed(layer):
            hidden |= positions[None, :] <= positions[:, None] - self.get("attention.sliding_window")
        cap = self.get("attn_logit_softcapping", 50.0 if self.arch == "gemma2" else 0)
        out = np.empty_like(q)
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            score = q[:, head] @ k[:, group].T * F(self.scale)
            if cap:
                score = F(cap) * np.tanh(score / F(cap))
            score[hidden] = -np.inf
            out[:, head] = softmax(score) @ v[:, group]
        return self.linear(out.reshape(n, -1), b + "attn_output")

    def mlp(self, h, names):
        gate, up, down = names
        if gate is None:
            return self.linear(self.activation(self.linear(h, up)), down)
        if gate + ".weight" not in self.t:  # gate and up share a tensor
            g, u = np.split(self.linear(h, up), 2, axis=-1)
        else:
            g, u = self.linear(h, gate), self.linear(h, up)
        return self.linear(self.activation(g) * u, down)

    def experts(self, b, h):
        used, normalise = self.get("expert_used_count"), self.get("expert_weights_norm", self.arch != "qwen2moe")
        p = softmax(h @ self.t[b + "ffn_gate_inp.weight"].T)
        stacks = [self.t[b + f"ffn_{m}_exps.weight"] for m in ("gate", "up", "down")]
        out = np.zeros_like(h)
        for row in range(len(h)):
            chosen = np.argsort(-p[row], kind="stable")[:used]
            total = p[row, chosen].sum() if normalise else 1
            for e in chosen:
                gate, up, down = (stack[e] for stack in stacks)
                out[row] += p[row, e] / total * (down @ (silu(gate @ h[row]) * (up @ h[row])))
        if b + "ffn_gate_inp_shexp.weight" in self.t:
            share = h @ self.t[b + "ffn_gate_inp_shexp.weight"].reshape(-1, 1)
            out += self.mlp(h, [b + f"ffn_{m}_shexp" for m in ("gate", "up", "down")]) / (1 + np.exp(-share))
        return out

    # --- the whole model ---

    def logits(self, ids):
        """The logits of the last position [vocabulary]."""
        x = self.t["token_embd.weight"][ids]
        if self.gemma:
            x = x * F(np.sqrt(self.hidden))
        if "position_embd.weight" in self.t:
            x = x + self.t["position_embd.weight"][: len(ids)]
        for layer in range(self.layers):
            b = f"blk.{layer}."
            branch = self.attention(layer, self.norm(x, b + "attn_norm"))
            x = x + (self.norm(branch, b + "post_attention_norm") if self.gemma else branch)
            h = self.norm(x, b + "ffn_norm")
            if b + "ffn_gate_inp.weight" in self.t:
                branch = self.experts(b, h)
            else:
                branch = self.mlp(h, [None if self.arch == "gpt2" else b + "ffn_gate", b + "ffn_up", b + "ffn_down"])
            x = x + (self.norm(branch, b + "post_ffw_norm") if self.gemma else branch)
        x = self.norm(x[-1:], "output_norm")[0]
        logits = self.t.get("output.weight", self.t["token_embd.weight"]) @ x
        cap = self.get("final_logit_softcapping", 30.0 if self.arch == "gemma2" else 0)
        return F(cap) * np.tanh(logits / F(cap)) if cap else logits
