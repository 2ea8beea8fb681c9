#!/usr/bin/env python3
"""CPU speed beside llama.cpp, alternating on the same machine: prefill of a prompt, then decode.

    tests/bench/cpu.py MODEL.gguf… [--prompt 256] [--gen 128] [--threads 2] [--rounds 5] [--penstock target/release/penstock]

Needs `pip install --no-binary llama-cpp-python llama-cpp-python` (built for this processor). Each round measures Penstock
(`penstock bench`, a process of its own) and llama.cpp (a process of its own), in turn; medians and their ratio are printed.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time


def peer(model, prompt, gen, threads):
    import llama_cpp
    llm = llama_cpp.Llama(model, n_ctx=prompt + gen + 8, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    vocab = llm.n_vocab()
    ids = [(i * 7919 + 17) % vocab for i in range(prompt)]
    best = []
    for _ in range(2):  # the first warms the page cache and the graph
        llm.reset()
        start = time.perf_counter()
        llm.eval(ids)
        prefill = time.perf_counter() - start
        token = 17
        start = time.perf_counter()
        for _ in range(gen):
            llm.eval([token])
            token = llm.sample(temp=0.0)
        best = [prompt / prefill, gen / (time.perf_counter() - start)]
    print(json.dumps(best))


def run(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--prompt", type=int, default=256)
    p.add_argument("--gen", type=int, default=128)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--penstock", default="target/release/penstock")
    p.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.peer:
        return peer(a.models[0], a.prompt, a.gen, a.threads)
    sizes = ["--prompt", str(a.prompt), "--gen", str(a.gen), "--threads", str(a.threads)]
    for model in a.models:
        ours, theirs = [], []
        for _ in range(a.rounds):
            row = run([a.penstock, "bench", "--model", model, "--repeat", "1", "--json", *sizes])[0]
            ours.append((row["prefill_tokens_per_second"], row["decode_tokens_per_second"]))
            theirs.append(run([sys.executable, __file__, model, "--peer", *sizes]))
        for i, what in enumerate(("prefill", "decode")):
            pairs = [o[i] / t[i] for o, t in zip(ours, theirs)]
            mine, peers = statistics.median(o[i] for o in ours), statistics.median(t[i] for t in theirs)
            print(f"{model}: {what} {mine:.1f} tok/s beside {peers:.1f}, ratio {statistics.median(pairs):.2f} (per round {', '.join(f'{x:.2f}' for x in pairs)})")


if __name__ == "__main__":
    main()
