"""Fixtures that check after each test that the server still works: it is alive, generates the same greedy text, and runs no requests."""

import pytest
from chat_page import browser, open_page  # noqa: F401
from harness import CANARY, Server, serves_as_before


@pytest.fixture(scope="session")
def canary(server):
    return server.text(CANARY)


@pytest.fixture
def survives(server, canary):
    yield
    serves_as_before(server, canary)


@pytest.fixture
def after_every_row(request, monkeypatch, server, canary):
    """Runs the checks that follow every test of a row in the table of faults (docs/hardening.md). They cover the shared server, the servers
    that the test gets as fixtures, and those that it starts and stops itself."""
    monkeypatch.setattr(Server, "before_stop", staticmethod(lambda one: serves_as_before(one, canary)))
    yield
    for one in {id(one): one for one in [server, *request.node.funcargs.values()] if isinstance(one, Server)}.values():
        serves_as_before(one, canary)


# The slowest files. They start first, so that none of them runs alone at the end.
LONGEST = ["test_openapi", "test_packages", "test_agents", "test_white_space", "test_broken_models", "test_http", "test_keys", "test_tools"]


def pytest_collection_modifyitems(items):
    """Sorts the files only. The tests within a file keep their order."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))
