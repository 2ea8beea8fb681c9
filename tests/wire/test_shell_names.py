"""Bash completes names of models by the script of `penstock completions`."""

import subprocess

import pytest
from harness import BINARY, MODEL, cli, environment

# Puts the words of a command line where Readline puts them: a colon ends a word and is one of its own. Prints the completions.
COMPLETE = r"""
source "$1"
COMP_LINE="$2" COMP_POINT=${#2}
COMP_WORDS=($(sed 's/[:=]/ & /g' <<<"$2"))
[[ $2 == *[[:space:]] || $2 == *: ]] && COMP_WORDS+=("")
COMP_WORDS[0]="$BINARY"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_penstock_and_models "$BINARY" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The completions of a line in bash, without options."""
    script = tmp_path_factory.mktemp("completions") / "penstock.bash"
    script.write_text(cli("completions", "bash").stdout)

    def run(line):
        command = ["bash", "-c", COMPLETE, "bash", script, line]
        done = subprocess.run(command, env=environment({}) | {"BINARY": str(BINARY)}, capture_output=True, text=True, timeout=60)
        assert done.stderr == "", done.stderr
        return [word for word in done.stdout.split() if not word.startswith("-")]

    return run


def test_names_are_listed_for_scripts():
    names = cli("list", "--names").stdout.split()
    on_disk = cli("list", "--names", "--on-disk").stdout.split()
    assert MODEL in on_disk and "qwen3:8b" in names and len(names) == len(set(names))
    assert names[: len(on_disk)] == on_disk, "what is on disk comes first"
    assert cli("list", "--names", "--json").returncode == 2


def test_bash_completes_models(complete):
    names = cli("list", "--names").stdout.split()
    for line in ("penstock run ", "penstock show ", "penstock run --plain ", "penstock --config x.toml pull a ", "penstock serve --model "):
        assert complete(line) == names, line
    small = [name for name in names if name.startswith("smol")]
    assert complete("penstock pull smol") == complete("penstock serve --model smol") == small and MODEL in small
    assert complete("penstock serve --port 80 --model=smol") == small
    after_colon = [name.removeprefix("smollm2:") for name in names if name.startswith("smollm2:13")]
    assert complete("penstock run smollm2:13") == after_colon == ["135m"]
    assert set(complete("penstock run smollm2:")) == {name.removeprefix("smollm2:") for name in names if name.startswith("smollm2:")}


def test_bash_leaves_other_words_alone(complete):
    assert complete("penstock pu") == ["pull"]
    assert "smollm2:135m" not in complete("penstock serve ") + complete("penstock run --temperature ") + complete("penstock list ")
    assert complete("penstock run nothing-like-it") == []
