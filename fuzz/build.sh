#!/usr/bin/env bash
# Builds the fuzz targets, or those that are named. Needs cargo-fuzz (`cargo install cargo-fuzz`) and a C++ compiler.
#
# The project's toolchain is a stable one. Sanitizers and the counters of coverage are unstable options of the same compiler, which
# RUSTC_BOOTSTRAP unlocks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export RUSTC_BOOTSTRAP=1
if (($#)); then
    for target in "$@"; do cargo fuzz build "$target"; done
else
    cargo fuzz build
fi
