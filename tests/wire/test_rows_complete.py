"""Each of the 87 rows of the table of faults (docs/hardening.md) has a test."""

import ast
import re
from pathlib import Path

from harness import ROOT

ROWS = range(1, 88)
HERE = Path(__file__).resolve().parent
# Rows whose tests need other servers than those of `rows/`, or are in Rust: the file, and a pattern of their names.
ELSEWHERE = {
    67: ("tests/wire/test_disconnects.py", "test_row_67_"),
    73: ("tests/wire/test_keys.py", "test_row_73_"),
    74: ("tests/wire/test_keys.py", "test_row_74_|test_a_tenant_that_floods_the_prefix_cache_"),
    76: ("tests/wire/test_faults.py", "test_row_76_"),
    77: ("tests/wire/test_faults.py", "test_row_77_|test_a_fault_that_only_a_new_process_cures"),
    78: ("tests/wire/test_faults.py", "test_row_78_|test_a_fault_that_only_a_new_process_cures"),
    79: ("tests/wire/test_faults.py", "test_row_79_"),
    80: ("tests/wire/test_faults.py", "test_row_80_"),
    81: ("src/api/http/tests.rs", "a_handlers_panic_is_an_error_and_not_a_closed_connection"),
    82: ("tests/wire/test_load.py", "test_row_82_"),
    84: ("tests/wire/test_model_life.py", "test_row_84_|test_requests_of_every_endpoint_race_loads_and_unloads"),
}


def names(path: Path) -> list[str]:
    """The tests of a file."""
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_row_has_a_test():
    found = [name for path in sorted(HERE.rglob("test_*.py")) for name in names(path)]
    of_row = {row: [name for name in found if re.match(rf"test_row_0?{row}_", name)] for row in ROWS}
    without = [row for row in ROWS if not of_row[row] and row not in ELSEWHERE]
    assert not without, f"rows without a test: {without}"


def test_what_is_elsewhere_is_there():
    missing = []
    for row, (file, pattern) in ELSEWHERE.items():
        path = ROOT / file
        if not path.is_file() or not re.search(rf"^\s*(?:async )?(?:def|fn) (?:{pattern})", path.read_text(), re.M):
            missing.append(f"row {row}: {file}: {pattern}")
    assert not missing, missing


def test_the_page_names_the_tests_of_each_row():
    text = (ROOT / "docs" / "hardening.md").read_text()
    rows = [int(row) for row in re.findall(r"^\| (\d+) \|", text, re.M)]
    assert rows == list(ROWS), "a line per row, in order"
    listed = set(re.findall(r"`(test_rows_[a-z]+)`", text))
    assert listed == {path.stem for path in (HERE / "rows").glob("test_*.py")}, "the page names each file of rows/"
