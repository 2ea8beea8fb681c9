"""Each of the 87 rows of the table of faults (docs/hardening.md) has a test."""

import ast
import re
from pathlib import Path

from harness import ROOT

ROWS = range(1, 88)
HERE = Path(__file__).resolve().parent
# Rows whose tests are in Rust: the file and the test's name.
IN_RUST = {81: ("src/api/http/tests.rs", "a_handlers_panic_is_an_error_and_not_a_closed_connection")}


def rows_by_test(path: Path) -> dict[str, set[int]]:
    """Maps each test of a file to the rows that its docstring begins with: `Row 53.`, `Rows 77 and 78. …`."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            named = re.match(r"Rows? (\d+)(?: and (\d+))?\.", ast.get_docstring(node) or "")
            found[node.name] = {int(row) for row in named.groups() if row} if named else set()
    return found


def test_every_row_has_a_test():
    found = [rows for path in sorted(HERE.rglob("test_*.py")) for rows in rows_by_test(path).values()]
    without = set(ROWS) - set().union(*found) - set(IN_RUST)
    assert not without, f"rows without a test: {sorted(without)}"


def test_each_test_of_a_row_names_it_in_its_docstring_only():
    for path in sorted((HERE / "rows").glob("test_*.py")):
        of_incidents = path.stem == "test_rows_incidents"
        for name, rows in rows_by_test(path).items():
            assert not re.match(r"test_row_\d", name), f"{name}: a test's name states its claim"
            assert rows or of_incidents or name == "test_the_small_model_itself_loads", f"{path.name}: {name} names no row"


def test_the_tests_in_rust_exist():
    missing = [name for file, name in IN_RUST.values() if not re.search(rf"fn {name}\(", (ROOT / file).read_text())]
    assert not missing, missing


def test_the_page_names_the_tests_of_each_row():
    text = (ROOT / "docs" / "hardening.md").read_text()
    rows = [int(row) for row in re.findall(r"^\| (\d+) \|", text, re.M)]
    assert rows == list(ROWS), "one table row per fault, in order"
    listed = set(re.findall(r"`(test_rows_[a-z]+)`", text))
    assert listed == {path.stem for path in (HERE / "rows").glob("test_*.py")}, "the page names each file of rows/"
