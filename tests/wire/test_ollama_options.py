"""The options of Ollama's requests: those that reach the sampler, those without an effect, those that are refused, and what clients
send."""

import pytest
from harness import MODEL
from test_ollama import ANSWER, QUESTION, both, chat, generate, refused, whole  # noqa: F401


@pytest.mark.real_models
def test_options_reach_the_sampler(server):
    one = whole(generate(server, stream=False, options={"seed": 7, "temperature": 1.5, "top_k": 50}))["response"]
    assert one == whole(generate(server, stream=False, options={"seed": 7, "temperature": 1.5, "top_k": 50}))["response"]
    others = {whole(generate(server, stream=False, options={"seed": seed, "temperature": 1.5}))["response"] for seed in range(4)}
    assert len(others) > 1
    assert whole(generate(server, stream=False, options={"temperature": 1.5, "top_k": 1}))["response"] == ANSWER
    stopped = whole(generate(server, stream=False, options={"stop": ["France"]}))
    assert (stopped["response"], stopped["done_reason"]) == ("The capital of ", "stop")
    assert whole(generate(server, stream=False, options={"stop": " is"}))["response"] == "The capital of France"
    heavy = {"repeat_penalty": 5.0, "num_predict": 24}
    assert whole(generate(server, stream=False, options=heavy))["response"] != ANSWER
    assert whole(generate(server, stream=False, options={**heavy, "repeat_last_n": 0}))["response"] == ANSWER
    for count in (-1, -2):
        assert whole(generate(server, stream=False, options={"num_predict": count}))["response"] == ANSWER


def test_options_for_loading_have_no_effect(server):
    loading = {"num_gpu": 99, "main_gpu": 0, "num_thread": 4, "num_batch": 512, "num_keep": 5}
    loading |= {"use_mmap": True, "use_mlock": False, "numa": False}
    off = {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0, "tfs_z": 1, "penalize_newline": True}
    assert whole(generate(server, stream=False, options={**loading, **off, "low_vram": None}))["response"] == ANSWER


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tempreature": 1}, ("`options.tempreature`", "did you mean `temperature`?")),
        ({"repetition_penalty": 1.1}, ("`options.repetition_penalty`", "`repeat_penalty`")),
        ({"dry_multiplier": 0.8}, ("there is no field `options.dry_multiplier`", "`repeat_penalty`")),
        ({"logit_bias": {"5": 1}}, ("there is no field `options.logit_bias`", "leave it out")),
        ({"mirostat": 2}, ("`options.mirostat`",)),
        ({"mirostat": "2"}, ("`options.mirostat`", "a number")),
        ({"typical_p": 0.5}, ("`options.typical_p`",)),
        ({"tfs_z": 0.5}, ("`options.tfs_z`",)),
        ({"penalize_newline": False}, ("`options.penalize_newline`",)),
        ({"temperature": -1}, ("`options.temperature`",)),
        ({"temperature": "hot"}, ("`options.temperature`", "a number")),
        ({"top_p": -0.1}, ("`options.top_p`",)),
        ({"top_k": -2}, ("`options.top_k`",)),
        ({"min_p": 2}, ("`options.min_p`",)),
        ({"repeat_penalty": 0}, ("`options.repeat_penalty`",)),
        ({"repeat_last_n": -2}, ("`options.repeat_last_n`",)),
        ({"presence_penalty": 3}, ("`options.presence_penalty`",)),
        ({"num_predict": 1.5}, ("`options.num_predict`",)),
        ({"num_ctx": -1}, ("`options.num_ctx`",)),
        ({"num_ctx": "8k"}, ("`options.num_ctx`",)),
        ({"seed": 10**30}, ("`options.seed`",)),
        ({"stop": [""]}, ("`options.stop`",)),
        ({"stop": [1]}, ("`options.stop`",)),
        ({"stop": ["x"] * 65}, ("`options.stop`", "64")),
        ({"stop": "é" * 600}, ("`options.stop`", "1024")),
        ({"num_gpu": "all"}, ("`options.num_gpu`",)),
    ],
)
def test_a_wrong_option_is_refused_by_name(server, options, words):
    refused(generate(server, options=options), *words)


def test_num_ctx_does_not_change_the_context(both):
    """Clients send the context that they know from the model, or one from their settings."""
    for count in (0, 512, 32_768, 10**9):
        assert whole(generate(both, stream=False, options={"num_ctx": count}))["response"] == ANSWER
    refused(generate(both, "river " * 3000, options={"num_ctx": 32_768}), "2048 tokens")
    assert whole(both.post("/api/show", {"model": MODEL}))["model_info"]["llama.context_length"] == 2048


def test_unusual_requests_of_clients_are_accepted(server):
    for options in ({"top_p": 0, "temperature": 1.5}, {"num_predict": 0}, {"num_predict": -3}, {"stop": list("QWXYZ@#%^")}):
        assert whole(generate(server, stream=False, options=options))["response"] == ANSWER, options
    hot = {"temperature": 5.0, "seed": -1, "num_predict": 8}
    assert len({whole(generate(server, stream=False, options=hot))["response"] for _ in range(3)}) > 1
    assert whole(generate(server, stream=False, options={"repeat_penalty": 1.1, "repeat_last_n": 64}))["response"]
    for field in ("truncate", "shift"):
        assert whole(chat(server, stream=False, **{field: True}))["message"]["content"] == ANSWER
    refused(chat(server, _debug_render_only=True), "`_debug_render_only`", "/apply-template")
    messages = [{"role": "Developer", "content": "Answer briefly."}, {"role": "USER", "content": QUESTION}]
    assert whole(chat(server, messages=messages, stream=False))["message"]["content"]


def test_many_tools_with_long_names_and_unusual_schemas_are_accepted(server):
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "anyOf": [{"required": ["a"]}, {}]}
    tools = [{"type": "function", "function": {"name": f"{'n' * 100}{i}", "parameters": odd}} for i in range(130)]
    earlier = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "web search", "arguments": {"q": "x"}}}]}
    messages = [{"role": "user", "content": QUESTION}, earlier, {"role": "tool", "content": "Paris"}]
    assert whole(chat(server, messages=messages, stream=False))["message"]["content"]
    refused(chat(server, messages=messages, tools=tools * 4), "`tools`", "512")
    assert whole(chat(server, tools=tools[:4], stream=False))["message"]


def test_repeat_last_n_without_a_penalty_has_no_effect(server):
    assert whole(generate(server, stream=False, options={"repeat_last_n": 64}))["response"] == ANSWER, "there is no penalty"
