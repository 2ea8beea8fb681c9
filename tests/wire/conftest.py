"""Fixtures that check after each test that the server serves as before: it is alive, writes the same greedy text, and runs nothing."""

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
    """The assertions that follow each row of the table of faults (docs/hardening.md): for the shared server, for those that the test gets
    as fixtures, and for those that it starts and stops itself."""
    monkeypatch.setattr(Server, "before_stop", staticmethod(lambda one: serves_as_before(one, canary)))
    yield
    for one in {id(one): one for one in [server, *request.node.funcargs.values()] if isinstance(one, Server)}.values():
        serves_as_before(one, canary)


# The files that take longest. They begin first, so that none of them is left to one process at the end.
LONGEST = ["test_openapi", "test_packages", "test_agents", "test_white_space", "test_broken_models", "test_http", "test_keys", "test_tools"]


def pytest_collection_modifyitems(items):
    """Sorts the files only: tests of a file keep their order."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONGEST)))
