"""Reasoning is kept apart from the answer, and an answer can be continued."""

import tempfile
from pathlib import Path

import pytest
from harness import MODEL, Server, chunks_of
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


def test_an_unfinished_thought_is_reasoning(thinker):
    answer = ask(thinker, content="What is the capital of France?", max_tokens=10)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == ""
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == answer["usage"]["completion_tokens"] > 0


def test_a_format_holds_for_what_follows_the_thought(thinker):
    fields = dict(content="Is it so?", max_tokens=40, choice=["yes", "no"])
    message = ask(thinker, **fields, chat_template_kwargs={"enable_thinking": False})["choices"][0]["message"]
    assert message["content"] in ("yes", "no") and "reasoning_content" not in message
    thought = ask(thinker, **fields)["choices"][0]
    assert thought["message"]["reasoning_content"] and thought["message"]["content"] in ("", "yes", "no"), thought


@pytest.mark.parametrize("rule", [{"choice": ["yes", "no"]}, {"response_format": {"type": "json_object"}}])
def test_an_answer_does_not_end_in_a_thought_before_its_rule_is_met(thinker, rule):
    """The bias makes the model want to end at once. `content` is empty only if the limit of tokens came first."""
    for seed in range(3):
        fields = dict(max_tokens=60, temperature=1.5, seed=seed, logit_bias={"2": 100}, **rule)
        choice = ask(thinker, content="Is it so?", **fields)["choices"][0]
        assert choice["message"]["content"] or choice["finish_reason"] == "length", choice


def test_without_thinking_everything_is_text(thinker):
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


def test_effort_none_switches_thinking_off_and_levels_are_advice(thinker):
    """This template knows only whether to think."""
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
        assert ask(thinker, **fields, reasoning_effort=effort)["choices"][0]["message"] == on, "it has no levels, and reasons"
        assert thinker.chat(**fields, reasoning_effort=effort).json()["choices"] == plain, "it does not reason at all"
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
    # the reasoning is accepted again as input, since the template shows it
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
def test_a_thought_ends_at_its_budget(thinker, budget):
    message = ask(thinker, content="Why?", max_tokens=40, thinking_token_budget=budget)["choices"][0]["message"]
    assert message["content"] and "think>" not in message["content"], message
    thought = ask(thinker, content="Why?", max_tokens=5)["choices"][0]["message"]["reasoning_content"] if budget else ""
    assert message.get("reasoning_content", "").strip() == thought.strip()


def test_a_budget_that_says_nothing_is_none(thinker):
    fields = dict(content="Why?", max_tokens=12)
    free = ask(thinker, **fields)["choices"][0]["message"]
    for budget in (-1, None, 100):
        assert ask(thinker, **fields, thinking_token_budget=budget)["choices"][0]["message"] == free
    assert thinker.chat("Why?", thinking_token_budget=5).status == 200, "a model that does not reason keeps to any budget"
    for wrong in (-2, 1.5, "5"):
        assert thinker.chat("Why?", model="thinker", thinking_token_budget=wrong).error["param"] == "thinking_token_budget"
