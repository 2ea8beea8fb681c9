#!/usr/bin/env bash
# Runs fuzz targets in parallel from built executables, without Rust. Prints executions, coverage and findings of each target.
#
#   run_all.sh SECONDS OUT [TARGET…]
#
# Takes the executables from ./bin, the seeds from ./seeds and the dictionaries from ./dictionaries next to this file, where `package.sh`
# puts them. Corpora, logs and findings go to OUT. Runs as many processes as the machine has cores, but at least one per target. Exits with
# 1 if anything was found.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:?seconds} out=${2:?folder}
shift 2
targets=("$@")
((${#targets[@]})) || targets=($(ls "$here/seeds"))
cores=${FUZZ_JOBS:-$(nproc)}
# libstdc++ and libgcc are packed for machines without them.
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:malloc_context_size=1:quarantine_size_mb=32} RUST_BACKTRACE=1
mkdir -p "$out/found" "$out/logs"
out=$(cd "$out" && pwd)

# one_process TARGET NUMBER: fuzzes until the time is up. Restarts after a finding, at most ten times.
one_process() {
    local target=$1 number=$2 end=$((SECONDS + seconds)) tries=0 left
    local corpus=$out/corpus/$target log=$out/logs/$target-$number.log dict=()
    mkdir -p "$corpus" "$out/found/$target"
    [[ $target == engine ]] && dict=("-dict=$here/dictionaries/gguf.dict")
    [[ -f $here/dictionaries/$target.dict ]] && dict=("-dict=$here/dictionaries/$target.dict")
    : >"$log"
    while left=$((end - SECONDS)) && ((left > 0 && tries < 10)); do
        "$here/bin/$target" "$corpus" "$here/seeds/$target" "${dict[@]}" -max_total_time="$left" -rss_limit_mb=2560 -malloc_limit_mb=1024 \
            -timeout="${FUZZ_TIMEOUT:-25}" -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$out/found/$target/" \
            -seed=$((number * 7919 + tries + ${FUZZ_SEED:-1})) >>"$log" 2>&1 </dev/null && break
        tries=$((tries + 1))
    done
}

number=0
while ((number < cores || number < ${#targets[@]})); do
    one_process "${targets[number % ${#targets[@]}]}" "$number" &
    number=$((number + 1))
done
wait

sum() { grep -h "$1" "$out"/logs/"$2"-*.log 2>/dev/null | awk '{ total += $NF } END { print total + 0 }'; }
printf '%-16s %10s %14s %9s %9s %6s\n' target processes executions coverage inputs found
for target in "${targets[@]}"; do
    coverage=$(grep -ho 'cov: [0-9]*' "$out"/logs/"$target"-*.log | awk '$2 > most { most = $2 } END { print most + 0 }')
    found=$(find "$out/found/$target" -type f | wc -l)
    printf '%-16s %10s %14s %9s %9s %6s\n' "$target" "$(ls "$out"/logs/"$target"-*.log | wc -l)" \
        "$(sum stat::number_of_executed_units "$target")" "$coverage" "$(find "$out/corpus/$target" -type f | wc -l)" "$found"
done
all=$(find "$out/found" -type f | wc -l)
echo "$all findings, in $out/found"
((all == 0))
