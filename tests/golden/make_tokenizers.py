"""Rewrites tokenizers/NAME.json: small vocabularies as Hugging Face's `tokenizer.json`, with texts and the ids that its library returns,
and a unigram model of SentencePiece as GGUF stores it.

    python make_tokenizers.py      (pip install tokenizers==0.23.3 sentencepiece==0.2.3)
"""

import io
import json
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
OUT = HERE / "tokenizers"
PATTERNS = {case["names"][0]: case["patterns"] for case in json.loads((HERE / "pretokenizers.json").read_text())["cases"]}
CORPUS = (HERE / "../../ARCHITECTURE.md").read_text().splitlines() + [
    "ä ö ü é ﬁ 中文字 ｗｉｄｅ naïve 12345 67 8",
    "  two  spaces",
    "a\tb\n\nc",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|end|>"]
TEXTS = [
    "The gate opens, and water runs.",
    "",
    " ",
    "  two  spaces   three ",
    "<|im_start|>user\nhi <|end|>\n there<s> x</s>",
    "naïve nai\u0308ve ﬁne ｗｉｄｅ 中文字 🦙🦙 \u0000\u0007",
    "12345 1234567 x86 3.14",
    "don't DON'T we'll\r\n\r\n\ttab",
    "a ▁ sign▁of",
    "ααα ααα 🦙 β",
]


def splits(name: str, last: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([*(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]), last])


def bpe(name: str) -> Tokenizer:
    byte_level = name not in ("llama2", "gemma")
    tokenizer = Tokenizer(models.BPE(byte_fallback=not byte_level, fuse_unk=not byte_level, unk_token=None if byte_level else "<unk>"))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    special = SPECIAL[1:] if byte_level else SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)]
    size = 256 + 120 + len(SPECIAL)
    if byte_level:
        tokenizer.pre_tokenizer = splits(name, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if name == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if name == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, limit_alphabet=80 if not byte_level else 256
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if name in ("llama3", "llama2"):
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    if name == "gemma":
        tokenizer.post_processor = processors.TemplateProcessing(
            "<s> $A </s>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
        )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    )
    return tokenizer


def write(name: str, value: dict) -> None:
    (OUT / f"{name}.json").write_text(json.dumps(value, ensure_ascii=True) + "\n")


def sentence_piece() -> None:
    rules = OUT / "rules.tsv"
    rules.write_text("FB01\t66 69\n00E4\t61 65\nFF57\t77\nFF44\t64\n9\t20\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=200,
        model_type="unigram",
        normalization_rule_tsv=str(rules),
        user_defined_symbols=["<|end|>"],
        minloglevel=2,
    )
    rules.unlink()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    from sentencepiece import sentencepiece_model_pb2 as pb  # noqa: PLC0415

    proto = pb.ModelProto()
    proto.ParseFromString(model.getvalue())
    kinds = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}
    texts = [text for text in TEXTS if "<" not in text and "\0" not in text]
    write(
        "sentencepiece",
        {
            "tokens": [piece.piece for piece in proto.pieces],
            "scores": [piece.score for piece in proto.pieces],
            "types": [kinds[piece.type] for piece in proto.pieces],
            "charsmap": list(proto.normalizer_spec.precompiled_charsmap),
            "unknown": processor.unk_id(),
            "cases": [{"text": text, "ids": processor.encode(text)} for text in texts],
        },
    )


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name in ("llama3", "qwen2", "deepseek-v3", "gpt-4o", "llama2", "gemma", "unigram"):
        tokenizer = unigram() if name == "unigram" else bpe(name)
        spec = json.loads(tokenizer.to_str())
        spec["added_tokens"] = [token for token in spec["added_tokens"] if not token["content"].startswith("<0x")]
        for token in spec["added_tokens"]:
            token["rstrip"] = token["content"] == "<|end|>" and name == "llama3"
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        cases = [
            {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids, "with_ends": tokenizer.encode(text).ids}
            for text in TEXTS
        ]
        write(name, {"tokenizer": spec, "cases": cases})
        print(name, sum(len(case["ids"]) for case in cases), "ids")
    sentence_piece()


main()
