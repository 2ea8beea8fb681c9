"""Fixtures for the wire tests and the client tests."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import BINARY, MODEL, Server  # noqa: E402


# Child processes inherit signal dispositions, and a run under nohup or in the background ignores these signals.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session):
    if not session.config.option.collectonly and not BINARY.is_file():
        pytest.exit(f"{BINARY} is missing: tests/run builds it", returncode=3)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server of the default model, shared by all tests that do not affect other tests."""
    folder = {"STORAGE__FOLDER": str(tmp_path_factory.mktemp("kept"))}
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"} | folder) as running:
        yield running
