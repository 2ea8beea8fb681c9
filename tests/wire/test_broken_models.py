"""Models with weights that are not finite, and files that change while they are mapped: one model fails with an error, the others keep
working."""

import json
import shutil
from pathlib import Path

import pytest
from harness import MODEL, Server, cli, wait_until

TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def original() -> Path:
    return Path(json.loads(cli("show", MODEL, "--json").stdout)["path"])


def serve(folder: Path, names: list[str], *others: str) -> Server:
    """Serves the files `folder/NAME.gguf` and further models by name. The first one is loaded at start."""
    entries = [f'[[models]]\nid = "{name}"\nsource = {{ type = "file", path = "{folder / name}.gguf" }}\n' for name in names]
    config = folder / "config.toml"
    config.write_text(f"[server]\ndefault_models = {json.dumps([*names, *others])}\n" + "\n".join(entries))
    return Server({"ENGINE__BACKEND": "cpu"}, ("--config", str(config)))


@pytest.mark.parametrize("tensor", ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight"])
def test_weights_that_are_not_finite_are_an_error_and_no_text(tmp_path, original, tensor):
    shutil.copy(original, tmp_path / "broken.gguf")
    listed = json.loads(cli("inspect", tmp_path / "broken.gguf", "--json").stdout)["tensors"]
    offset = next(entry["offset"] for entry in listed if entry["name"] == tensor)
    with open(tmp_path / "broken.gguf", "r+b") as file:
        file.seek(offset)
        file.write(b"\x00\x7e")  # the scale of its first block, in float16
    with serve(tmp_path, ["broken"]) as server:
        for stream in (False, True):
            reply = server.complete(TEXT, model="broken", max_tokens=8, stream=stream)
            assert b"not finite" in reply.body, reply.body
            assert stream or reply.status == 500 and reply.error["type"] == "server_error"
        assert server.get("/health").status == 200


def anonymous_mib(server) -> float:
    """Resident memory that does not belong to a file [MiB]."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


@pytest.mark.real_models
def test_a_model_that_is_gone_leaves_no_memory_behind(tmp_path, original, monkeypatch):
    # Makes the allocator return freed pages at once rather than at its next use, so that the test measures only memory in use.
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "0")
    for name in ("stays", "gone"):
        shutil.copy(original, tmp_path / f"{name}.gguf")
    with serve(tmp_path, ["stays", "gone"]) as server:
        many = lambda name: server.complete(["some words of a prompt " * 112] * 20, model=name, max_tokens=8, n=2).status
        assert [many("stays") for _ in range(3)] == [200] * 3
        without, with_it = [anonymous_mib(server)], []
        for _ in range(3):
            wait_until(lambda: server.complete(TEXT, model="gone", max_tokens=1).status == 200, 60, "the model works, again")
            assert many("gone") == 200
            held = anonymous_mib(server)
            with_it.append(held)
            with open(tmp_path / "gone.gguf", "r+b") as file:
                file.truncate(1_000_000)
            assert [server.complete(TEXT, model="gone").status >= 500 for _ in range(2)] == [True, True]
            # The first unload may leave tables for metrics and names behind, but further ones add nothing.
            most = without[1] + 8 if len(without) > 1 else without[0] + 16
            assert held > most + 40
            wait_until(lambda: anonymous_mib(server) < most, 20, f"the memory of the model is given back: {held} MiB, {without}")
            without.append(anonymous_mib(server))
            shutil.copy(original, tmp_path / "new.gguf")
            (tmp_path / "new.gguf").rename(tmp_path / "gone.gguf")
        print("MiB without the model:", without, "with it:", with_it)
        # A reloaded model uses as much memory as before. Its cache covers what requests have used.
        assert max(with_it) < min(with_it) + 40
