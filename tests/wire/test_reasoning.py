"""Reasoning is separate from the answer, and a started answer can be continued."""

import json
import tempfile
from pathlib import Path

import pytest
import scripted
from harness import CODER, MODEL, Server, chunks_of
from test_cli import show
from test_responses import events_of

HEAD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% if not loop.last or add_generation_prompt %}<|im_end|>\n{% endif %}{% endfor %}"
)
OPEN = (
    HEAD
    + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def thinker():
    path = show(MODEL)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config, template = Path(folder, "models.toml"), Path(folder, "open.jinja")
        template.write_text(OPEN)
        config.write_text(f"[[models]]\nid = 'thinker'\nchat_template = '{template}'\nsource = {{ type = 'file', path = '{path}' }}\n")
        with Server({"SERVER__DEFAULT_MODELS": f"thinker,{MODEL}", "ENGINE__KV_TOKENS": "4096"}, args=("--config", str(config))) as running:
            yield running


def ask(server, **fields) -> dict:
    reply = server.chat(model="thinker", **fields)
    assert reply.status == 200, reply.body
    return reply.json()


def test_reasoning_that_the_limit_cuts_is_no_content(thinker):
    answer = ask(thinker, content="What is the capital of France?", max_tokens=10)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == ""
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == answer["usage"]["completion_tokens"] > 0


def test_a_format_applies_after_the_reasoning(thinker):
    fields = dict(content="Is it so?", max_tokens=40, choice=["yes", "no"])
    message = ask(thinker, **fields, chat_template_kwargs={"enable_thinking": False})["choices"][0]["message"]
    assert message["content"] in ("yes", "no") and "reasoning_content" not in message
    thought = ask(thinker, **fields, thinking_token_budget=5)["choices"][0]
    assert thought["message"]["reasoning_content"] and thought["message"]["content"] in ("yes", "no"), thought


@pytest.mark.parametrize("rule", [{"choice": ["yes", "no"]}, {"response_format": {"type": "json_object"}}])
def test_an_answer_does_not_end_in_the_reasoning_before_its_format_is_met(thinker, rule):
    """The bias makes the model end at once. `content` is empty only if the token limit is reached first."""
    for seed in range(3):
        fields = dict(max_tokens=60, temperature=1.5, seed=seed, logit_bias={"2": 100}, **rule)
        choice = ask(thinker, content="Is it so?", **fields)["choices"][0]
        assert choice["message"]["content"] or choice["finish_reason"] == "length", choice
        choice = ask(thinker, content="Is it so?", thinking_token_budget=5, **fields)["choices"][0]
        assert choice["message"]["content"], "the token limit is far beyond the reasoning"


def test_without_reasoning_everything_is_content(thinker):
    fields = dict(content="What is the capital of France?", max_tokens=10, chat_template_kwargs={"enable_thinking": False})
    answer = ask(thinker, **fields)
    message = answer["choices"][0]["message"]
    assert message["content"] and "reasoning_content" not in message
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_reasoning_is_streamed(thinker):
    whole = ask(thinker, content="Why?", max_tokens=12)["choices"][0]["message"]["reasoning_content"]
    chunks = chunks_of(thinker.chat("Why?", model="thinker", max_tokens=12, stream=True))
    pieces = [chunk["choices"][0]["delta"].get("reasoning_content") for chunk in chunks]
    assert "".join(filter(None, pieces)) == whole and sum(map(bool, pieces)) > 1
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)


def test_effort_none_switches_reasoning_off_and_levels_are_advice(thinker):
    """The template of this model can only switch reasoning on and off."""
    fields = dict(content="What is the capital of France?", max_tokens=10)
    off = ask(thinker, **fields, chat_template_kwargs={"enable_thinking": False})["choices"][0]["message"]
    assert ask(thinker, **fields, reasoning_effort="none")["choices"][0]["message"] == off
    response = thinker.post(
        "/v1/responses",
        {"model": "thinker", "input": fields["content"], "max_output_tokens": 10, "temperature": 0, "reasoning": {"effort": "none"}},
    ).json()
    assert response["output"][0]["content"][0]["text"] == off["content"] and response["reasoning"] == {"effort": "none", "summary": None}
    assert ask(thinker, **fields, reasoning={"enabled": False})["choices"][0]["message"] == off
    on = ask(thinker, **fields)["choices"][0]["message"]
    plain = thinker.chat(**fields).json()["choices"]
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        assert ask(thinker, **fields, reasoning_effort=effort)["choices"][0]["message"] == on, "no levels, so the model reasons"
        assert thinker.chat(**fields, reasoning_effort=effort).json()["choices"] == plain, "this model does not reason at all"
    assert thinker.chat(**fields, reasoning_effort="none").json()["choices"] == plain
    assert thinker.chat("Why?", model="thinker", reasoning_effort="a lot").error["param"] == "reasoning_effort"
    bounded = ask(thinker, content="Why?", max_tokens=40, reasoning={"max_tokens": 5})["choices"][0]["message"]
    assert bounded == ask(thinker, content="Why?", max_tokens=40, thinking_token_budget=5)["choices"][0]["message"]


def test_reasoning_is_an_item_of_a_response(thinker):
    fields = {"model": "thinker", "input": "Why?", "max_output_tokens": 5, "temperature": 0}
    whole = ask(thinker, content="Why?", max_tokens=5)["choices"][0]["message"]["reasoning_content"]
    response = thinker.post("/v1/responses", fields).json()
    (item,) = response["output"]
    assert item["type"] == "reasoning" and item["summary"] == [] and item["id"].startswith("rs_") and item["status"] == "incomplete"
    assert item["content"] == [{"type": "reasoning_text", "text": whole}]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    events = events_of(thinker.post("/v1/responses", {**fields, "stream": True}))
    kinds = [event["type"].removeprefix("response.") for event in events if "delta" not in event]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta") == whole
    # The reasoning is accepted as input, and the template renders it.
    again = [{"role": "user", "content": "Why?"}, item, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
    messages = [again[0], {"role": "assistant", "content": "So.", "reasoning_content": whole}, again[3]]
    expected = thinker.chat(messages=messages, model="thinker", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert thinker.post("/v1/responses", {**fields, "input": again}).json()["usage"]["input_tokens"] == expected


def test_an_answer_is_continued(thinker):
    messages = [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "The capital of France is"}]
    for fields in ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}):
        reply = thinker.chat(messages=messages, max_tokens=3, **fields)
        assert reply.status == 200, reply.body
        assert reply.json()["choices"][0]["message"]["content"].strip().startswith("Paris"), reply.body
    messages[1]["prefix"] = True
    assert thinker.chat(messages=messages, max_tokens=3).json()["choices"][0]["message"]["content"].strip().startswith("Paris")


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": 1}, "continue_final_message"),
        (
            {"messages": [{"role": "assistant", "content": "a"}], "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
    ],
)
def test_a_conversation_that_cannot_be_continued_is_refused(thinker, fields, param):
    reply = thinker.chat("x", **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body


@pytest.mark.parametrize("budget", [0, 5])
def test_reasoning_ends_at_its_budget(thinker, budget):
    message = ask(thinker, content="Why?", max_tokens=40, thinking_token_budget=budget)["choices"][0]["message"]
    assert message["content"] and "think>" not in message["content"], message
    thought = ask(thinker, content="Why?", max_tokens=5)["choices"][0]["message"]["reasoning_content"] if budget else ""
    assert message.get("reasoning_content", "").strip() == thought.strip()


def test_a_budget_without_a_limit_changes_nothing(thinker):
    fields = dict(content="Why?", max_tokens=12)
    free = ask(thinker, **fields)["choices"][0]["message"]
    for budget in (-1, None, 100):
        assert ask(thinker, **fields, thinking_token_budget=budget)["choices"][0]["message"] == free
    assert thinker.chat("Why?", thinking_token_budget=5).status == 200, "a model that does not reason is within any budget"
    for wrong in (-2, 1.5, "5"):
        assert thinker.chat("Why?", model="thinker", thinking_token_budget=wrong).error["param"] == "thinking_token_budget"


def between_tags(server, choice: dict) -> int:
    """Counts the generated tokens before the tag that ends the reasoning. The template has already written the tag that starts it."""
    texts = [server.post("/detokenize", {"model": "thinker", "tokens": [id]}).json()["prompt"] for id in choice["token_ids"]]
    before = "".join(texts).partition("</think>")[0]
    return next(count for count in range(len(texts) + 1) if len("".join(texts[:count])) >= len(before))


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_the_reasoning_has_as_many_tokens_as_its_budget_and_usage_says_so(thinker, budget):
    """Holds for a single answer, for several choices, in a stream, and before an answer with a format."""
    fields = dict(max_tokens=40, thinking_token_budget=budget, return_token_ids=True, min_tokens=20)
    answer = ask(thinker, **fields)
    assert between_tags(thinker, answer["choices"][0]) == budget
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget
    several = ask(thinker, **fields, n=3, temperature=0.7, seed=1)
    counts = [between_tags(thinker, choice) for choice in several["choices"]]
    assert max(counts) <= budget and sum(counts) == several["usage"]["completion_tokens_details"]["reasoning_tokens"]
    chunks = chunks_of(thinker.chat(model="thinker", stream=True, stream_options={"include_usage": True}, **fields))
    ids = [id for chunk in chunks for choice in chunk["choices"] for id in choice.get("token_ids") or []]
    assert between_tags(thinker, {"token_ids": ids}) == budget
    assert chunks[-1]["usage"] == {**answer["usage"], "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]}
    fields = {**fields, "min_tokens": 0, "choice": [" yes", " no"]}
    answer = ask(thinker, **fields)
    assert answer["choices"][0]["message"]["content"] in (" yes", " no")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= budget


def test_a_budget_beyond_the_token_limit_changes_nothing(thinker):
    answer = ask(thinker, content="Why?", max_tokens=6, thinking_token_budget=50)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "length"


def test_reasoning_is_continued_within_its_budget(thinker):
    """The reasoning that the message already contains counts."""
    begun = "The user wants to know why"
    size = len(thinker.post("/tokenize", {"model": MODEL, "prompt": begun, "add_special_tokens": False}).json()["tokens"])
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": f"<think>\n{begun}"}]
    fields = dict(messages=messages, continue_final_message=True, max_tokens=30, min_tokens=20, return_token_ids=True)
    choice = ask(thinker, **fields)["choices"][0]
    free, text = choice["message"], thinker.post("/detokenize", {"model": "thinker", "tokens": choice["token_ids"]}).json()["prompt"]
    thought = text.partition("</think>")[0].partition("<|im_end|>")[0]
    assert free["reasoning_content"] == thought.rstrip(), "the answer continues after its last character"
    for more in (0, 3):
        answer = ask(thinker, **fields, thinking_token_budget=size + more)
        message = answer["choices"][0]["message"]
        assert between_tags(thinker, answer["choices"][0]) == more and message["content"], answer
        assert free["reasoning_content"].startswith(message.get("reasoning_content", ""))
    assert ask(thinker, **fields, thinking_token_budget=1)["choices"][0]["message"]["content"], "the message already exceeds the budget"


CALL = json.dumps({"name": "look", "arguments": {"at": "the sky of today"}})
LIMIT = 11
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A model that always makes the same call, without tags, and one that starts to reason again and again. A variant of the first has a
    token limit."""
    folder = tmp_path_factory.mktemp("script")
    template = folder / "plain.jinja"
    template.write_text(HEAD + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    config = ""
    for name, text in {"caller": CALL, "brooder": "<think>\nHm, let me see what there is to say about it.</think>\n\nWell."}.items():
        scripted.write(folder / f"{name}.gguf", show(CODER)["path"], text, "Done.", bare=True)
        config += f"[[models]]\nid = '{name}'\nsource = {{ type = 'file', path = '{folder}/{name}.gguf' }}\n"
        config += f"chat_template = '{template}'\n" if name == "brooder" else ""
    config += f"[[models]]\nid = 'caller:short'\nof = 'caller'\nmax_tokens = {LIMIT}\n"
    (folder / "config.toml").write_text(config)
    names = {"SERVER__DEFAULT_MODELS": "caller,caller:short,brooder", "ENGINE__CONTEXT": "512", "ENGINE__BACKEND": "cpu"}
    with Server(names, ("--config", str(folder / "config.toml"))) as server:
        yield server


def repeated(server, question="Look!", **fields) -> dict:
    """The response to a call's result. The model only repeats the call, so the server asks it a second time."""
    call = {"id": "call_1", "type": "function", "function": json.loads(CALL) | {"arguments": json.dumps(json.loads(CALL)["arguments"])}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "blue"}
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    body = {"model": "caller", "messages": messages, "tools": [LOOK], "temperature": 0, **fields}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return reply.json()


def test_a_second_try_shares_the_limit_of_the_first(script):
    free = repeated(script, max_tokens=100)
    once = len(CALL) // scripted.PIECE + 1
    assert once < LIMIT < free["usage"]["completion_tokens"], "without a limit, the call is generated twice"
    for fields in ({"max_tokens": LIMIT}, {"max_completion_tokens": LIMIT}, {"model": "caller:short"}):
        answer = repeated(script, **fields)
        assert answer["usage"]["completion_tokens"] == LIMIT, (fields, answer)
        assert answer["choices"][0]["finish_reason"] == "length"


def test_a_second_try_ends_with_the_context_of_the_first(script):
    """No limit is set, so the answer may use what the first prompt leaves of the context."""
    left = 512 - LIMIT - repeated(script, max_tokens=1)["usage"]["prompt_tokens"]
    usage = repeated(script, "Look!" + " x" * left)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (512 - LIMIT, LIMIT)


def test_reasoning_does_not_start_again_after_its_budget(script):
    """The model starts to reason whenever its script ends."""
    body = {"model": "brooder", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 60, "temperature": 0}
    free = script.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert free["reasoning_content"].startswith("Hm, let me see") and free["content"] == "Well.", free
    for budget in (0, 1, 3):
        answer = script.post("/v1/chat/completions", {**body, "thinking_token_budget": budget}).json()
        message = answer["choices"][0]["message"]
        assert free["reasoning_content"].startswith(message.get("reasoning_content", "")), message
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget, answer
        assert message["content"] and not message["content"].lstrip().startswith("<think>"), message
