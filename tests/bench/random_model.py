#!/usr/bin/env python3
"""Writes a GGUF model with the shape of a real one and random weights. Speed and memory do not depend on the weights' values.

    tests/bench/random_model.py OUT.gguf --shape qwen3-30b-a3b [--layers 4] [--vocab 4096]
    tests/bench/random_model.py --list

Needs numpy. The file has no vocabulary, so `penstock bench` and `penstock logits` accept it, but a server does not.
"""

import argparse
import sys
import time

from gguf_writer import write
from model_shapes import SHAPES
from model_tensors import metadata, step_bytes, tensors


def summary(name, shape, vocab, layers):
    all_tensors = tensors(shape, vocab, layers)
    params, size = sum(t.elements for t in all_tensors), sum(t.bytes for t in all_tensors)
    step = step_bytes(shape, vocab, layers, 1, 0)
    return f"{name}: {shape.arch}, {len(layers)} layers, {params / 1e9:.2f} B parameters, {size / 1e9:.2f} GB, {step / 1e9:.2f} GB per step"


def positive(text):
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", nargs="?", metavar="OUT.gguf")
    p.add_argument("--shape", choices=SHAPES)
    p.add_argument("--layers", type=positive, help="keep this many of the shape's layers, with at least one of each kind if possible")
    p.add_argument("--vocab", type=positive, help="size of the vocabulary, instead of the shape's own")
    p.add_argument("--list", action="store_true", help="print every shape and exit")
    args = p.parse_args()
    if args.list:
        for name, shape in SHAPES.items():
            print(f"{summary(name, shape, shape.vocab, shape.layers())} (published as {shape.billions:g} B)")
        return
    if not args.out or not args.shape:
        p.error("OUT.gguf and --shape, or --list")
    shape = SHAPES[args.shape]
    if args.layers and args.layers > len(shape.mixers):
        p.error(f"--layers {args.layers}: {args.shape} has {len(shape.mixers)}")
    vocab, layers = args.vocab or shape.vocab, shape.layers(args.layers)
    print(summary(args.shape, shape, vocab, layers))
    start = time.perf_counter()
    size = write(args.out, metadata(shape, args.shape, vocab, layers), tensors(shape, vocab, layers))
    seconds = time.perf_counter() - start
    print(f"{args.out}: {size / 1e9:.2f} GB in {seconds:.1f} s ({size / seconds / 1e9:.1f} GB/s)", file=sys.stderr)


if __name__ == "__main__":
    main()
