#!/usr/bin/env bash
# Writes the seeds of every target, and earlier findings, to FOLDER/TARGET/. Needs the result of `fuzz/build.sh`.
#
#   fuzz/seeds.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?folder}")
cd "$(dirname "${BASH_SOURCE[0]}")"
target/x86_64-unknown-linux-gnu/release/write_seeds "$folder"
for found in found/*/; do
    [[ -d $found ]] && cp "$found"* "$folder/$(basename "$found")/"
done
true
