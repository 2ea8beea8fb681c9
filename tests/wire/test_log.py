"""If the log cannot be written, lines are lost, and nothing else: the server keeps serving and ends on SIGTERM."""

import os
import signal
import time

import pytest
from harness import MODEL, Server, wait_until

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL}


def lost(server) -> float:
    return server.metrics().get(("penstock_log_lines_lost_total", ()), 0)


def serves_and_ends(server) -> None:
    before = lost(server)
    for _ in range(5):
        assert server.complete(max_tokens=1).status == 200
    wait_until(lambda: lost(server) >= before + 5, 5, "lost lines are counted")
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert time.monotonic() - start < 5


def test_the_server_works_without_a_reader_of_the_log():
    reader, writer = os.pipe()
    with Server(CONFIG, stderr=writer) as server:
        os.close(writer)
        assert server.complete(max_tokens=1).status == 200
        os.close(reader)
        serves_and_ends(server)


def test_the_server_works_with_a_full_disk_for_the_log():
    with open("/dev/full", "w") as full, Server(CONFIG, stderr=full) as server:
        serves_and_ends(server)


def test_the_server_works_with_a_blocked_reader_of_the_log():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    with Server(CONFIG, stderr=writer) as server:
        os.close(writer)
        start = time.monotonic()
        for _ in range(4200):  # more lines than the log's queue holds
            if lost_at_last := (lost(server) > 0):
                break
            assert server.get("/v1/models").status == 200
        assert lost_at_last and time.monotonic() - start < 60
        serves_and_ends(server)
    os.close(reader)


@pytest.mark.parametrize("name", ["stdout", "both"])
def test_an_error_at_the_start_ends_the_process_even_if_nobody_reads_it(name):
    import subprocess

    from harness import BINARY, environment

    reader, writer = os.pipe()
    os.close(reader)
    out = {"stdout": writer, "stderr": subprocess.DEVNULL if name == "stdout" else writer}
    done = subprocess.run([BINARY, "serve", "--port", "0", "--model", "/no/such.gguf"], env=environment(), timeout=20, **out)
    os.close(writer)
    assert done.returncode == 1


def test_sighup_rereads_the_configuration_unless_it_is_ignored():
    with Server(CONFIG) as server:
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the configuration was read again" in server.output(), 10, "the configuration is read again")
        assert server.complete(max_tokens=1).status == 200
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does, and the server inherits it
    try:
        with Server(CONFIG) as server:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert server.complete(max_tokens=1).status == 200 and "read again" not in server.output()
    finally:
        signal.signal(signal.SIGHUP, before)
