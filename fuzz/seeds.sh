#!/usr/bin/env bash
# Writes the seeds of every target, and what fuzzing found before, to FOLDER/TARGET/.
#
#   fuzz/seeds.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?folder}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo run --release --quiet -p penstock-fuzz-bodies --bin write_seeds "$folder"
for found in fuzz/found/*/; do
    [[ -d $found ]] && cp "$found"* "$folder/$(basename "$found")/"
done
true
