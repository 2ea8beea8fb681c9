"""Rewrites `embeddings.jsonl.gz`: tiny embedding models, one per line, in the form of `architectures.jsonl.gz` (the weights follow from the
tensors' names and shapes). Each has a vocabulary, and sentence-transformers' results for texts: normalised vectors, or scores of pairs.

    python make_embeddings.py      (pip install sentence-transformers==6.2.0 transformers==5.23.0 tokenizers==0.23.3 torch==2.15.0)
"""

import gzip
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers as hf
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as cutters

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "../wire"))
from tiny import layout_values  # noqa: E402

HIDDEN, FFN, HEADS, LAYERS, CONTEXT = 64, 96, 4, 2, 256
CORPUS = (HERE / "../../ARCHITECTURE.md").read_text().splitlines() + [
    "Größe, Straße; naïve café?",
    "Вода течёт. 水が流れる。",
    "12345 + 67 = x",
] * 3
TEXTS = [
    "The gate opens, and water runs.",
    "a",
    "Unbelievable re-embeddings of naïve CAFÉ façades: 12,345 items (or 3 × 3)!",
    "Größe, Straße; ΟΔΟΣ. Вода течёт вниз. 水が流れる。 🦙 日本",
    "A model that is asked twice answers the same. " * 9,
]
PAIRS = [("What opens?", "The gate opens, and water runs."), ("水", "a"), ("Who answers the same?", TEXTS[4]), ("What opens?", "Größe!")]


@dataclass
class Model:
    """A model in both forms. `names`: each GGUF tensor's shape, and the names in transformers of the tensors whose rows it joins."""

    arch: str
    network: torch.nn.Module
    tokenizer: Tokenizer
    special: dict[str, str]
    pooling: str
    metadata: dict
    vocabulary: dict
    names: dict[str, list[str]] = field(default_factory=dict)

    def layer(self, prefix: str, names: dict[str, str]) -> None:
        for i in range(LAYERS):
            for ours, theirs in names.items():
                self.names[f"blk.{i}.{ours}"] = [prefix.format(i) + name for name in theirs.split()]

    def fill(self, centred: bool = False) -> list:
        """Sets the network's weights, and returns the tensors' names and shapes. `centred`: norms multiply by 1 + weight."""
        theirs, tensors = dict(self.network.named_parameters()), []
        for name, parts in self.names.items():
            for kind in ("weight", "bias"):
                found = [theirs.pop(f"{part}.{kind}") for part in parts if f"{part}.{kind}" in theirs]
                if not found:
                    continue
                shape = [sum(len(part) for part in found), *found[0].shape[1:]]
                values = torch.from_numpy(layout_values(f"{name}.{kind}", shape))
                values = values - 1 if centred and "norm" in name else values
                for part, rows in zip(found, values.split([len(part) for part in found])):
                    part.data.copy_(rows)
                tensors.append([f"{name}.{kind}", shape])
        assert all("pooler" in name for name in theirs), list(theirs)
        return tensors


def encoder(arch: str, norm: str = "layer_norm_epsilon", eps: float = 1e-12, **more) -> dict:
    of = {"context_length": CONTEXT, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": FFN}
    of |= {"attention.head_count": HEADS, f"attention.{norm}": eps, "attention.causal": False}
    return {f"{arch}.{key}": value for key, value in (of | more).items()}


def special_ids(tokenizer: Tokenizer, names: dict[str, str]) -> dict:
    return {f"tokenizer.ggml.{key}_token_id": tokenizer.token_to_id(text) for key, text in names.items()}


def word_piece(cased: bool) -> tuple[Tokenizer, dict]:
    """Makes a vocabulary as in BERT's GGUF files: tokens that begin a word are marked with `▁`, and `##` is left out."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(cutters.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(lowercase=not cased), pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    ends = [(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    marked = [token if token in special else token[2:] if token.startswith("##") else "▁" + token for token in tokens]
    names = {"unknown": "[UNK]", "seperator": "[SEP]", "padding": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    return tokenizer, {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.normalizer.lowercase": not cased,
        "tokenizer.ggml.token_type_count": 2,
    } | special_ids(tokenizer, names)


def byte_level(pre: str, special: list[str], template: str, ends: dict[str, str], **flags) -> tuple[Tokenizer, dict]:
    golden = json.loads((HERE / "pretokenizers.json").read_text())["cases"]
    (patterns,) = (case["patterns"] for case in golden if pre in case["names"])
    tokenizer = Tokenizer(cutters.BPE(ignore_merges=pre == "llama-bpe"))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet))
    tokenizer.post_processor = processors.TemplateProcessing(
        template, special_tokens=[(t, tokenizer.token_to_id(t)) for t in special if t in template]
    )
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return tokenizer, {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.add_{key}_token": value for key, value in flags.items()},
    } | special_ids(tokenizer, ends)


BERT_SPECIAL = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}


def bert(pooling: str, number: int, cased: bool) -> Model:
    tokenizer, vocabulary = word_piece(cased)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = hf.BertConfig(**sizes, intermediate_size=FFN, max_position_embeddings=CONTEXT, num_labels=1)
    ranks = pooling == "rank"
    network = hf.BertForSequenceClassification(config) if ranks else hf.BertModel(config, add_pooling_layer=False)
    of = Model("bert", network, tokenizer, BERT_SPECIAL, pooling, encoder("bert", pooling_type=number), vocabulary)
    base = "bert." if ranks else ""
    of.names = {
        "token_embd": [base + "embeddings.word_embeddings"],
        "token_types": [base + "embeddings.token_type_embeddings"],
        "position_embd": [base + "embeddings.position_embeddings"],
        "token_embd_norm": [base + "embeddings.LayerNorm"],
    }
    if ranks:
        of.names |= {"cls": ["bert.pooler.dense"], "cls.output": ["classifier"]}
    names = {"attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value"}
    names |= {"attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm"}
    names |= {"ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm"}
    of.layer(base + "encoder.layer.{}.", names)
    return of


def nomic() -> Model:
    tokenizer, vocabulary = word_piece(False)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    network = hf.NomicBertModel(
        hf.NomicBertConfig(**sizes, intermediate_size=FFN, max_position_embeddings=CONTEXT), add_pooling_layer=False
    )
    metadata = encoder("nomic-bert", pooling_type=1, **{"rope.freq_base": 1000.0})
    of = Model("nomic-bert", network, tokenizer, BERT_SPECIAL, "mean", metadata, vocabulary)
    of.names = {
        "token_embd": ["embeddings.word_embeddings"],
        "token_types": ["embeddings.token_type_embeddings"],
        "token_embd_norm": ["embeddings.LayerNorm"],
    }
    names = {"attn_qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj", "attn_output": "self_attn.o_proj"}
    names |= {"attn_output_norm": "post_attention_layernorm", "layer_output_norm": "post_mlp_layernorm"}
    names |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    of.layer("layers.{}.", names)
    return of


def modern_bert() -> Model:
    special, template = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "[CLS] $A [SEP]"
    ends = {"bos": "[CLS]", "eos": "[SEP]", "unknown": "[UNK]", "seperator": "[SEP]", "padding": "[PAD]"}
    tokenizer, vocabulary = byte_level("modern-bert", special, template, ends, bos=True, eos=True, sep=False)
    ids = {f"{name}_token_id": tokenizer.token_to_id(text) for name, text in (("pad", "[PAD]"), ("cls", "[CLS]"), ("sep", "[SEP]"))}
    ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = hf.ModernBertConfig(**sizes, **ids, intermediate_size=FFN, max_position_embeddings=CONTEXT, local_attention=32)
    metadata = encoder("modern-bert", eps=1e-5, pooling_type=1)
    metadata |= {"modern-bert.attention.sliding_window": 32, "modern-bert.attention.sliding_window_pattern": 3}
    metadata |= {"modern-bert.rope.freq_base": 160000.0, "modern-bert.rope.freq_base_swa": 10000.0}
    of = Model("modern-bert", hf.ModernBertModel(config), tokenizer, BERT_SPECIAL, "mean", metadata, vocabulary)
    of.names = {"token_embd": ["embeddings.tok_embeddings"], "token_embd_norm": ["embeddings.norm"], "output_norm": ["final_norm"]}
    names = {"attn_norm": "attn_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo"}
    of.layer("layers.{}.", names | {"ffn_norm": "mlp_norm", "ffn_up": "mlp.Wi", "ffn_down": "mlp.Wo"})
    return of


LLAMA = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
LLAMA |= {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
LLAMA |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def euro_bert() -> Model:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|mask|>"]
    ends = {"bos": special[0], "eos": special[1], "padding": special[2], "mask": special[3]}
    tokenizer, vocabulary = byte_level("llama-bpe", special, f"{special[0]} $A {special[1]}", ends, bos=True, eos=True)
    ids = {f"{name}_token_id": tokenizer.token_to_id(text) for name, text in zip(("bos", "eos", "pad", "mask"), special)}
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    rope = {"rope_type": "default", "rope_theta": 250000.0}
    config = hf.EuroBertConfig(
        **sizes, **ids, intermediate_size=FFN, max_position_embeddings=CONTEXT, num_key_value_heads=2, rope_parameters=rope
    )
    metadata = encoder("eurobert", norm="layer_norm_rms_epsilon", eps=1e-5, pooling_type=1)
    metadata |= {"eurobert.rope.freq_base": 250000.0, "eurobert.attention.head_count_kv": 2}
    names = {"bos_token": special[0], "eos_token": special[1], "pad_token": special[2], "mask_token": special[3]}
    of = Model("eurobert", hf.EuroBertModel(config), tokenizer, names, "mean", metadata, vocabulary)
    of.names = {"token_embd": ["embed_tokens"], "output_norm": ["norm"]}
    of.layer("layers.{}.", LLAMA)
    return of


def qwen3() -> Model:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ends = {"eos": special[0], "padding": special[0], "eot": special[2]}
    tokenizer, vocabulary = byte_level("qwen2", special, f"$A {special[0]}", ends, bos=False, eos=True)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    config = hf.Qwen3Config(
        **sizes, intermediate_size=FFN, max_position_embeddings=CONTEXT, num_key_value_heads=2, head_dim=32, rope_parameters=rope
    )
    metadata = encoder("qwen3", norm="layer_norm_rms_epsilon", eps=1e-6, pooling_type=3)
    del metadata["qwen3.attention.causal"]
    metadata |= {"qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 32, "qwen3.attention.value_length": 32}
    metadata |= {"qwen3.rope.freq_base": 1000000.0}
    of = Model(
        "qwen3", hf.Qwen3Model(config), tokenizer, {"eos_token": special[2], "pad_token": special[0]}, "lasttoken", metadata, vocabulary
    )
    of.names = {"token_embd": ["embed_tokens"], "output_norm": ["norm"]}
    of.layer("layers.{}.", LLAMA | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})
    return of


def gemma() -> Model:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = sorted(set("".join(CORPUS)) - {" "}) + ["▁"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)] + letters + ["▁t", "▁th", "▁the", "in", "ing", "er"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("i", "n"), ("in", "g"), ("e", "r")]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(cutters.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)])
    kind = lambda token: 2 if token == "<unk>" else 3 if token in special else 6 if token.startswith("<0x") else 1
    score = lambda token: -float([a + b for a, b in merges].index(token)) if token in [a + b for a, b in merges] else -1000.0
    vocabulary = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kind(token) for token in tokens],
        "tokenizer.ggml.scores": [score(token) for token in tokens],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    } | special_ids(tokenizer, {"bos": "<bos>", "eos": "<eos>", "unknown": "<unk>", "padding": "<pad>"})
    sizes = {"vocab_size": len(tokens), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = hf.Gemma3TextConfig(
        **sizes, intermediate_size=FFN, max_position_embeddings=1024, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32,
        sliding_window=32, use_bidirectional_attention=True, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    arch = "gemma-embedding"
    metadata = encoder(arch, norm="layer_norm_rms_epsilon", eps=1e-6, pooling_type=1)
    metadata |= {f"{arch}.attention.head_count_kv": 1, f"{arch}.attention.key_length": 32, f"{arch}.attention.value_length": 32}
    metadata |= {f"{arch}.context_length": 1024, f"{arch}.attention.sliding_window": 32, f"{arch}.attention.sliding_window_pattern": 2}
    metadata |= {f"{arch}.rope.freq_base": 1000000.0}
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    of = Model(arch, hf.Gemma3TextModel(config), tokenizer, names, "mean", metadata, vocabulary)
    of.names = {"token_embd": ["embed_tokens"], "output_norm": ["norm"]}
    norms = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
    norms |= {"post_ffw_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    of.layer("layers.{}.", LLAMA | norms)
    return of


def typed(key: str, value) -> list:
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
    if isinstance(value, list):
        return [key, "ARRAY", "INT32" if isinstance(value[0], int) else kinds[type(value[0])], value]
    return [key, kinds[type(value)], None, value]


def measured(name: str, of: Model, folder: Path) -> dict:
    tensors = of.fill(centred=of.arch.startswith("gemma"))
    of.network.float().eval().save_pretrained(folder)
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if of.arch == "bert" else ["input_ids", "attention_mask"]
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=of.tokenizer, model_input_names=inputs, **of.special)
    tokenizer.save_pretrained(folder)
    line = {
        "name": name,
        "architecture": of.arch,
        "metadata": [typed(key, value) for key, value in (of.metadata | of.vocabulary).items()],
        "tensors": tensors,
    }
    ids = [of.tokenizer.encode(text).ids for text in TEXTS]
    if of.pooling == "rank":
        assert "token_type_ids" in hf.AutoTokenizer.from_pretrained(folder)("a", "b")
        scores = CrossEncoder(str(folder), max_length=1024).predict(PAIRS, activation_fn=torch.nn.Identity(), batch_size=1)
        return line | {"pairs": PAIRS, "scores": [float(score) for score in scores]}
    transformer = models.Transformer(str(folder), max_seq_length=1024)
    pooled = SentenceTransformer(modules=[transformer, models.Pooling(HIDDEN, pooling_mode=of.pooling), models.Normalize()], device="cpu")
    saved = folder / "whole"
    pooled.save(str(saved))
    vectors = SentenceTransformer(str(saved), device="cpu").encode(TEXTS, batch_size=1)
    return line | {"texts": TEXTS, "ids": ids, "vectors": [[float(f"{x:.9g}") for x in vector] for vector in vectors]}


def main() -> None:
    makers = {
        "bert-mean": lambda: bert("mean", 1, False),
        "bert-cls-cased": lambda: bert("cls", 2, True),
        "bert-rank": lambda: bert("rank", 4, False),
        "nomic-bert-mean": nomic,
        "modern-bert-mean": modern_bert,
        "eurobert-mean": euro_bert,
        "qwen3-last": qwen3,
        "gemma-embedding-mean": gemma,
    }
    lines = []
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as folder:
            lines.append(json.dumps(measured(name, make(), Path(folder)), separators=(",", ":")))
        print(name, len(lines[-1]), "bytes")
    packed = gzip.compress("\n".join(lines).encode() + b"\n", 9, mtime=0)
    (HERE / "embeddings.jsonl.gz").write_bytes(packed)
    print(f"{len(packed):,} bytes")


main()
