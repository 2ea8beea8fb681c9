"""Rewrites pretokenizers.json: how Hugging Face's `tokenizers` splits random texts with each list of patterns in the file.

python make_pretokenizers.py [TEXTS] [FILE]      (pip install tokenizers==0.23.3)
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

FILE = Path(__file__).with_name("pretokenizers.json")
BITS = [
    *"aZéßſǅʰЖ中文あーアㄅ가ㄱ१٣²Ⅷ_-.,!?'/\\()[]{}<>|`~@#$%^&*+=:;\"",
    *["\u0301", "\u0903", "\u00a0", "\u3000", "\u2028", "\u200b", "\0", "🦙", "ﷺ", "！", "“", "、", "…", "𝐀", "👍🏽"],
    *[" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", " \n ", "\u0085"],
    *[
        "'s",
        "'S",
        "'ll",
        "'LL",
        "'Re",
        "'t",
        "'x",
        "hello",
        "Hello",
        "HTTPServer",
        "eMail",
        " word",
        " Two",
        "1",
        "12",
        "1234567",
        "３",
        "x86",
        "don't",
    ],
]


def main() -> None:
    count, target = int(sys.argv[1]) if len(sys.argv) > 1 else 100, Path(sys.argv[2]) if len(sys.argv) > 2 else FILE
    golden = json.loads(FILE.read_text())
    rng = random.Random(20261121)
    texts = ["".join(rng.choice(BITS) for _ in range(rng.randint(1, 24))) for _ in range(count)]
    for case in golden["cases"]:
        cutter = Sequence([Split(Regex(pattern), "isolated") for pattern in case["patterns"]])
        case["lengths"] = [[len(word.encode()) for word, _ in cutter.pre_tokenize_str(text)] for text in texts]
    golden["texts"] = texts
    rows = ",\n".join(json.dumps(case, ensure_ascii=True) for case in golden["cases"])
    target.write_text(f'{{"texts": {json.dumps(texts)},\n"cases": [\n{rows}\n]}}\n')


main()
