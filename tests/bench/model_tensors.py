"""Lists the metadata and tensors of a shape under their GGUF names, and computes the bytes that a decode step reads."""

from gguf_writer import TYPES, Tensor

# Tensors that a quantiser leaves unquantised: vectors, and these.
FLOATS = ("norm.weight", "ffn_gate_inp.weight", "ssm_a", "ssm_d", "conv1d.weight", "shortconv.conv.weight")
# The constant elements of some vectors. Other vectors are random.
VALUES = {"norm.weight": 1.0, "ssm_a": -1.0, "ssm_d": 1.0, "rope_freqs.weight": 1.0}
# The types of rows whose length is not a multiple of 256.
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def metadata(shape, name, vocab, layers):
    mixers = [mixer for mixer, _ in layers]
    kv_heads = [shape.kv_heads if mixer == "A" else 0 for mixer in mixers] if {"M", "C"} & set(mixers) else shape.kv_heads
    keys = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": len(layers),
        "feed_forward_length": shape.ffn,
        "vocab_size": vocab,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": kv_heads,
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


def latent(s):
    rank, rotated, plain, value = s.latent
    yield "attn_q.weight", (s.hidden, s.heads * (rotated + plain))
    yield "attn_kv_a_mqa.weight", (s.hidden, rank + rotated)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (plain, rank, s.heads)
    yield "attn_v_b.weight", (rank, value, s.heads)
    yield "attn_output.weight", (s.heads * value, s.hidden)


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


MIXERS = {"A": attention, "W": attention, "L": latent, "M": recurrent, "D": recurrent, "C": convolution}


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
    """The type of a matrix. `depth`: its index among the value or down projections of all layers, and the number of these."""
    if shape.quant == "MXFP4":
        return "MXFP4" if "_exps" in name else "Q8_0"
    if shape.quant != "Q4_K_M":
        return shape.quant
    if name == "output.weight" or shape.tied and name == "token_embd.weight":
        return "Q6_K"
    if name.endswith("attn_qkv.weight"):
        return "Q5_K"
    if depth:  # the first and last eighth of the layers, and every third layer between them
        i, count = depth
        return "Q6_K" if i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2 else "Q4_K"
    return "Q4_K"


def step_bytes(shape, vocab, layers, batch, context):
    """The fewest bytes that a decode step of `batch` sequences must move: the weights, each used expert once (if rows choose at random),
    float16 keys and values, and the recurrent state, which is read and written in float32."""
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
    if shape.latent:
        total += batch * mixers.count("L") * context * sum(shape.latent[:2]) * 2
    state += mixers.count("C") * (shape.keys.get("shortconv.l_cache", 1) - 1) * shape.hidden
    return total + batch * (rows * 2 * shape.kv_heads * shape.head_dim * 2 + 2 * state * 4)
