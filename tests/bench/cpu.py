#!/usr/bin/env python3
"""Compares Penstock's speed on the CPU with llama.cpp's on the same machine: prefill of a prompt, then decode.

    tests/bench/cpu.py MODEL.gguf… [--prompt 256] [--gen 128] [--threads 2] [--rounds 5] [--penstock target/release/penstock]

Needs `pip install --no-binary llama-cpp-python llama-cpp-python` (built for this processor). Each round measures Penstock (`penstock
bench`), then llama.cpp, each in its own process. Prints the medians and their ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time


def peer(model, prompt, gen, threads):
    """Measures prefill and decode through the C API, as llama.cpp's own benchmark does: random ids, no sampling."""
    import ctypes
    import llama_cpp as l

    l.llama_backend_init()
    l.llama_log_set(ctypes.cast(None, l.llama_log_callback), None)
    handle = l.llama_model_load_from_file(model.encode(), l.llama_model_default_params())
    params = l.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = prompt + gen + 8, 512, 512
    params.n_threads = params.n_threads_batch = threads
    context = l.llama_init_from_model(handle, params)
    vocab = l.llama_vocab_n_tokens(l.llama_model_get_vocab(handle))
    ids = (l.llama_token * prompt)(*[(i * 7919 + 17) % vocab for i in range(prompt)])
    best = []
    for _ in range(2):  # the first round warms the page cache
        l.llama_memory_clear(l.llama_get_memory(context), True)
        start = time.perf_counter()
        assert l.llama_decode(context, l.llama_batch_get_one(ids, prompt)) == 0
        l.llama_synchronize(context)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for i in range(gen):
            one = (l.llama_token * 1)((i * 7919 + 17) % vocab)
            assert l.llama_decode(context, l.llama_batch_get_one(one, 1)) == 0
            l.llama_synchronize(context)
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
            row = run([a.penstock, "bench", "--backend", "cpu", "--model", model, "--repeat", "1", "--json", *sizes])["rows"][0]
            ours.append((row["prefill_tokens_per_second"], row["decode_tokens_per_second"]))
            theirs.append(run([sys.executable, __file__, model, "--peer", *sizes]))
        for i, what in enumerate(("prefill", "decode")):
            pairs = [o[i] / t[i] for o, t in zip(ours, theirs)]
            mine, peers = statistics.median(o[i] for o in ours), statistics.median(t[i] for t in theirs)
            print(
                f"{model}: {what} {mine:.1f} tok/s beside {peers:.1f}, ratio {statistics.median(pairs):.2f} "
                f"(per round {', '.join(f'{x:.2f}' for x in pairs)})"
            )


if __name__ == "__main__":
    main()
