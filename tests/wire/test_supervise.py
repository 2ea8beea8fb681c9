"""`penstock serve --supervise`: a parent process holds the port and restarts the server after a crash."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, open_stream, raw, wait_until

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL}
STREAM = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "stream": True, "ignore_eos": True}


def supervised(**fields) -> Server:
    return Server(CONFIG, args=("--supervise",), **fields)


def children(pid: int) -> list[int]:
    """Lists the living children of a process. Fails if a zombie stays."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue  # the process has just ended
        if int(parent) == pid:
            assert state != "Z" or zombie_goes(int(stat.parent.name)), f"a zombie below {pid}"
            found.append(int(stat.parent.name))
    return found


def zombie_goes(pid: int) -> bool:
    """Waits until a process that has just ended is reaped."""
    wait_until(lambda: not is_alive(pid, but_zombie=False), 2, "the zombie is reaped")
    return True


def is_alive(pid: int, but_zombie: bool = True) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return not (but_zombie and state == "Z")


def child_of(server) -> int:
    found = []
    wait_until(lambda: found.__setitem__(slice(None), children(server.process.pid)) or len(found) == 1, 10, "one child serves")
    return found[0]


def test_a_killed_server_is_restarted_while_clients_wait_at_the_port():
    with supervised() as server:
        expected, first = server.text(), child_of(server)
        stop, refused, replies = threading.Event(), [], []

        def visit():
            """Opens connections in turn while the server dies and restarts."""
            while not stop.is_set():
                try:
                    with socket.create_connection(("127.0.0.1", server.port), timeout=30):
                        pass
                except OSError as error:
                    refused.append(error)
                time.sleep(0.002)

        visitor = threading.Thread(target=visit)
        visitor.start()
        os.kill(first, signal.SIGKILL)
        start = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: server.get("/health"), range(8)))
        accepted = time.monotonic() - start
        back = start + wait_until(lambda: server.get("/ready").status == 200, 60, "the server is ready again")
        stop.set()
        visitor.join()
        assert not refused, "the port stayed open"
        assert [reply.status for reply in replies] == [200] * 8, "the new process served the waiting clients"
        assert server.text() == expected and child_of(server) != first
        print(f"a killed server: the port answered after {accepted:.2f} s, the model was ready after {back - start:.2f} s")
        server.wait_log("SIGKILL")
        server.wait_log("started again in 0.0 s")


def test_a_server_that_crashes_repeatedly_is_given_up():
    server = supervised()
    with pytest.raises(AssertionError, match="ended with 137"), server:
        start, killed = time.monotonic(), set()
        while server.process.poll() is None and time.monotonic() - start < 60:
            for child in children(server.process.pid):
                try:
                    os.kill(child, signal.SIGKILL)
                    killed.add(child)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
    assert server.process.returncode == 137, server.output()
    assert len(killed) == 6, killed
    assert "the server failed 6 times in a row and is not started again: the server was ended by SIGKILL" in server.output()
    assert 7 < time.monotonic() - start < 30, "the waits grow with each restart"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0, "no process holds the port"


def test_a_server_that_cannot_start_is_not_restarted():
    done = cli("serve", "--supervise", "--port", "0", "--model", "no-such-model", timeout=20)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("no-such-model") >= 1 and "started again" not in done.stderr
    with Server(CONFIG) as other:
        done = cli("serve", "--supervise", "--port", str(other.port), timeout=20)
        assert done.returncode == 1 and "is in use" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_server_and_ends_both(how):
    with supervised() as server:
        child = child_of(server)
        stream = open_stream(server, "/v1/completions", STREAM)
        got = stream.recv(1)
        server.process.send_signal(how)
        while piece := stream.recv(65536):
            got += piece
        assert b"data: [DONE]" in got, "the stream completed"
        assert server.process.wait(10) == 0, server.output()
        assert not is_alive(child)


def test_a_second_signal_ends_both_at_once():
    with pytest.raises(AssertionError, match="ended with 130"), supervised() as server:
        child = child_of(server)
        stream = open_stream(server, "/v1/completions", STREAM | {"max_tokens": 4000})
        stream.recv(1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/ready").status == 503, 5, "the server drains")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 130, server.output()
        assert time.monotonic() - start < 2 and not is_alive(child)


def test_the_server_ends_with_its_supervisor():
    server = supervised().__enter__()
    child = child_of(server)
    server.process.kill()
    server.process.wait()
    took = wait_until(lambda: not is_alive(child), 5, "the child has ended")
    print(f"a server without its supervisor ended after {took:.2f} s")


def test_nothing_but_the_supervisor_may_pass_a_socket():
    done = cli("serve", "--supervised=1", timeout=20)
    assert done.returncode == 1 and "supervises" in done.stderr, done.stderr
    done = cli("serve", f"--supervised={os.getpid()}", timeout=20)
    assert done.returncode == 1 and "no listening socket" in done.stderr, done.stderr


def test_child_processes_of_the_server_do_not_inherit_the_socket():
    with supervised() as server:
        child = child_of(server)
        assert os.readlink(f"/proc/{child}/fd/0") == "/dev/null"
        answer = raw(server, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
