"""Fixtures for the wire tests and the client tests."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import BINARY, MODEL, Server, features  # noqa: E402


# Child processes inherit signal dispositions, and a run under nohup or in the background ignores these signals.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def folder() -> Path:
    """The folder of the models in the user's data directory."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "penstock" / "models"


def store() -> dict[Path, int]:
    """The files of the models in the user's data directory, each with its inode. Models made of them do not count."""
    fetched = [path.parent for path in folder().glob("*/manifest.json") if '"stored"' not in path.read_text(errors="replace")]
    return {path: path.stat().st_ino for parent in fetched for path in parent.glob("model.gguf")}


@pytest.fixture(autouse=True)
def keeps_the_store():
    """A test that pulls or removes a model of the user's changes what the tests after it find, for example a whole model in the place of a
    small copy (tests/small_models.py)."""
    before = store()
    yield
    after = store()
    changed = [str(path) for path, inode in before.items() if after.get(path) != inode]
    assert not changed, f"the test replaced or removed {changed}: use a data directory of its own, or the mark `real_models`"


def pytest_sessionstart(session):
    if not session.config.option.collectonly and not BINARY.is_file():
        pytest.exit(f"{BINARY} is missing: tests/run builds it", returncode=3)


def pytest_runtest_setup(item):
    """Skips a test of which the binary lacks a feature."""
    for mark in item.iter_markers("features"):
        if missing := set(mark.args) - features():
            pytest.skip(f"the binary is without {', '.join(sorted(missing))}")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server of the default model, shared by all tests that do not affect other tests."""
    folder = {"STORAGE__FOLDER": str(tmp_path_factory.mktemp("kept"))}
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"} | folder) as running:
        yield running
