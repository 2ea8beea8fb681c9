#!/usr/bin/env bash
# Builds every target and packs the executables with seeds, dictionaries and `run_all.sh` into one archive, for a machine without Rust.
#
#   fuzz/package.sh ARCHIVE.tar.gz
#
# The machine needs Linux on x86-64 with glibc of this machine's version or newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
archive=$(realpath "${1:?ARCHIVE.tar.gz}")
./build.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/fuzz/{bin,lib,seeds}
cp -r dictionaries run_all.sh "$folder/fuzz/"
./seeds.sh "$folder/fuzz/seeds"
strip -o "$folder/fuzz/bin/all" target/x86_64-unknown-linux-gnu/release/all
for source in targets/*.rs; do
    ln -s all "$folder/fuzz/bin/$(basename "$source" .rs)"
done
ldd "$folder"/fuzz/bin/all | awk '/libstdc|libgcc/ { print $3 }' | xargs -r cp -Lt "$folder/fuzz/lib"
tar -C "$folder" -czf "$archive" fuzz
ls -l "$archive"
