#!/usr/bin/env python3
"""Prints a row of the table of `shapes.sh`: the results of `penstock bench --json`, and the fewest bytes that a decode step must move.

    tests/bench/shapes_row.py SHAPE RESULT.json [--layers 4] [--vocab 4096]
    tests/bench/shapes_row.py --head 1,8,64

The share is relative to the speed of a copy within the device's memory. `penstock bench` counts only the experts of one sequence, so its
own share is too low for larger batches. Here the experts of all rows count (see `step_bytes`), and so does recurrent state.
"""

import argparse
import json

from model_shapes import SHAPES
from model_tensors import step_bytes, tensors


def line(*cells):
    return f"| {' | '.join(cells)} |"


def head(batches):
    each = "/".join(batches)
    names = ("shape", "GB", f"GB per decode step at batch {each}", "ms per step", "share of the byte limit", "prefill tok/s")
    return "\n".join((line(*names), line("---", *["---:"] * (len(names) - 1))))


def row(name, result, layer_count, vocab):
    shape = SHAPES[name]
    layers, vocab = shape.layers(layer_count), vocab or shape.vocab
    context = result["prompt"] + result["generated"] // 2
    copy = result["copy_gigabytes_per_second"]
    size = sum(t.bytes for t in tensors(shape, vocab, layers)) / 1e9
    read, ms, share = [], [], []
    for r in result["rows"]:
        gigabytes = step_bytes(shape, vocab, layers, r["batch"], context) / 1e9
        read.append(f"{gigabytes:.2f}")
        ms.append(f"{r['decode_step_milliseconds']:.3f}")
        share.append(f"{100 * gigabytes / (r['decode_step_milliseconds'] / 1e3) / copy:.0f} %" if copy else "-")
    prefill = f"{result['rows'][0]['prefill_tokens_per_second']:.0f}"
    return line(name, f"{size:.1f}", " / ".join(read), " / ".join(ms), " / ".join(share), prefill)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", nargs="?", choices=SHAPES)
    p.add_argument("result", nargs="?", metavar="RESULT.json")
    p.add_argument("--layers", type=int)
    p.add_argument("--vocab", type=int)
    p.add_argument("--head", metavar="BATCHES", help="print the head of the table and exit")
    args = p.parse_args()
    if args.head:
        print(head(args.head.split(",")))
        return
    if not args.result:
        p.error("SHAPE and RESULT.json, or --head")
    with open(args.result) as f:
        print(row(args.shape, json.load(f), args.layers, args.vocab))


if __name__ == "__main__":
    main()
