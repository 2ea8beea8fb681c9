#!/usr/bin/env bash
# Builds every target and runs all of them for some seconds, as many side by side as there are cores.
#
#   fuzz/nightly.sh SECONDS
#
# The corpora stay in fuzz/corpus, so that each night goes on from the one before. Exits with 1 if anything was found: the inputs are
# in fuzz/corpus/found.
set -euo pipefail
seconds=${1:?seconds}
cd "$(dirname "${BASH_SOURCE[0]}")"
./build.sh
rm -rf bin && mkdir -p bin seeds corpus
for source in targets/*.rs; do
    ln -sf "../target/x86_64-unknown-linux-gnu/release/$(basename "$source" .rs)" bin/
done
./seeds.sh seeds
FUZZ_SEED=$(date +%j) ./run_all.sh "$seconds" corpus
