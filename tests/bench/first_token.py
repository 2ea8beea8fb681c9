#!/usr/bin/env python3
"""Measures the time from an installation to the first token, for each package in a folder that `tools/package` wrote.

    tests/bench/first_token.py dist                 a table for docs/install.md
    tests/bench/first_token.py dist --rounds 5      the medians of this many rounds (default: 3)
    tests/bench/first_token.py dist --fetch         also measures the model's download once

Each round installs the package into an empty place (tests/installed.py), starts `penstock serve` with SmolLM2 135M, which is already on
disk, asks one question and removes the package. `install` is the time of pip, npm, dpkg or tar. `ready` is the time from the start of
the process to an answer of /ready. `first token` is the time from the request to the first piece of text. A deb needs root.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import MODEL, cli  # noqa: E402
from installed import PLACES, place_for  # noqa: E402


def models_dir() -> Path:
    """The default folder of a user's models, which must hold the default model."""
    shown = cli("show", MODEL, "--json")
    if shown.returncode:
        sys.exit(f"first_token.py: {shown.stderr.strip()}\nFetch the model first: penstock pull {MODEL}")
    return Path(json.loads(shown.stdout)["path"]).parents[1]


def measure(package: Path, models: Path) -> tuple[float, float, float]:
    """Measures the installation, the start and the first token [s]."""
    with tempfile.TemporaryDirectory() as folder, place_for(package, Path(folder) / "place", models) as place:
        start = time.monotonic()
        place.install(package)
        install = time.monotonic() - start
        if hasattr(place, "bring_model"):
            place.bring_model()
        start = time.monotonic()
        with place.serving() as server:
            ready = time.monotonic() - start
            start = time.monotonic()
            first = next(server.pieces())[0] - start
        place.uninstall()
    return install, ready, first


def fetch_time() -> float:
    """Measures the download of the model into an empty folder [s]."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        pulled = cli("pull", MODEL, env={"SERVER__MODELS_DIR": folder}, timeout=600)
        if pulled.returncode:
            sys.exit(f"first_token.py: {pulled.stderr.strip()}")
        return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    packages = [path for end in PLACES for path in sorted(args.dist.glob(f"*.{end}"))]
    if not packages:
        sys.exit(f"first_token.py: {args.dist} has no packages: run tools/package first")
    models = models_dir()
    print("| package | size [MiB] | install [s] | ready [s] | first token [s] | together [s] |\n|---|---|---|---|---|---|")
    for package in packages:
        rounds = [measure(package, models) for _ in range(args.rounds)]
        times = [*map(statistics.median, zip(*rounds)), statistics.median(map(sum, rounds))]
        print(f"| `{package.name}` | {package.stat().st_size / (1 << 20):.1f} | {' | '.join(f'{seconds:.2f}' for seconds in times)} |")
    if args.fetch:
        print(f"The model's download took {fetch_time():.1f} s.")


if __name__ == "__main__":
    main()
