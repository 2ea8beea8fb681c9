"""Rewrites `tokenizers/wordpiece.json.gz`: two WordPiece vocabularies (one ignores case, one does not), texts in many scripts with the
words and ids that Hugging Face's library returns, and the sets of characters that its rules use.

    python make_wordpiece.py      (pip install tokenizers==0.23.3)
"""

import gzip
import json
import random
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SAMPLES = """\
The gate opens, and water runs. Unbelievable re-embeddings of naïve café façades: 12345 items, $9.99 (or 3 × 3)!
Größe, Straße, ÄÖÜ äöü; l'été où; ¿qué? ¡año! Šťastný žluťoučký kůň; İstanbul'da ışık; Łódź, ŁÓDŹ
Ελληνικά ΟΔΟΣ οδός Ώρα; Русский ЙОД ёлка; Українська ґанок; Հայերեն ԵՎ; ქართული ᲥᲐᲠᲗᲣᲚᲘ
עִבְרִית שלום; العربيّة مرحبا ٱلسَّلَامُ؛ فارسی؟ हिन्दी नमस्ते।; বাংলা; தமிழ்; తెలుగు; ไทย สวัสดี; ລາວ; မြန်မာ; ខ្មែរ
日本語のテキスト、カタカナ・ひらがな。 中文字符，標點！ 한국어 문장입니다. ガギグゲゴ パピプ 豈更車 𠀀𪜀𫝀𫠠
Tiếng Việt: Ẩn dụ, ữ ờ ặ; ǅ ǆ ﬁ ﬂ ﬀ ß ẞ ſ K Å Ⅳ ⅳ ① Ⓐ ⓐ
🦙🦙🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ ☎︎ ➊ → ≤ ∑ № ™ © ° € ₿ ½ ² ‰ § ¶ † ‡ … – — ‘x’ “y” «z» ‹w› 「v」 【u】 ・ ～ ｗｉｄｅ ＡＢＣ １２３
"""
BITS = [
    *(
        "the",
        "Gate",
        "OPENS",
        "un",
        "believ",
        "able",
        "ing",
        "café",
        "CAFÉ",
        "naïve",
        "12",
        "3.14",
        "don't",
        "e-mail",
        "a_b",
        "x=y+z",
        "$5",
    ),
    *(
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\xa0",
        "\u1680",
        "\u2003",
        "\u2028",
        "\u3000",
        "\u200b",
        "\u2060",
        "\ufeff",
    ),
    *(
        "\0",
        "\x01",
        "\x7f",
        "\x9f",
        "\xad",
        "\u200d",
        "\u200e",
        "\u202e",
        "\ufffd",
        "\ufffe",
        "\uffff",
        "\ue000",
        "\U000f0000",
        "\U0010ffff",
    ),
    *(
        "\u0300",
        "\u0301",
        "\u0323",
        "\u0334",
        "\u0345",
        "\u05b0",
        "\u064b",
        "\u093c",
        "\u0e38",
        "\u302e",
        "\u1ab0",
        "\u20d0",
        "\ufe20",
        "\ufe0f",
    ),
    *(
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "[mask]",
        "[UNK]",
        "[unused0]",
        "##ing",
        "##",
        "▁",
        "▁the",
        "<s>",
        "日",
        "本語",
        "の",
        "中",
        "𠀀",
        "豈",
        "한국",
        "각",
    ),
    *(
        "İ",
        "I\u0307",
        "ı",
        "ǅ",
        "ﬁ",
        "ß",
        "ẞ",
        "Σ",
        "ς",
        "ΟΔΟΣ",
        "Å",
        "K",
        "ϓ",
        "Ǖ",
        "ṩ",
        "q\u0307\u0323",
        "Ⅳ",
        "ⓐ",
        "ﷺ",
        "ｱﾞ",
        "Ꭰ",
        "ꭰ",
        "Ა",
        "𐐀",
        "𞤀",
    ),
    *("\u08d4", "\u1df6", "\U0001e944", "\U0001e94a", "\U0001e2ec", "\u061d", "\u2e43", "\u166d", "\U000111c9", "\U00011383", "\U00016d68"),
    *("🦙", "👨‍👩‍👧", "🇩🇪", "❤️", "½", "²", "№", "…", "—", "“", "”", "。", "、", "！", "？", "·", "`", "^", "~", "|", "\\", "€", "¤", "¬"),
]


def alphabet() -> list[str]:
    """Characters that begin and continue words, so that few words become the unknown token."""
    ranges = [(0x21, 0x7F), (0xA1, 0x250), (0x300, 0x530), (0x5D0, 0x5EB), (0x620, 0x660), (0x900, 0x980), (0xE01, 0xE4F), (0x1100, 0x1200)]
    ranges += [
        (0x1E00, 0x2000),
        (0x2010, 0x2030),
        (0x3041, 0x3100),
        (0x4E00, 0x4E80),
        (0xAC00, 0xAC40),
        (0x13A0, 0x13F6),
        (0x1E900, 0x1E960),
    ]
    return [chr(code) for first, end in ranges for code in range(first, end) if unicodedata.category(chr(code)) != "Cn"]


def build(cased: bool) -> Tokenizer:
    text = (HERE / "../../ARCHITECTURE.md").read_text() + SAMPLES * 3
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    letters = alphabet()
    tokens += [token for letter in letters for token in (letter, "##" + letter)]
    tokens += ["▁", "##▁", "▁▁", "x" * 60, "##" + "x" * 60]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    ends = [(text, vocab[text]) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def texts(count: int) -> list[str]:
    rng = random.Random(20261122)
    known = [chr(code) for code in range(0x20, 0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    out = ["", " ", "Unbelievable re-embeddings!", *SAMPLES.splitlines()]
    out += [c * n for c in ("a", "é", "日", "x", "🦙") for n in (99, 100, 101, 250)] + [
        "e\u0301" * 100,
        "e\u0301" * 101,
        "a" * 100 + "." + "a" * 101,
    ]
    for i in range(count):
        pick: Callable[[], str] = (
            (lambda: rng.choice(BITS)) if i % 2 else (lambda: rng.choice(BITS) if rng.random() < 0.6 else rng.choice(known))
        )
        out.append("".join(pick() for _ in range(rng.randint(1, 16))))
    # Neighbouring characters, from one script or from two.
    for start in range(0x80, 0x3100, 0x80):
        block = [chr(code) for code in range(start, start + 0x80)]
        out.append("".join(rng.choice(["", "", " "]) + rng.choice(block) for _ in range(40)))
    return out


def bounds(holds: Callable[[str], bool]) -> list[int]:
    """Encodes a set of code points as ascending bounds: a range begins at each bound of even index and ends before the next bound."""
    out: list[int] = []
    for code in range(0x110000):
        if (not 0xD800 <= code < 0xE000 and holds(chr(code))) != (len(out) % 2 == 1):
            out.append(code)
    return out + [0x110000] * (len(out) % 2)


def characters() -> dict[str, list[int]]:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    cleaning, isolating, stripping = (
        normalizers.BertNormalizer(**(off | {key: True})) for key in ("clean_text", "handle_chinese_chars", "strip_accents")
    )
    cut = lambda c: [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(f"a{c}a")]
    return {
        "dropped": bounds(lambda c: cleaning.normalize_str(c) == ""),
        "ideographs": bounds(lambda c: isolating.normalize_str(c) == f" {c} "),
        "accents": bounds(lambda c: stripping.normalize_str(c) == ""),
        "punctuation": bounds(lambda c: cut(c) == ["a", c, "a"]),
        "spaces": bounds(lambda c: cut(c) == ["a", "a"]),
    }


def cases(tokenizer: Tokenizer, of: Iterable[str]) -> list[dict]:
    out = []
    for text in of:
        words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        ids = tokenizer.encode(text).ids
        decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
        out.append({"text": text, "words": [word for word, _ in words], "ids": ids, "decoded": decoded})
    return out


def main() -> None:
    golden = {"characters": characters(), "vocabularies": {}}
    for name, cased in (("uncased", False), ("cased", True)):
        tokenizer = build(cased)
        pairs = [(a, b, tokenizer.encode(a, b)) for a, b in (("What is a gate?", "The gate opens."), ("", "x"), ("naïve", ""))]
        golden["vocabularies"][name] = {
            "tokenizer": json.loads(tokenizer.to_str()),
            "cases": cases(tokenizer, texts(300)),
            "pairs": [{"texts": [a, b], "ids": both.ids, "types": both.type_ids} for a, b, both in pairs],
        }
        print(name, tokenizer.get_vocab_size(), "tokens,", sum(len(case["ids"]) for case in golden["vocabularies"][name]["cases"]), "ids")
    packed = gzip.compress(json.dumps(golden, separators=(",", ":")).encode(), 9, mtime=0)
    (HERE / "tokenizers" / "wordpiece.json.gz").write_bytes(packed)
    print(f"{len(packed):,} bytes")


main()
