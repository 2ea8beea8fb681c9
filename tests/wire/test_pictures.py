"""Pictures at every door, compared with a reference that shares no line with ours (`tests/golden/make_vision.py`)."""

import base64
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Server
from tiny_vision import TEMPLATE, entry, families, picture, write_encoder, write_language

# Pictures of these are cut as their models' own processors do, and the reference's were cut by another program; Gemma 4's small models
# are causal, and the reference's is not.
OTHERWISE = {"llava16", "llama4", "minicpmv", "gemma4"}
SAME = sorted(families().keys() - OTHERWISE)
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
TEXT_ONLY = "blind"
IMAGE = picture(112, 112)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "chat.jinja").write_text(TEMPLATE)
    ids = [f"tiny-{name}" for name in sorted(families())] + [TEXT_ONLY]
    config = f"[server]\ndefault_models = {json.dumps(ids)}\n"
    for name in sorted(families()):
        write_language(folder / f"{name}.gguf", name)
        write_encoder(folder / f"{name}-mmproj.bin", name)
        config += entry(f"tiny-{name}", folder / f"{name}.gguf", folder) + f'mmproj = "{folder}/{name}-mmproj.bin"\n'
    config += entry(TEXT_ONLY, folder / "gemma3.gguf", folder) + 'mmproj = "none"\n'
    (folder / "config.toml").write_text(config)
    with Server({"ENGINE__BACKEND": "cpu", "ENGINE__THREADS": "1"}, ("--config", str(folder / "config.toml"))) as server:
        yield server


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def part(data: bytes = IMAGE) -> dict:
    return {"type": "image_url", "image_url": {"url": url(data)}}


def said(text: str) -> dict:
    return {"type": "text", "text": text}


def ask(server, family: str, parts: list, **more):
    body = {"model": f"tiny-{family}", "messages": [{"role": "user", "content": parts}], **GREEDY, **more}
    return server.post("/v1/chat/completions", body)


def answer(server, family: str, parts: list, **more) -> dict:
    reply = ask(server, family, parts, **more)
    assert reply.status == 200, reply.body
    return reply.json()


def parts_of(case: dict) -> list:
    texts = case["prompt"].split("<__media__>")
    parts = [said(texts[0])] if texts[0] else []
    for size, text in zip(case["pictures"], texts[1:]):
        parts.append(part(picture(*size)))
        parts += [said(text)] if text else []
    return parts


def encoded(server) -> dict:
    lines = server.get("/metrics").body.decode().splitlines()
    name = "penstock_picture_encode_seconds_count{model_name="
    return {line.split('"')[1]: int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)}


@pytest.mark.parametrize("family", SAME)
def test_answers_are_the_reference_s(server, family):
    for case in families()[family]["cases"]:
        parts, due = parts_of(case), case["expected"]
        first = answer(server, family, parts, logprobs=True, return_tokens_as_token_ids=True)
        ids = [int(token["token"].removeprefix("token_id:")) for token in first["choices"][0]["logprobs"]["content"]]
        # The reference of a model without an encoder has rows only.
        assert ids == [id for id, _, _ in due["greedy"]] or family == "gemma4uv"
        rows = sum(chunk["rows"] if "rows" in chunk else len(chunk["tokens"]) for chunk in due["chunks"])
        assert first["usage"]["prompt_tokens"] == rows, "rows of pictures count"
        before = encoded(server)
        again = answer(server, family, parts, logprobs=True, return_tokens_as_token_ids=True)
        assert again["choices"] == first["choices"] and encoded(server) == before, "the same picture is not encoded again"


@pytest.mark.parametrize("family", sorted(OTHERWISE))
def test_other_families_answer_and_count(server, family):
    parts = [said("See "), part(), said(" What is it?")]
    one = answer(server, family, parts)
    assert one["usage"]["completion_tokens"] == 8
    assert answer(server, family, parts)["choices"] == one["choices"]


def test_a_prefix_that_ends_behind_a_picture_is_found_again(server):
    parts = [part(), said("What is it? " * 4)]
    answer(server, "qwen2vl", parts)
    usage = answer(server, "qwen2vl", [*parts, said("And where?")])["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 32, usage
    other = answer(server, "qwen2vl", [part(picture(113, 112)), *parts[1:]])["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] == 0, "another picture of the same length"


def test_all_doors_give_the_same_answer(server):
    model, question = "tiny-gemma3", "What is it?"
    data, limit = base64.b64encode(IMAGE).decode(), {"temperature": 0, "num_predict": 8}
    chat = answer(server, "gemma3", [part(), said(question)], ignore_eos=False)
    due = chat["choices"][0]["message"]["content"]
    content = [{"type": "input_image", "image_url": url(IMAGE), "detail": "high"}, {"type": "input_text", "text": question}]
    asked = {"model": model, "input": [{"role": "user", "content": content}]}
    done = server.post("/v1/responses", asked | {"temperature": 0, "max_output_tokens": 16}).json()
    assert done["output"][0]["content"][0]["text"].startswith(due)
    assert server.post("/v1/responses/input_tokens", asked).json()["input_tokens"] == chat["usage"]["prompt_tokens"]
    source = {"type": "base64", "media_type": "image/jpeg", "data": data}  # of another type than the bytes
    messages = {"model": model, "messages": [{"role": "user", "content": [{"type": "image", "source": source}, said(question)]}]}
    done = server.post("/v1/messages", messages | {"temperature": 0, "max_tokens": 8}).json()
    assert done["content"][0]["text"] == due and done["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    counted = server.post("/v1/messages/count_tokens", messages).json()
    assert counted["input_tokens"] == chat["usage"]["prompt_tokens"]
    body = {"model": model, "messages": [{"role": "user", "content": question, "images": [data]}], "stream": False, "options": limit}
    assert server.post("/api/chat", body).json()["message"]["content"] == due
    body = {"model": model, "prompt": question, "images": [url(IMAGE)], "stream": False, "options": limit}
    done = server.post("/api/generate", body).json()
    assert done["response"] == due and done["prompt_eval_count"] == chat["usage"]["prompt_tokens"] and "context" not in done
    chat_body = {"model": model, "messages": [{"role": "user", "content": [part(), said(question)]}]}
    tokens = server.post("/tokenize", chat_body).json()
    assert tokens["count"] == chat["usage"]["prompt_tokens"] and len(tokens["tokens"]) == tokens["count"] - 16
    assert server.post("/apply-template", chat_body).json()["prompt"] == f"<__media__>{question}"


def test_lists_say_which_models_read_pictures(server):
    listed = {model["id"]: model["input_modalities"] for model in server.get("/v1/models").json()["data"]}
    for model, sees in (("tiny-gemma3", True), (TEXT_ONLY, False)):
        assert listed[model] == (["text", "image"] if sees else ["text"])
        assert server.get(f"/props?model={model}").json()["modalities"]["vision"] == sees
        assert ("vision" in server.post("/api/show", {"model": model}).json()["capabilities"]) == sees


def test_results_of_tools_may_hold_pictures(server):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [{"role": "user", "content": "look"}, {"role": "assistant", "tool_calls": [call]}]
    body = lambda model: {
        "model": model, "messages": [*history, {"role": "tool", "tool_call_id": "c", "content": [said("seen:"), part()]}], **GREEDY
    }  # fmt: skip
    sees, blind = (server.post("/v1/chat/completions", body(model)) for model in ("tiny-gemma3", TEXT_ONLY))
    assert sees.status == blind.status == 200, sees.body + blind.body
    prompt = lambda model: server.post("/apply-template", body(model) | {"max_tokens": None}).json()["prompt"]
    assert "<__media__>" in prompt("tiny-gemma3")
    assert "[an image was left out: this model takes none]" in prompt(TEXT_ONLY)


def test_answers_do_not_depend_on_what_runs_beside_them(server):
    sizes = [(60 + 7 * i, 150 - 9 * i) for i in range(8)]
    asked = lambda size: answer(server, "qwen2vl", [part(picture(*size)), said("What is it?")], seed=3)["choices"][0]["message"]
    alone = [asked(size) for size in sizes]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(asked, sizes * 2)) == alone * 2


def bomb(width: int, height: int) -> bytes:
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9)) + chunk(b"IEND", b"")


FIELD = "messages[0].content[0].image_url.url"


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        (url(bomb(100_000, 100_000)), 413, "too many"),
        (url(IMAGE[:200]), 400, "truncated"),
        (url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 400, "an SVG drawing"),
        (url(b"\0\0\0\x20ftypisom" + bytes(40), "png"), 400, "an MP4 video"),
        (url(b""), 400, "empty"),
        (url(b"hello"), 400, "no known type"),
        ("data:image/png;base64,@@@", 400, "not base64"),
        ("file:///etc/passwd", 400, "no address"),
        ("https://example.com/a.png", 400, "server.picture_hosts"),
        (url(picture(600, 2)), 400, "crop it"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_field(server, value, status, words):
    reply = ask(server, "gemma3", [{"type": "image_url", "image_url": {"url": value}}])
    error = reply.json()["error"]
    assert (reply.status, error["param"]) == (status, FIELD) and words in error["message"], reply.body


def test_a_model_without_an_encoder_refuses_pictures(server):
    reply = server.post("/v1/chat/completions", {"model": TEXT_ONLY, "messages": [{"role": "user", "content": [part()]}]})
    error = reply.json()["error"]
    assert (reply.status, error["param"]) == (400, "messages[0].content[0].image_url.url")
    assert "takes no pictures" in error["message"] and "vision" in error["message"]


def test_more_than_100_pictures_are_refused(server):
    small = part(picture(8, 8))
    reply = ask(server, "qwen2vl", [small] * 101)
    assert reply.status == 413 and reply.json()["error"]["param"] == "messages[0].content[100].image_url.url", reply.body


def test_a_text_is_no_picture(server):
    for text in ("<__media__>", "<unused300>", "<start_of_image>"):
        reply = answer(server, "gemma3", [said(text)])
        assert reply["usage"]["prompt_tokens"] == 1 + len(text), "the bytes of the text, and BOS"


def test_what_pictures_cannot_have_is_refused_by_name(server):
    for more, words in [({"prompt_logprobs": 1}, "no scores"), ({"truncate_prompt_tokens": 20}, "cannot be cut")]:
        reply = ask(server, "gemma3", [part(), said("a")], **more)
        assert reply.status == 400 and words in reply.json()["error"]["message"], reply.body
