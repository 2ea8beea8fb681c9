#!/usr/bin/env bash
# Measures models with the shapes of real ones. Writes each model to a folder, runs `penstock bench` on it, removes it, and prints a table.
#
#     tests/bench/shapes.sh FOLDER [SHAPE…] [--limit SECONDS] [--penstock PATH] [--backend cuda] [--prompt 512] [--gen 64]
#                           [--batch 1,8,64] [--repeat 3] [--layers N] [--vocab N]
#
# FOLDER should be in a tmpfs with room for the largest shape (glm-4.5-air needs 70 GB). Without a SHAPE, all shapes are measured. Each
# shape gets `--limit` seconds [default: 300] to be written, loaded and measured. Python needs numpy. PYTHON=.venv/bin/python names another
# Python. Exits with status 1 if a shape could not be measured, and its row says why.
set -euo pipefail

here=$(dirname "$0")
python=${PYTHON:-python3}
penstock=target/release/penstock
limit=300
declare -A bench=([--backend]=cuda [--prompt]=512 [--gen]=64 [--batch]=1,8,64 [--repeat]=3)
model=()
names=()

while (($#)); do
    case $1 in
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
    -*) (($# > 1)) || { echo "$1 needs a value" >&2 && exit 2; } ;;&
    --limit) limit=$2 && shift 2 ;;
    --penstock) penstock=$2 && shift 2 ;;
    --backend | --prompt | --gen | --batch | --repeat) bench[$1]=$2 && shift 2 ;;
    --layers | --vocab) model+=("$1" "$2") && shift 2 ;;
    -*) echo "unknown option $1" >&2 && exit 2 ;;
    *) names+=("$1") && shift ;;
    esac
done
((${#names[@]})) || { echo "a folder is missing: see $0 --help" >&2 && exit 2; }
[[ -x $penstock ]] || { echo "$penstock is not a program: name one with --penstock" >&2 && exit 2; }
folder=${names[0]}
mkdir -p "$folder"
work=$(mktemp -d "$folder/shapes.XXXXXX")
trap 'rm -rf "$work"' EXIT
shapes=("${names[@]:1}")
((${#shapes[@]})) || mapfile -t shapes < <("$python" "$here/random_model.py" --list | cut -d: -f1)
options=()
for option in "${!bench[@]}"; do
    options+=("$option" "${bench[$option]}")
done

# Prints the seconds left of the shape's limit, at least 1, because 0 would mean no limit.
left() {
    local left=$((limit - SECONDS))
    echo $((left > 0 ? left : 1))
}

measure() {
    timeout "$limit" "$python" "$here/random_model.py" "$work/model.gguf" --shape "$1" "${model[@]}" >&2 &&
        timeout "$(left)" "$penstock" bench --model "$work/model.gguf" "${options[@]}" --json >"$work/result.json" &&
        "$python" "$here/shapes_row.py" "$1" "$work/result.json" "${model[@]}"
}

failed=0
"$python" "$here/shapes_row.py" --head "${bench[--batch]}"
for shape in "${shapes[@]}"; do
    SECONDS=0
    status=0
    measure "$shape" || status=$?
    rm -f "$work/model.gguf"
    if ((status == 124)); then
        echo "| $shape | not measured within $limit s |"
    elif ((status)); then
        echo "| $shape | ended with status $status |"
    fi
    ((status == 0)) || failed=1
done
exit $failed
