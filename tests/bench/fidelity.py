#!/usr/bin/env python3
"""Measures how far each file type is from its source: one row per model and type, as JSON lines, or the table of docs/fidelity.md.

    fidelity.py --models smollm2:135m gemma3:270m-base --out rows.jsonl       measures, and continues after the rows in rows.jsonl
    fidelity.py --table rows.jsonl                                       prints the table

The source is the model's file with every tensor dequantised to F32, which is exact. Each type is written from it by `penstock quantize` and
compared with it by `penstock eval`. The row `as shipped` compares the shipped file, on the device, with plain float32 on the CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = (
    "F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS "
    "Q3_K_L Q3_K_M Q3_K_S Q2_K Q2_K_S MXFP4_MOE TQ2_0 TQ1_0"
).split()
SHIPPED = "as shipped"


def run(penstock: Path, *args: str) -> dict:
    """Runs a command that prints JSON, and returns the parsed output."""
    done = subprocess.run([str(penstock), *args, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"penstock {' '.join(args)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def shipped_row(penstock: Path, model: str, how: list[str], chunks: int) -> dict:
    return run(penstock, "eval", model, "--reference", "exact", *how)["against"] | {"bytes": None, "chunks": chunks}


def type_row(penstock: Path, copy: Path, source: Path, written: dict, how: list[str]) -> dict:
    found = run(penstock, "eval", str(copy), "--reference", str(source), *how)
    against = found["against"]
    row = {key: against[key] for key in against if key != "perplexity"}
    row |= {"source_perplexity": against["perplexity"], "perplexity": found["perplexity"], "bytes": written["bytes"]}
    return row | {"chunks": found["chunks"], "tokens": found["tokens"], "seconds": written["seconds"]}


def measure(args: argparse.Namespace) -> None:
    penstock = args.penstock.resolve(strict=True)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(row["model"], row["type"], row["device"]) for row in done}
    threads = ["--threads", str(args.threads)]
    how = ["--text", str(args.text), "--context", str(args.context), "--chunks", str(args.chunks), *threads]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, args.out.open("a") as out:
        source, copy = Path(folder) / "source.gguf", Path(folder) / "copy.gguf"
        for model in args.models:
            missing = lambda kind: [device for device in args.device if (args.name or model, kind, device) not in known]
            wanted = [(kind, missing(kind)) for kind in [SHIPPED, *args.types]]
            if any(devices for kind, devices in wanted if kind != SHIPPED):
                run(penstock, "quantize", model, "--type", "F32", "-o", str(source), "--force", *threads)
            for kind, devices in wanted:
                if devices and kind != SHIPPED:
                    written = run(penstock, "quantize", str(source), "--type", kind, "-o", str(copy), "--force", *threads)
                for device in devices:
                    on = [*how, "--device", device]
                    if kind == SHIPPED:
                        found = shipped_row(penstock, model, on, args.chunks)
                    else:
                        found = type_row(penstock, copy, source, written, on)
                    row = {"model": args.name or model, "type": kind, "device": device, "context": args.context} | found
                    out.write(json.dumps(row) + "\n")
                    out.flush()


def table(path: Path) -> None:
    rows = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows[row["model"], row["type"], row["device"]] = row
    models = dict.fromkeys(model for model, _, _ in rows)
    devices = sorted({device for _, _, device in rows})
    for model in models:
        print(f"\n**{model}**, {' / '.join(devices)}\n")
        print("| type | MB | perplexity | mean KL | p99 KL | same first token [%] |")
        print("|---|---|---|---|---|---|")
        for kind in [SHIPPED, *TYPES]:
            found = [rows.get((model, kind, device)) for device in devices]
            if any(found):
                print(table_row(kind, found))


def table_row(kind: str, found: list[dict | None]) -> str:
    """The row of one type, with the figures of each device. A dash means that a figure was not measured."""
    num_bytes = next(row["bytes"] for row in found if row)
    each = lambda text: " / ".join(text(row) if row else "–" for row in found)
    cells = [
        kind,
        f"{num_bytes / 1e6:.1f}" if num_bytes else "–",
        each(lambda row: f"{row['perplexity']:.2f}" if row["perplexity"] < 1e4 else f"{row['perplexity']:.0e}"),
        each(lambda row: f"{row['kl_mean']:.1e}"),
        each(lambda row: f"{row['kl_p99']:.1e}"),
        each(lambda row: f"{100 * row['same_first']:.1f}"),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=Path, default=ROOT / "target" / "release" / "penstock", help="the binary")
    parser.add_argument("--models", nargs="+", default=["smollm2:135m", "gemma3:270m-base", "qwen2.5-coder:0.5b"], help="names or files")
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--name", help="the model's name in the rows, if a file is measured")
    parser.add_argument("--device", nargs="+", default=["cpu"], help="cpu, cuda or both")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (0 means one per physical core)")
    parser.add_argument("--text", type=Path, default=ROOT / "ARCHITECTURE.md")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="folder for the written files, which take five bytes per weight")
    parser.add_argument("--out", type=Path, default=Path("fidelity.jsonl"))
    parser.add_argument("--table", type=Path, metavar="ROWS", help="print the table of the measured rows")
    args = parser.parse_args()
    table(args.table) if args.table else measure(args)


main()
