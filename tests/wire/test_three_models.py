"""Three models run in one process, and each continues the prompts as the reference does."""

import pytest
from harness import MODEL, Server
from test_cli import BASE, FILES, reference
from test_keys import Keys, bearer


@pytest.fixture(scope="module")
def three():
    with Server({"SERVER__DEFAULT_MODELS": ",".join(FILES), "LIMITS__REQUEST_TEMPLATES": "true"}) as running:
        yield running


def test_all_models_are_listed(three):
    assert {model["id"] for model in three.get("/v1/models").json()["data"]} >= set(FILES)


def test_an_alias_names_its_model_loaded_or_not(three):
    for alias, model in (("smollm2", MODEL), ("gemma3:270m", BASE)):
        reply = three.get(f"/v1/models/{alias}")
        assert reply.status == 200 and reply.json()["id"] == model, reply.body


@pytest.mark.real_models
@pytest.mark.parametrize("model", FILES)
def test_greedy_continuations_are_those_of_the_reference(three, model):
    for prompt in reference(model):
        sure = prompt["sure"]
        if sure["num_tokens"] == 0:
            continue
        reply = three.complete(prompt["ids"], model=model, max_tokens=sure["num_tokens"] + int(sure["ends"]), timeout=170)
        assert reply.status == 200, (prompt["name"], reply.body)
        (choice,) = reply.json()["choices"]
        # the last token may be a part of a character
        assert choice["text"].rstrip("\ufffd") == sure["text"].rstrip("\ufffd"), prompt["name"]
        assert choice["finish_reason"] == ("stop" if sure["ends"] else "length"), prompt["name"]


def chats(model: str) -> dict:
    """A conversation for each endpoint that takes one."""
    messages = [{"role": "user", "content": "Hi"}]
    return {
        "/v1/chat/completions": {"model": model, "messages": messages},
        "/v1/responses": {"model": model, "input": "Hi"},
        "/v1/responses/input_tokens": {"model": model, "input": "Hi"},
        "/v1/messages": {"model": model, "messages": messages, "max_tokens": 4},
        "/v1/messages/count_tokens": {"model": model, "messages": messages},
        "/api/chat": {"model": model, "messages": messages},
        "/apply-template": {"model": model, "messages": messages},
        "/tokenize": {"model": model, "messages": messages},
    }


def message(reply) -> str:
    error = reply.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("path", chats(""))
def test_a_base_model_refuses_conversations_and_names_models_that_chat(three, path):
    reply = three.post(path, chats(BASE)[path])
    assert reply.status == 400, reply.body
    told = message(reply)
    assert "does not chat" in told and MODEL in told and "qwen2.5-coder:0.5b" in told and "/v1/completions" in told, told
    assert BASE not in told.partition("these do:")[2]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_edits_of_a_conversation_do_not_replace_that_advice(three, path):
    edit = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1}}
    reply = three.post(path, chats(BASE)[path] | {"context_management": {"edits": [edit]}})
    assert reply.status == 400 and f"these do: {MODEL}" in message(reply), reply.body


def test_a_base_model_continues_texts(three):
    assert three.complete("The capital of France is", model=BASE, max_tokens=3).status == 200
    body = {"model": BASE, "prompt": "The capital of France is", "stream": False, "options": {"num_predict": 3}}
    assert three.post("/api/generate", body).status == 200
    told = three.post("/api/generate", body | {"system": "Be brief."})
    assert told.status == 400 and "takes no system message" in message(told)
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    brought = three.chat(model=BASE, chat_template=template, max_tokens=3)
    assert brought.status == 200, brought.body


def test_lists_begin_with_models_that_chat():
    with Server({"SERVER__DEFAULT_MODELS": f"{BASE},{MODEL}"}) as server:
        data = server.get("/v1/models").json()["data"]
        kinds = {model["id"]: model["kind"] for model in data}
        assert data[0]["kind"] == "chat" and kinds[BASE] == "completion" and kinds[MODEL] == "chat"
        assert server.get(f"/v1/models/{BASE}").json()["kind"] == "completion"
        anthropic = {"anthropic-version": "2023-06-01"}
        lists = [server.get("/v1/models", headers=anthropic).json()["data"], server.get("/api/tags").json()["models"]]
        lists += [server.get(path).json()["data"] for path in ("/models", "/admin/models")]
        for listed in lists:
            # Tests beside this one add models to the same store.
            order = [kinds[name] for model in listed if (name := model.get("id") or model["name"]) in kinds]
            assert order == sorted(order), "chat comes before completion"
        tokens = server.post("/tokenize", {"prompt": "Hi"}).json()["tokens"]
        named = server.post("/tokenize", {"model": data[0]["id"], "prompt": "Hi"}).json()["tokens"]
        assert tokens == named, "without a name, the first model of the list counts"


def test_a_refusal_names_no_model_that_the_key_may_not_use(tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    some = keys.add("some", "--model", BASE, "--model", MODEL)
    with Server({"SERVER__DEFAULT_MODELS": ",".join(FILES), **keys.config}) as server:
        told = message(server.post("/v1/chat/completions", chats(BASE)["/v1/chat/completions"], headers=bearer(some)))
        assert MODEL in told and "qwen" not in told


def test_concurrent_models_give_the_same_text_as_each_alone(three):
    """All three models at once give the text that each gives alone."""
    from concurrent.futures import ThreadPoolExecutor

    def text(model: str) -> str:
        return three.complete("The capital of France is", model=model, max_tokens=6).json()["choices"][0]["text"]

    alone = {model: text(model) for model in FILES}
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(text, list(FILES) * 2))
    assert together == [alone[model] for model in FILES] * 2
