#!/usr/bin/env python3
"""Counts the tests that ran and those that were skipped, over all stages of `tests/run`, and names the slowest.

    tests/summary.py RESULTS            prints the counts, each skipped test with its reason, and the slowest tests
    tests/summary.py RESULTS --exact    fails unless the skipped tests are exactly those of tests/skips.txt
    tests/summary.py RESULTS --write    writes tests/skips.txt anew

RESULTS is a folder with the test runners' output: `rust*.log` (from `cargo test`) and `wire.xml`, `clients*.xml`, `node.xml` (JUnit).
If a test ran in one of several runs (with the real models, in another environment of clients), it counts as run.
The cases of a parametrised test are counted separately and listed as one.
"""

import re
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / "tests" / "skips.txt"
HEAD = """\
# Tests that CI skips, each with the reason: `TEST: REASON`. On CI `tests/run` fails unless the skipped tests are exactly these.
# `tests/summary.py .cache/results --write` writes this file anew after a whole run.
"""

SLOWEST = 10
# (state, reason, seconds) by test. If a test ran more than once, the state that is later in this list wins.
STATES = ["skipped", "passed", "failed"]


def from_cargo(text: str):
    """Yields the tests in the output of `cargo test`: (name, state, reason, seconds)."""
    binary = "?"
    for line in text.splitlines():
        if found := re.match(r"\s+Running .*\(.*/(.+)-[0-9a-f]+\)$", line):
            binary = found[1]
        elif found := re.match(r"\s+Doc-tests (\S+)$", line):
            binary = f"{found[1]} (documentation)"
        elif found := re.match(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, (.*?))?(?: <([\d.]+)s>)?$", line):
            state = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}[found[2]]
            yield f"rust/{binary}::{found[1]}", state, found[3] or "no reason given", float(found[4] or 0)


def from_junit(stage: str, path: Path):
    """Yields the tests in a JUnit file of pytest or Node: (name, state, reason, seconds)."""
    for case in xml.parse(path).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2] if stage != "node" else Path(case.get("file", "node")).name.partition(".")[0]
        skipped = case.find("skipped")
        state = (
            "skipped"
            if skipped is not None
            else "failed"
            if case.find("failure") is not None or case.find("error") is not None
            else "passed"
        )
        reason = "" if skipped is None else skipped.get("message") or skipped.text or "no reason given"
        yield f"{stage}/{module}::{case.get('name')}", state, reason, float(case.get("time") or 0)


def collect(folder: Path) -> dict[str, tuple[str, str, float]]:
    """The state of every test, the reason if it was skipped, and its time [s]."""
    tests: dict[str, tuple[str, str, float]] = {}
    for path in sorted(folder.iterdir()):
        stage = re.match(r"[a-z]+", path.name)[0]
        found = from_cargo(path.read_text(errors="replace")) if path.suffix == ".log" else from_junit(stage, path)
        for name, state, reason, seconds in found:
            if name not in tests or STATES.index(state) > STATES.index(tests[name][0]):
                tests[name] = (state, " ".join(reason.split()), seconds)
    if any(name.startswith("clients/") for name in tests):
        # An environment skips the modules whose client it lacks, so check that each module ran in at least one environment.
        for module in sorted(path.stem for path in (ROOT / "tests" / "clients").glob("test_*.py")):
            if not any(name.startswith(f"clients/{module}::") for name in tests):
                tests[f"clients/{module}"] = ("skipped", "no environment has its client", 0.0)
    return tests


def without_case(name: str) -> str:
    """`wire/test_x::test_y` of `wire/test_x::test_y[case]`."""
    return name.partition("[")[0]


def differences(tests: dict[str, tuple[str, str, float]]) -> list[str]:
    """The differences between the skipped tests and the known list, for the stages that ran."""
    lines = [line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    known = {tuple(line.split(": ", 1)) for line in lines}
    stages = {name.partition("/")[0] for name in tests}
    known = {(name, reason) for name, reason in known if name.partition("/")[0] in stages}
    skipped = {(without_case(name), reason) for name, (state, reason, _) in tests.items() if state == "skipped"}
    return [f"skipped, but not in {KNOWN.name}: {name}: {reason}" for name, reason in sorted(skipped - known)] + [
        f"in {KNOWN.name}, but not skipped: {name}: {reason}" for name, reason in sorted(known - skipped)
    ]


def main() -> int:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    tests = collect(folder)
    ran = Counter(name.partition("/")[0] for name, (state, *_) in tests.items() if state != "skipped")
    failed = [name for name, (state, *_) in tests.items() if state == "failed"]
    skipped = Counter((reason, without_case(name)) for name, (state, reason, _) in tests.items() if state == "skipped")
    stages = ", ".join(f"{stage} {count}" for stage, count in sorted(ran.items()))
    print(f"{ran.total()} tests ran ({stages}), {skipped.total()} were skipped:")
    for reason in sorted({reason for reason, _ in skipped}):
        names = {name: count for (why, name), count in sorted(skipped.items()) if why == reason}
        print(f"{sum(names.values()):5}  {reason}")
        for name, count in names.items():
            print(f"       - {name}" + (f" ({count} cases)" if count > 1 else ""))
    print("the slowest tests:")
    for name, (*_, seconds) in sorted(tests.items(), key=lambda test: -test[1][2])[:SLOWEST]:
        print(f"{seconds:7.1f} s  {name}")
    for name in failed:
        print(f"failed: {name}")
    if "--write" in options:
        KNOWN.write_text(HEAD + "".join(sorted(f"{name}: {reason}\n" for reason, name in skipped)))
    differing = differences(tests) if "--exact" in options else []
    for line in differing:
        print(line)
    return 1 if failed or differing or not ran else 0


sys.exit(main())
