"""Every test in this folder is a row of the table of faults, and is followed by the assertions that hold after every row."""

import pytest


@pytest.fixture(autouse=True)
def checked(after_every_row):
    pass
