"""Fixtures that check after each test that the server serves as before: it is alive, writes the same greedy text, and runs nothing."""

import pytest
from harness import wait_until

CANARY = "Once upon a time"


@pytest.fixture(scope="session")
def canary(server):
    return server.text(CANARY)


@pytest.fixture
def survives(server, canary):
    yield
    assert server.process.poll() is None, server.output()
    assert server.get("/health").status == 200
    assert server.text(CANARY) == canary
    idle = lambda: (
        server.gauge("num_requests_running") == 0 and server.gauge("num_requests_waiting") == 0 and server.gauge("kv_cache_usage_perc") == 0
    )
    wait_until(idle, 5, f"gauges back at rest: {server.metrics()}")
