"""Every test in this folder covers a row of the table of faults (docs/hardening.md). After each, the checks that hold after every row
run."""

import pytest


@pytest.fixture(autouse=True)
def checked(after_every_row):
    pass
