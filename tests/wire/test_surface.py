"""Tests every cell of the table in docs/api.md that says which endpoint honours which field."""

import tempfile
from pathlib import Path

import pytest
from harness import CODER, MODEL, ROOT, Server
from honoured import EFFECTS, Cell
from test_cli import show

ENDPOINTS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}),
    "completions": ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "temperature": 0}),
    "responses": ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "temperature": 0}),
    "embeddings": ("/v1/embeddings", {"input": "Hi"}),
}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
NESTED, FLAT = [{"type": "function", "function": FUNCTION}], [{"type": "function", **FUNCTION}]
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
# By field: a value with the other fields that it needs, per endpoint if they differ.
VALUES = {
    "stream": {"stream": True},
    "stream_options": {
        "responses": {"stream_options": {"include_obfuscation": True}, "stream": True},
        "*": {"stream_options": {"include_usage": True}, "stream": True},
    },
    "n": {"n": 2},
    "best_of": {"best_of": 2},
    "logprobs": {
        "chat": {"logprobs": True},
        "completions": {"logprobs": 2},
        "responses": {"logprobs": True},
        "embeddings": {"logprobs": True},
    },
    "top_logprobs": {"chat": {"top_logprobs": 2, "logprobs": True}, "*": {"top_logprobs": 2}},
    "include": {"include": ["message.output_text.logprobs"]},
    "echo": {"chat": {"messages": TURNS, "echo": True}, "*": {"echo": True}},
    "suffix": {"suffix": "there"},
    "stop": {"stop": ["zzz"]},
    "include_stop_str_in_output": {"include_stop_str_in_output": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 4},
    "return_token_ids": {"return_token_ids": True},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "allowed_token_ids": {"allowed_token_ids": [5, 6]},
    "bad_words": {"bad_words": ["zzz"]},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "thinking_token_budget": {"thinking_token_budget": 5},
    "chat_template": {"chat_template": "{{ messages[0].content }}"},
    "functions": {"functions": [FUNCTION]},
    "function_call": {"chat": {"functions": [FUNCTION], "function_call": {"name": "f"}}, "*": {"function_call": {"name": "f"}}},
    "verbosity": {"verbosity": "medium"},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "speculative.n_max": {"speculative.n_max": 3},
    "speculative.n_min": {"speculative.n_min": 1},
    "speculative.p_min": {"speculative.p_min": 0.5},
    "json_schema": {"json_schema": {"type": "object"}},
    "structured_outputs": {"structured_outputs": {"json_object": True}},
    "seed": {"seed": 3},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "presence_penalty": {"presence_penalty": 1},
    "frequency_penalty": {"frequency_penalty": 1},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "logit_bias": {"logit_bias": {"5": 1}},
    "max_tokens": {"max_tokens": 1},
    "max_completion_tokens": {"max_completion_tokens": 1},
    "max_output_tokens": {"max_output_tokens": 1},
    "min_tokens": {"min_tokens": 1},
    "ignore_eos": {"ignore_eos": True},
    "stop_token_ids": {"stop_token_ids": [5]},
    "user": {"user": "ada"},
    "cache_salt": {"cache_salt": "a"},
    "add_generation_prompt": {"add_generation_prompt": False},
    "chat_template_kwargs": {"chat_template_kwargs": {"a": "one two three"}},
    "instructions": {"instructions": "Be brief."},
    "previous_response_id": {"previous_response_id": "stored"},
    "store": {"store": True},
    "background": {"background": True},
    "truncation": {"truncation": "auto"},
    "metadata": {"metadata": {"a": "b"}},
    "response_format": {"response_format": {"type": "json_object"}},
    "regex": {"regex": "[a-z]+"},
    "grammar": {"grammar": 'start: "a"'},
    "choice": {"choice": ["a", "b"]},
    "text": {"text": {"format": {"type": "json_object"}}},
    "tools": {"responses": {"tools": FLAT}, "*": {"tools": NESTED}},
    "tool_choice": {
        "chat": {"tools": NESTED, "tool_choice": "required"},
        "responses": {"tools": FLAT, "tool_choice": "required"},
        "*": {"tool_choice": "required"},
    },
    "parallel_tool_calls": {
        "chat": {"tools": NESTED, "parallel_tool_calls": False},
        "responses": {"tools": FLAT, "parallel_tool_calls": False},
        "*": {"parallel_tool_calls": False},
    },
    "continue_final_message": {"chat": {"messages": TURNS, "continue_final_message": True}, "*": {"continue_final_message": True}},
    "reasoning": {"reasoning": {"effort": "low"}},
    "reasoning_effort": {"reasoning_effort": "low"},
    "encoding_format": {"encoding_format": "base64"},
    "dimensions": {"dimensions": 8},
    "normalize": {"normalize": False},
}


def rows() -> list[tuple[str, dict[str, str]]]:
    lines = [line for line in (ROOT / "docs" / "api.md").read_text().splitlines() if line.startswith("|")]
    head = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert head[:5] == ["field", *ENDPOINTS]
    table = []
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        table.append((cells[0].strip("`"), dict(zip(ENDPOINTS, cells[1:5]))))
    return table


@pytest.fixture(scope="module")
def coder():
    """A model whose vocabulary has tokens for filling in the middle."""
    with Server({"SERVER__DEFAULT_MODELS": CODER, "ENGINE__KV_TOKENS": "4096"}) as running:
        yield running


@pytest.fixture(scope="module")
def trusting():
    """A server that accepts chat templates in requests."""
    config = {"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "4096", "LIMITS__REQUEST_TEMPLATES": "true"}
    with Server(config) as running:
        yield running


def test_every_field_is_in_the_table_and_has_a_value_and_an_effect():
    assert sorted(field for field, _ in rows()) == sorted(VALUES) == sorted(EFFECTS)


TEMPLATES = {
    "thinker": "{{ reasoning_effort }}{{ a }}{% for m in messages %}{{ m.content }}\n{% endfor %}",
    "opener": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
}


@pytest.fixture(scope="module")
def thinker():
    """Serves a model whose template has reasoning levels and a variable, and one whose template opens reasoning."""
    with tempfile.TemporaryDirectory() as folder:
        config, lines = Path(folder, "models.toml"), []
        for name, text in TEMPLATES.items():
            Path(folder, name).write_text(text)
            source = f"source = {{ type = 'file', path = '{show(MODEL)['path']}' }}"
            lines.append(f"[[models]]\nid = '{name}'\nchat_template = '{folder}/{name}'\n{source}\n")
        config.write_text("".join(lines))
        settings = {"SERVER__DEFAULT_MODELS": ",".join(TEMPLATES), "ENGINE__KV_TOKENS": "4096"}
        with Server(settings, args=("--config", str(config))) as running:
            yield running


# Servers and models for fields that only some models or settings support.
ABLE = {
    "suffix": ("coder", CODER),
    "reasoning": ("thinker", "thinker"),
    "reasoning_effort": ("thinker", "thinker"),
    "chat_template_kwargs": ("thinker", "thinker"),
    "thinking_token_budget": ("thinker", "opener"),
    "chat_template": ("trusting", MODEL),
}


# Penalties have an effect on a text that repeats itself, which a small model's does not.
MARKS = {field: pytest.mark.real_models for field in ("presence_penalty", "frequency_penalty", "repetition_penalty")}


@pytest.mark.parametrize("field, cells", [pytest.param(*row, id=row[0], marks=MARKS.get(row[0], ())) for row in rows()])
def test_every_cell_of_the_table_is_true(server, request, field, cells):
    for endpoint, says in cells.items():
        path, base = ENDPOINTS[endpoint]
        sample = VALUES[field]
        sample = dict(sample.get(endpoint, sample.get("*", sample)))
        if sample.get("previous_response_id") and endpoint == "responses":
            sample["previous_response_id"] = server.post(path, {"model": MODEL, **base}).json()["id"]
        fixture, model = ABLE.get(field, ("server", MODEL))
        here = request.getfixturevalue(fixture)
        reply = here.post(path, {"model": model, **base, **sample})
        if says == "honoured":
            assert reply.status == 200, (endpoint, reply.body)
            EFFECTS[field](Cell(here, endpoint, {"model": model, **base}, sample))
        else:
            assert says == "refused" and reply.status == 400, (endpoint, says, reply.status)
            assert reply.error["param"] == field and reply.error["type"] == "invalid_request_error", (endpoint, reply.error)
        absent = here.post(path, {"model": model, **base, field: None})
        assert absent.status == 200, (endpoint, "null is absence", absent.body)
