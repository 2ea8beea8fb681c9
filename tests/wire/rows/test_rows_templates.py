"""Rows 17 to 26: long and unusual texts, and chat templates that are broken, endless or use too much memory."""

import time
from pathlib import Path

import pytest
from gguf_bytes import small
from harness import MODEL, Server
from test_memory import Peak
from test_templates import HOSTILE, render, templates  # noqa: F401

CODER = "qwen2.5-coder:0.5b"
MANY = 50_000
LOOPS = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}"
# By row: chat templates from model files, each with a part of the error message.
SOURCES = {
    20: {"{%if%}": "line 1", "{{ " + "(" * MANY + " }}": "expected at most", "{{ " + "(" * 4000 + " }}": "line 1"},
    21: {
        "{{ 1" + "+1" * MANY + " }}": "expected at most",
        "{{ 1" + "|f" * MANY + " }}": "expected at most",
        "{{ a" + ".a" * MANY + " }}": "expected at most",
        "{% if a %}" + "{%elif a%}" * MANY + "{% endif %}": "expected at most",
    },
    22: {
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "calls itself too often",
        "{% macro m() %}{{ n() }}{% endmacro %}{% macro n() %}{{ m() }}{% endmacro %}{{ m() }}": "calls itself too often",
    },
    23: {"{% for i in range(10**9) %}{% endfor %}": "a range has 1000000000 items", LOOPS: "steps"},
    24: HOSTILE,
}


def cpu_seconds(server) -> float:
    """The server's processor time so far [s]. Other load on the machine does not change it."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A server of models whose files contain these templates, beside working models."""
    folder, names, entries = tmp_path_factory.mktemp("hostile"), [MODEL, CODER], []
    for row, sources in SOURCES.items():
        for index, source in enumerate(sources.values() if sources is HOSTILE else sources):
            name = f"row-{row}-{index}"
            (folder / f"{name}.gguf").write_bytes(small().add("tokenizer.chat_template", source).build())
            entries.append(f'[[models]]\nid = "{name}"\nsource = {{ type = "file", path = "{folder / name}.gguf" }}\n')
            names.append(name)
    config = folder / "config.toml"
    config.write_text("[server]\ndefault_models = [" + ", ".join(f'"{name}"' for name in names) + "]\n" + "\n".join(entries))
    with Server({"ENGINE__KV_TOKENS": "4096", "ENGINE__BACKEND": "cpu"}, ("--config", str(config))) as server:
        server.folder = folder
        yield server


def fails(server, tmp_path, row: int) -> float:
    """Chats with each model of the row and expects an error: 400, or 503 for rows whose templates fail to load. Each model gets three
    tries. Returns the largest of the models' shortest processor times [s]."""
    times, is_loaded = [], row > 21
    for index, (source, words) in enumerate(SOURCES[row].items()):
        took = []
        for _ in range(3):
            start = cpu_seconds(server)
            reply = server.chat("Hi", model=f"row-{row}-{index}")
            took.append(cpu_seconds(server) - start)
            if is_loaded:
                assert (reply.status, reply.error["param"]) == (400, "messages") and words in reply.error["message"], reply.body
            else:
                assert (reply.status, reply.error["code"]) == (503, "model_load_failed"), (source[:40], reply.body)
                assert f"row-{row}-{index}" in reply.error["message"], reply.body
        code, text, _ = render(tmp_path, source)
        assert code == 1 and "chat template: " in text and words in text and "panicked" not in text, (source[:40], code, text)
        times.append(min(took))
    assert "panicked" not in Path(server.log.name).read_text()
    return max(times)


def test_long_texts_take_at_most_a_second_per_megabyte(hostile):
    """Row 17."""
    texts = {"a": "a" * 1_000_000, "_": "_" * 50_000, "CJK": "".join(chr(0x4E00 + i * 7919 % 20000) for i in range(1_000_000))}
    for model in (MODEL, CODER):
        for name, text in texts.items():
            before = cpu_seconds(hostile)
            with Peak(hostile) as seen:
                reply = hostile.post("/tokenize", {"model": model, "prompt": text}, timeout=60)
            took, megabytes = cpu_seconds(hostile) - before, len(text.encode()) / 1e6
            assert reply.status == 200 and reply.json()["count"] > 100, reply.body[:200]
            print(f"{model}, {megabytes:.2f} MB of {name}: {took:.2f} s of processor time, slowest probe {seen.slowest * 1000:.0f} ms")
            assert took < 0.2 + megabytes and seen.slowest < 2, (model, name, took, seen.slowest)


def test_every_character_comes_back_from_its_tokens(hostile):
    """Row 18."""
    points = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 16)]
    for start in range(0, len(points), 16_000):
        text = "".join(map(chr, points[start : start + 16_000]))
        tokens = hostile.post("/tokenize", {"model": CODER, "prompt": text}).json()["tokens"]
        reply = hostile.post("/detokenize", {"model": CODER, "tokens": tokens})
        assert reply.status == 200, reply.body[:200]
        assert reply.json()["prompt"] == text, hex(points[start])


def test_special_tokens_in_the_text_of_a_user_stay_text(server):
    """Row 19. A user's `<|im_end|>` becomes about seven ordinary tokens, and never the token that ends a turn."""
    plain = server.chat("a b", max_tokens=1).json()["usage"]["prompt_tokens"]
    special = server.chat("a <|im_end|> b", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert special - plain >= 4


def test_a_broken_template_is_an_error_of_the_template(hostile, tmp_path):
    """Row 20."""
    fails(hostile, tmp_path, 20)


def test_long_chains_are_refused_by_the_cap_on_the_source(hostile, tmp_path):
    """Row 21."""
    fails(hostile, tmp_path, 21)


def test_macros_that_call_themselves_are_an_error_of_the_template(hostile, tmp_path):
    """Row 22."""
    fails(hostile, tmp_path, 22)


def test_endless_loops_are_out_of_fuel_in_100_ms(hostile, tmp_path):
    """Row 23."""
    longest = fails(hostile, tmp_path, 23)
    print(f"a request with an endless loop takes {longest * 1000:.0f} ms of the processor")
    assert longest < 0.1


def test_hungry_templates_end_in_bounded_memory(hostile, tmp_path):
    """Row 24."""
    for index in range(len(HOSTILE)):
        assert hostile.complete("ab", model=f"row-24-{index}", max_tokens=1).status == 200, "the model is loaded before memory is measured"
    for index, name in enumerate(HOSTILE):
        with Peak(hostile) as seen:
            assert hostile.chat("Hi", model=f"row-24-{index}").status == 400
        print(f"{name}: {seen.peak / (1 << 20):.1f} MiB at most")
        assert seen.peak <= 64 << 20 and seen.slowest < 2, (name, seen.peak >> 20, seen.slowest)
    code, text, plain = render(tmp_path, "{{ messages[0].content }}")
    assert code == 0, text
    for name, template in HOSTILE.items():
        start = time.monotonic()
        code, text, memory = render(tmp_path, template)
        assert code == 1 and "chat template: " in text and "panicked" not in text, (name, code, text)
        assert memory - plain <= 64 << 20, (name, (memory - plain) >> 20, text)
        assert time.monotonic() - start < 20, name


def test_an_exception_of_a_template_is_in_the_error(templates):  # noqa: F811
    """Row 25."""
    reply = templates.chat("Tell me about the parrot.", model="strict")
    assert reply.status == 400, reply.body
    assert reply.error["param"] == "messages" and "this model never speaks of parrots" in reply.error["message"]
    assert templates.chat("Tell me about the dog.", model="strict").status == 200
    assert templates.chat("Tell me about the parrot.", model=MODEL).status == 200


OWN = "messages tools add_generation_prompt bos_token eos_token raise_exception strftime_now namespace range pen__add".split()


def test_a_request_brings_no_template_and_overrides_nothing(server):
    """Row 26."""
    def refused(fields: dict, param: str) -> None:
        reply = server.chat("Hi", **fields)
        assert reply.status == 400 and reply.error["param"] == param, (fields, reply.body)

    refused({"chat_template": "{{ messages }}"}, "chat_template")
    for name in OWN:
        refused({"chat_template_kwargs": {"a": 1, name: []}}, f"chat_template_kwargs.{name}")
    refused({"chat_template_kwargs": 5}, "chat_template_kwargs")
