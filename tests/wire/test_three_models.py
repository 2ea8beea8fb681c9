"""Three models run in one process, and each continues the prompts as the reference does."""

import pytest
from harness import Server
from test_cli import FILES, reference


@pytest.fixture(scope="module")
def three():
    with Server({"SERVER__DEFAULT_MODELS": ",".join(FILES)}) as running:
        yield running


def test_all_models_are_listed(three):
    assert {model["id"] for model in three.get("/v1/models").json()["data"]} >= set(FILES)


def test_an_alias_names_its_model_loaded_or_not(three):
    for alias, model in (("smollm2", "smollm2:135m"), ("gemma3", "gemma3:270m")):
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


def test_a_base_model_without_a_template_says_so(three):
    """Gemma's base model has no chat template. Completions work, and chats are refused with the reason."""
    reply = three.chat(model="gemma3:270m")
    assert reply.status == 400 and "template" in reply.error["message"] and reply.error["param"] == "model"


def test_concurrent_models_give_the_same_text_as_each_alone(three):
    """All three models at once give the text that each gives alone."""
    from concurrent.futures import ThreadPoolExecutor

    def text(model: str) -> str:
        return three.complete("The capital of France is", model=model, max_tokens=6).json()["choices"][0]["text"]

    alone = {model: text(model) for model in FILES}
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(text, list(FILES) * 2))
    assert together == [alone[model] for model in FILES] * 2
