"""An answer keeps its leading white space. Only the white space that separates reasoning from the answer is removed."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from harness import CODER, ROOT, Server, chunks_of
from test_responses import events_of

# Templates with different forms of reasoning. Those in OPENED open the reasoning in the prompt.
OPENED = ("Qwen-QwQ-32B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
TEMPLATES = ("Qwen-Qwen3-0.6B", "HuggingFaceTB-SmolLM3-3B", "openai-gpt-oss-120b", "Cohere2MoE", "Kimi-K3", "muse-glimmer", *OPENED)
QWEN = "Qwen-Qwen3-0.6B"
CODE = [
    {"role": "user", "content": "Write a Python function that adds two numbers."},
    {"role": "assistant", "content": "```python\ndef add(a, b):"},
]
HELLO = [{"role": "user", "content": "Is the sky blue?"}]


@pytest.fixture(scope="module")
def zoo():
    """Serves the coder with each template."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        entry = "[[models]]\nid = '{}'\nof = '{}'\nchat_template = '{}/tests/golden/templates/{}.jinja'\n"
        config.write_text("".join(entry.format(name, CODER, ROOT, name) for name in TEMPLATES))
        names = ",".join([*TEMPLATES, CODER])
        with Server({"SERVER__DEFAULT_MODELS": names, "ENGINE__KV_TOKENS": "8192"}, args=("--config", str(config))) as running:
            yield running


def ask(server, model=QWEN, **fields) -> dict:
    """Returns the only choice of a response."""
    reply = server.chat(model=model, **fields)
    assert reply.status == 200, (model, reply.body)
    return reply.json()["choices"][0]


def streamed(server, **fields) -> tuple[str, list[str]]:
    """Returns the content of a stream, and the tokens of its log-probabilities."""
    chunks = chunks_of(server.chat(model=QWEN, stream=True, **fields))
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    tokens = [token["token"] for choice in choices for token in (choice.get("logprobs") or {}).get("content") or []]
    return "".join(choice["delta"].get("content") or "" for choice in choices), tokens


@pytest.mark.real_models
def test_a_continued_answer_keeps_its_leading_white_space(zoo):
    """Whole and streamed, the content equals the text of all tokens, and each token has its log-probability."""
    fields = dict(messages=CODE, max_tokens=16, logprobs=True, return_token_ids=True)
    for more in ({"continue_final_message": True}, {"messages": [CODE[0], {**CODE[1], "prefix": True}]}):
        choice = ask(zoo, **{**fields, **more})
        text, tokens = choice["message"]["content"], [token["token"] for token in choice["logprobs"]["content"]]
        assert re.match(r"\s+return a \+ b", text), text
        assert "".join(tokens) == text and len(tokens) == len(choice["token_ids"]), tokens
        assert zoo.post("/detokenize", {"model": QWEN, "tokens": choice["token_ids"]}).json()["prompt"] == text
        assert streamed(zoo, **{**fields, **more}) == (text, tokens)


def test_all_dialects_keep_the_white_space_of_a_continued_answer(zoo):
    text = ask(zoo, messages=CODE, max_tokens=16, continue_final_message=True)["message"]["content"]
    body = {"model": QWEN, "messages": CODE, "max_tokens": 16, "temperature": 0}
    assert zoo.post("/v1/messages", body).json()["content"] == [{"type": "text", "text": text}]
    stream = zoo.post("/v1/messages", {**body, "stream": True}).body.decode()
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: ")]
    assert "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta") == text
    body = {"model": QWEN, "messages": CODE, "options": {"num_predict": 16, "temperature": 0}}
    assert zoo.post("/api/chat", {**body, "stream": False}).json()["message"]["content"] == text
    lines = [json.loads(line) for line in zoo.post("/api/chat", body).body.decode().splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == text


RULES = [
    ({"choice": [" yes", " no"]}, r" (yes|no)"),
    ({"choice": ["\n\n\nyes", "   no"]}, r"\n\n\nyes|   no"),
    ({"regex": "[ ]{3}"}, r" {3}"),
    ({"regex": "\\n\\t[ab]"}, r"\n\t[ab]"),
    ({"grammar": 'root ::= [ ]{2} ("a" | "b")'}, r"  [ab]"),
    ({"structured_outputs": {"choice": [" yes", " no"]}}, r" (yes|no)"),
]


@pytest.mark.parametrize("model", TEMPLATES)
@pytest.mark.parametrize("rule, expected", RULES[:5])
def test_a_format_keeps_its_leading_white_space(zoo, model, rule, expected):
    for budget in (0, 3):
        fields = dict(messages=HELLO, max_tokens=30, seed=1, temperature=budget / 3, logprobs=True, thinking_token_budget=budget)
        choice = ask(zoo, model, **fields, **rule)
        text = choice["message"]["content"]
        assert re.fullmatch(expected, text) or choice["finish_reason"] == "length", (choice, budget)
        tokens = "".join(token["token"] for token in choice["logprobs"]["content"])
        # The first token may also contain the end of the tag before the answer.
        assert tokens.endswith(text), choice


@pytest.mark.parametrize("model", TEMPLATES)
def test_a_format_applies_to_the_rest_of_a_continued_answer(zoo, model):
    """The rest of a text contains no tag and no reasoning."""
    begun = [*HELLO, {"role": "assistant", "content": "So:"}]
    text = ask(zoo, model, messages=begun, continue_final_message=True, max_tokens=20, choice=[" yes", " no"])["message"]["content"]
    assert text in (" yes", " no")


@pytest.mark.real_models
@pytest.mark.parametrize("rule, expected", RULES[:3])
def test_a_format_is_the_same_in_all_dialects(zoo, rule, expected):
    whole = ask(zoo, messages=HELLO, max_tokens=20, **rule)["message"]["content"]
    assert re.fullmatch(expected, whole), whole
    assert streamed(zoo, messages=HELLO, max_tokens=20, **rule)[0] == whole
    if "structured_outputs" not in rule:
        body = {"model": QWEN, "input": HELLO[0]["content"], "max_output_tokens": 20, "temperature": 0, **rule}
        response = zoo.post("/v1/responses", body)
        assert response.status == 200, response.body
        assert response.json()["output"][-1]["content"][0]["text"] == whole
        events = events_of(zoo.post("/v1/responses", {**body, "stream": True}))
        assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == whole


def test_an_answer_of_white_space_is_white_space(zoo):
    """If a model ends after blanks, the answer consists of blanks, with and without tools."""
    blank, end = (zoo.post("/tokenize", {"model": QWEN, "prompt": text}).json()["tokens"] for text in ("   ", "<|im_end|>"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for more in ({}, {"tools": [tool]}):
        fields = dict(messages=HELLO, max_tokens=2, allowed_token_ids=blank, logprobs=True, **more)
        choice = ask(zoo, **fields)
        assert choice["message"]["content"] == "   " * 2 and len(choice["logprobs"]["content"]) == 2, choice
        assert streamed(zoo, **fields)[0] == "   " * 2
