#!/usr/bin/env bash
# Builds all fuzz targets, or those named as arguments. Needs cargo-fuzz (`cargo install cargo-fuzz`) and a C++ compiler.
#
# The project's toolchain is stable. Sanitizers and coverage counters are unstable options of the same compiler, which RUSTC_BOOTSTRAP
# unlocks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export RUSTC_BOOTSTRAP=1
if (($#)); then
    for target in "$@"; do cargo fuzz build "$target"; done
else
    cargo fuzz build
fi
