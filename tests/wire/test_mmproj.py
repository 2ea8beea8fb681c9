"""Picture encoders beside models: fetched from a repository, found beside a file, named, shown, counted and removed."""

import json
import shutil

import pytest
from harness import Server, cli
from hub import REPOSITORY, Hub
from tiny_vision import write_encoder, write_language

CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
NAME = f"hf:{REPOSITORY}:Q8_0"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A language model, its encoder, and another family's."""
    folder = tmp_path_factory.mktemp("vision")
    write_language(folder / "m.gguf", metadata={"tokenizer.chat_template": CHAT})
    write_encoder(folder / "gemma3.bin")
    write_encoder(folder / "qwen2vl.bin", "qwen2vl")
    return folder


@pytest.fixture
def own(files, tmp_path):
    """A folder with the language model alone."""
    shutil.copy(files / "m.gguf", tmp_path / "m.gguf")
    return tmp_path


def settings(folder, **more) -> dict:
    return {"SERVER__MODELS_DIR": str(folder / "store"), "SERVER__DEFAULT_MODELS": "", "ENGINE__THREADS": "1", **more}


def shown(name, env) -> dict:
    done = cli("show", name, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def abilities(server, model: str) -> list[str]:
    return server.post("/api/show", {"model": model}).json()["capabilities"]


def test_a_repository_s_mmproj_comes_and_goes_with_its_model(files, tmp_path, monkeypatch):
    weights, encoder = (files / "m.gguf").read_bytes(), (files / "gemma3.bin").read_bytes()
    hub = Hub({"tiny-Q8_0.gguf": weights, "mmproj-tiny-F32.gguf": b"x", "mmproj-tiny-F16.gguf": encoder, "tiny-lora.gguf": b"y"})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    env = settings(tmp_path)
    try:
        done = cli("pull", NAME, env=env)
        assert done.returncode == 0 and f"size {len(weights) + len(encoder)} bytes" in done.stdout, done.stdout + done.stderr
        fetched = [path.rsplit("/", 1)[-1] for path in hub.asked if "/resolve/" in path]
        assert fetched == ["tiny-Q8_0.gguf", "mmproj-tiny-F16.gguf"], "the preferred type alone"
        assert "is already on disk" in cli("pull", NAME, env=env).stdout
        pictures = shown(NAME, env)["pictures"]
        assert (pictures["family"], pictures["most_rows"], pictures["size"]) == ("gemma3", 16, len(encoder))
        [path] = (tmp_path / "store").rglob("mmproj-model.gguf")
        assert pictures["path"] == str(path) and path.read_bytes() == encoder
        text = cli("show", NAME, env=env).stdout
        assert "pictures" in text and f"gemma3, 16 rows per picture at most, {path}" in text
        with Server(settings(tmp_path, SERVER__DEFAULT_MODELS=NAME)) as server:
            assert "vision" in abilities(server, NAME)
            assert f"pictures are read by {path} (gemma3)" in server.output()
            listed = [model["id"] for model in server.get("/v1/models").json()["data"]]
            assert listed == [NAME], "an encoder is no model"
        assert f"{NAME} removed" in cli("rm", NAME, env=env).stdout
        assert not list((tmp_path / "store").rglob("*.gguf"))
    finally:
        hub.stop()


def test_memory_counts_the_encoder(files, own):
    env = settings(own)
    path = own / "m.gguf"
    before = shown(path, env)
    assert before["pictures"] is None
    shutil.copy(files / "gemma3.bin", own / "mmproj-m.gguf")
    after = shown(path, env)
    [one], [other] = ([device for device in shown["memory"]["devices"] if device["backend"] == "cpu"] for shown in (before, after))
    assert other["needed"] - one["needed"] == (own / "mmproj-m.gguf").stat().st_size
    config = own / "models.toml"
    config.write_text(f'[[models]]\nid = "eyes"\nsource = {{ type = "file", path = "{path}" }}\n')

    def size() -> int:
        models = json.loads(cli("doctor", "--json", "--config", config, env=env).stdout)["models"]
        return next(model["size"] for model in models if model["id"] == "eyes")

    both = size()
    (own / "mmproj-m.gguf").unlink()
    assert both - size() == (files / "gemma3.bin").stat().st_size

    def weights(folder) -> int:
        with Server(settings(own), ("--model", str(folder / "m.gguf"))) as server:
            return server.get("/admin/models").json()["data"][0]["bytes"]["weights"]

    alone = weights(own)
    shutil.copy(files / "gemma3.bin", own / "mmproj-m.gguf")
    assert weights(own) - alone == (files / "gemma3.bin").stat().st_size


def test_a_file_of_another_model_is_left_out_beside_and_refused_by_name(files, own):
    env, path, wrong = settings(own), own / "m.gguf", own / "mmproj-m.gguf"
    shutil.copy(files / "qwen2vl.bin", wrong)
    reason = "it encodes pictures for models of the architecture qwen2vl (qwen2vl_merger), and the model is gemma3"
    assert reason in cli("show", path, env=env).stdout
    with Server(env, ("--model", str(path))) as server:
        assert "vision" not in abilities(server, "m")
        assert reason in server.output()
    done = cli("serve", "--model", path, "--mmproj", wrong, "--port", "0", env=env)
    assert done.returncode == 1 and f"{wrong}: {reason}: take the mmproj of this model" in done.stderr, done.stderr
    done = cli("run", path, "hi", "--mmproj", own / "gone.gguf", env=env)
    assert done.returncode == 1 and "gone.gguf: " in done.stderr, done.stderr


def test_the_flag_names_an_encoder_or_none(files, own):
    env, path = settings(own), own / "m.gguf"
    shutil.copy(files / "gemma3.bin", own / "elsewhere.bin")
    with Server(env, ("--model", str(path), "--mmproj", str(own / "elsewhere.bin"))) as server:
        assert "vision" in abilities(server, "m")
    shutil.copy(files / "gemma3.bin", own / "mmproj-f16.gguf")
    with Server(env, ("--model", str(path), "--mmproj", "none")) as server:
        assert "vision" not in abilities(server, "m")
        assert "pictures are read" not in server.output()
    done = cli("serve", "--model", "gemma3:4b", "--mmproj", "none", env=env)
    assert done.returncode != 0 and "set `mmproj` in its entry" in done.stderr, done.stderr
    config = own / "c.toml"
    config.write_text('[[models]]\nid = "eyes"\nsource = { type = "file", path = "m.gguf" }\nmmproj = "hf:o/r/p.gguf"\n')
    done = cli("serve", "--config", config, env=env)
    assert done.returncode != 0 and "`eyes`" in done.stderr and "a file of your own" in done.stderr, done.stderr


def test_several_that_fit_are_none_until_one_is_named(files, own):
    env, path = settings(own), own / "m.gguf"
    for name in ("mmproj-f16.gguf", "mmproj-f32.gguf"):
        shutil.copy(files / "gemma3.bin", own / name)
    with Server(env, ("--model", str(path))) as server:
        assert "vision" not in abilities(server, "m")
        assert "2 picture encoders beside the model fit it (mmproj-f16.gguf, mmproj-f32.gguf): name one with `mmproj`" in server.output()
    config = own / "c.toml"
    entry = f'id = "eyes"\nsource = {{ type = "file", path = "{path}" }}\nmmproj = "{own}/mmproj-f32.gguf"\n'
    config.write_text(f'[[models]]\n{entry}[[models]]\nid = "more"\nof = "eyes"\n')
    with Server(settings(own, SERVER__DEFAULT_MODELS="eyes"), ("--config", str(config))) as server:
        assert "vision" in abilities(server, "eyes") and "vision" in abilities(server, "more")
        made = server.post("/api/create", {"model": "third", "from": "eyes", "system": "s", "stream": False})
        assert made.status == 200 and "vision" in abilities(server, "third"), made.body
