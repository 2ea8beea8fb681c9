#!/usr/bin/env bash
# Builds every target and runs all of them for some seconds, as many at once as there are cores.
#
#   fuzz/nightly.sh SECONDS
#
# The corpora are kept in fuzz/target/nightly/out, so each night continues from the previous one. Exits with 1 if anything was found. The
# findings are in fuzz/target/nightly/out/found.
set -euo pipefail
seconds=${1:?seconds}
cd "$(dirname "${BASH_SOURCE[0]}")"
./build.sh
run=target/nightly
mkdir -p "$run"/{bin,seeds}
for source in targets/*.rs; do
    ln -sfn "$PWD/target/x86_64-unknown-linux-gnu/release/$(basename "$source" .rs)" "$run/bin/"
done
./seeds.sh "$run/seeds"
cp -r dictionaries run_all.sh "$run/"
FUZZ_SEED=$(date +%j) "$run/run_all.sh" "$seconds" "$run/out"
