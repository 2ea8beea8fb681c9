"""Chat completions over HTTP: whole answers, streams, usage and stop strings."""

import json
import time

import pytest
from harness import CODER, MODEL, Server, chunks_of, sse_events

USAGE_KEYS = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}


def check_usage(usage: dict) -> None:
    assert USAGE_KEYS <= set(usage), usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
    assert isinstance(usage["prompt_tokens_details"]["cached_tokens"], int)
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_an_answer_has_every_field(server):
    before = int(time.time())
    reply = server.chat("What is the capital of France?", max_tokens=5)
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    assert before - 5 <= answer["created"] <= time.time() + 5
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str) and choice["message"]["content"]
    assert choice["message"].get("refusal") is None
    assert not choice["message"].get("tool_calls")
    assert choice["logprobs"] is None
    assert choice["finish_reason"] == "length"
    check_usage(answer["usage"])
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == 37, "the template's text has 37 ids, including the system message"


@pytest.mark.real_models
def test_the_model_knows_the_capital_of_france(server):
    answer = server.chat("What is the capital of France?", max_tokens=12).json()
    assert answer["choices"][0]["message"]["content"].startswith("The capital of France is Paris.")


def test_an_answer_that_ends_by_itself_stops(server):
    answer = server.chat("What is the capital of France?", max_tokens=64).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<|im_end|>" not in answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] < 64


def test_a_stream_equals_the_whole_answer(server):
    whole = server.chat("Name three colours.", max_tokens=24).json()
    reply = server.chat("Name three colours.", max_tokens=24, stream=True)
    chunks = chunks_of(reply)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1, "id, created and model are the same in every chunk"
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["id"].startswith("chatcmpl-") and chunks[0]["model"] == MODEL
    first = chunks[0]["choices"][0]
    assert first["delta"] == {"role": "assistant", "content": ""}, "the first chunk has the role and empty content"
    assert first["finish_reason"] is None and first["index"] == 0
    assert sum("role" in c["choices"][0]["delta"] for c in chunks) == 1, "only the first chunk has the role"
    last = chunks[-1]["choices"][0]
    assert last["delta"] == {} and last["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert sum(c["choices"][0]["finish_reason"] is not None for c in chunks) == 1
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert len(chunks) > 4, "the text arrives in pieces of a few tokens"
    assert all("usage" not in c for c in chunks), "no usage unless requested"
    assert "no-cache" in reply.headers.get("cache-control", "")


def test_a_stream_ends_with_usage_if_it_is_asked_for(server):
    whole = server.chat("Name three colours.", max_tokens=8).json()
    chunks = chunks_of(server.chat("Name three colours.", max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert all("usage" in c and c["usage"] is None for c in chunks[:-1]), "usage is null in every chunk but the last"
    assert chunks[-1]["choices"] == []
    check_usage(chunks[-1]["usage"])
    same = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][k] for k in same] == [whole["usage"][k] for k in same]
    assert len({c["id"] for c in chunks}) == 1


def test_a_stream_has_no_usage_if_include_usage_is_false(server):
    chunks = chunks_of(server.chat(stream=True, max_tokens=2, stream_options={"include_usage": False}))
    assert all("usage" not in c for c in chunks)


@pytest.mark.parametrize(
    "field", [{"stream_options": {"include_usage": True}}, {"stream": False, "stream_options": {"include_usage": True}}]
)
def test_stream_options_need_stream(server, field):
    reply = server.chat(**field)
    assert reply.status == 400
    assert reply.error["param"] == "stream_options" and reply.error["type"] == "invalid_request_error"


def test_choices_are_the_same_streamed_and_whole(server):
    fields = {"n": 2, "temperature": 1.0, "seed": 7, "max_tokens": 6}
    whole = server.chat("Tell me a story.", **fields)
    assert whole.status == 200, whole.body
    answer = whole.json()
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] <= 12
    chunks = chunks_of(server.chat("Tell me a story.", stream=True, **fields))
    for index in (0, 1):
        of_choice = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert of_choice[0]["delta"] == {"role": "assistant", "content": ""}
        assert sum("role" in c["delta"] for c in of_choice) == 1
        assert [c["finish_reason"] for c in of_choice if c["finish_reason"]] == [answer["choices"][index]["finish_reason"]]
        assert "".join(c["delta"].get("content", "") for c in of_choice) == answer["choices"][index]["message"]["content"]


def test_max_completion_tokens_wins_over_max_tokens(server):
    answer = server.chat(max_tokens=9, max_completion_tokens=3, messages=[{"role": "user", "content": "Count from one to twenty."}]).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_null_counts_as_absent(server):
    plain = server.chat("Name a fruit.").json()
    names = """frequency_penalty presence_penalty logit_bias logprobs top_logprobs n stop seed top_p stream stream_options response_format
        tools tool_choice parallel_tool_calls user max_completion_tokens metadata store service_tier reasoning_effort min_p top_k
        repetition_penalty stop_token_ids min_tokens ignore_eos chat_template_kwargs""".split()
    reply = server.chat("Name a fruit.", **{name: None for name in names})
    assert reply.status == 200, reply.body
    assert reply.json()["choices"] == plain["choices"]
    assert server.chat("Hi", temperature=None, max_tokens=2).status == 200


def test_text_parts_are_put_together(server):
    as_text = server.chat("What is the capital of France?").json()
    parts = [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]
    as_parts = server.chat(messages=[{"role": "user", "content": parts}])
    assert as_parts.status == 200, as_parts.body
    assert as_parts.json()["usage"]["prompt_tokens"] > 30
    one = server.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]).json()
    assert one["choices"] == as_text["choices"] and one["usage"]["prompt_tokens"] == as_text["usage"]["prompt_tokens"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "made_up"])
def test_other_content_parts_are_refused_by_name(server, kind):
    part = {"type": kind, kind: {"url": "data:image/png;base64,AAAA"}}
    reply = server.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert kind in reply.error["message"] and reply.error["param"].startswith("messages")


def test_an_assistant_message_may_have_null_content(server):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "user", "content": "Hello?"}]
    assert server.chat(messages=messages, max_tokens=2).status == 200


def test_a_stop_string_is_neither_in_the_output_nor_streamed_in_part(server):
    whole = server.chat("What is the capital of France?", max_tokens=12).json()["choices"][0]["message"]["content"]
    assert "Paris" in whole
    for stop in ["Paris", ["zzz", "aris."], "is Paris"]:
        wanted = min((stop if isinstance(stop, list) else [stop]), key=lambda s: whole.find(s) if s in whole else 10**9)
        expected = whole[: whole.index(wanted)]
        answer = server.chat("What is the capital of France?", max_tokens=12, stop=stop).json()["choices"][0]
        assert answer["message"]["content"] == expected and answer["finish_reason"] == "stop"
        chunks = chunks_of(server.chat("What is the capital of France?", max_tokens=12, stop=stop, stream=True))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == expected
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_that_does_not_appear_holds_nothing_back(server):
    whole = server.chat("What is the capital of France?", max_tokens=7).json()["choices"][0]
    answer = server.chat("What is the capital of France?", max_tokens=7, stop=["Par1s", whole["message"]["content"] + "!!"]).json()[
        "choices"
    ][0]
    assert answer["message"] == whole["message"] and answer["finish_reason"] == "length"


def test_the_beginning_of_a_stop_string_is_held_back_until_the_text_differs(server):
    fields = {"max_tokens": 12, "stop": ["capital of Spain", "zzz"], "stream": True}
    texts = [c["choices"][0]["delta"].get("content", "") for c in chunks_of(server.chat("What is the capital of France?", **fields))]
    assert "".join(texts).startswith("The capital of France is Paris.")
    assert any("capital of France" in text for text in texts), f"the text that was held back arrives in one piece: {texts}"


def test_a_reused_prefix_is_also_counted_after_a_stop_string(server):
    text = "The quick brown fox jumps over the lazy dog and runs away from the bear. " * 8
    answer = server.chat(text, max_tokens=8).json()["choices"][0]["message"]["content"]
    again = server.chat(text, max_tokens=8, stop=answer[2:6]).json()
    assert again["choices"][0]["message"]["content"] == answer[:2] and again["choices"][0]["finish_reason"] == "stop"
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 32


def test_the_same_seed_repeats_and_other_seeds_differ(server):
    fields = {"temperature": 1.0, "max_tokens": 12}
    texts = [server.chat("Tell me a story.", seed=seed, **fields).json()["choices"][0]["message"]["content"] for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2


def test_a_conversation_beyond_the_context_is_refused_with_both_counts(server):
    reply = server.chat("hello " * 9000)
    assert reply.status == 400
    error = reply.error
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages" and error["type"] == "invalid_request_error"
    assert "context_length_exceeded" in error["message"]
    numbers = [int(n) for n in "".join(c if c.isdigit() else " " for c in error["message"]).split()]
    assert any(n >= 9000 for n in numbers) and any(1024 <= n <= 8192 for n in numbers), f"the message has both counts: {error['message']}"


@pytest.fixture(scope="module")
def short():
    with Server({"ENGINE__CONTEXT": "64"}) as running:
        yield running


def test_max_tokens_beyond_the_context_end_with_it(short):
    answer = short.chat("Count to a thousand.", max_tokens=100_000, ignore_eos=True).json()
    usage = answer["usage"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 64, usage


def test_a_prompt_beyond_the_context_names_the_flag(short):
    reply = short.chat("hello " * 100, max_tokens=1)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "messages"
    assert "--context" in reply.error["message"] and "8192" in reply.error["message"], reply.error


def test_strict_max_tokens_beyond_the_context_are_refused():
    with Server({"ENGINE__CONTEXT": "64", "LIMITS__STRICT_MAX_TOKENS": "true"}) as strict:
        reply = strict.chat("hello", max_tokens=100_000)
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and reply.error["param"] == "messages"
        assert "100000 more were asked for" in reply.error["message"], reply.error
        assert strict.chat("hello", max_tokens=4).status == 200


def test_a_refused_stream_is_plain_json(server):
    reply = server.chat("hello " * 9000, stream=True)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"


def test_request_ids_differ_and_are_passed_on(server):
    own = server.chat(max_tokens=1).headers["x-request-id"]
    other = server.chat(max_tokens=1).headers["x-request-id"]
    assert own and other and own != other
    passed = server.request("GET", "/v1/models", headers={"x-request-id": "trace-me-17"})
    assert passed.headers["x-request-id"] == "trace-me-17"


def test_a_prefix_is_reused(server):
    text = "The quick brown fox jumps over the lazy dog and runs away from the bear. " * 8
    server.chat(text, max_tokens=1)
    again = server.chat(text, max_tokens=4).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 32
    assert again["usage"]["prompt_tokens"] > again["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_stream_consists_of_data_lines_that_end_with_lf(server):
    events = sse_events(server.chat(stream=True, max_tokens=3).body)
    assert events[-1] == "[DONE]" and len(events) >= 4


def test_a_stop_reason_names_what_ended_the_answer(server):
    text = server.chat("Count from one to ten.", max_tokens=20).json()["choices"][0]["message"]["content"]
    stop = text[4:7]
    for stream in (False, True):
        reply = server.chat("Count from one to ten.", max_tokens=20, stop=["zzz", stop], stream=stream)
        choice = chunks_of(reply)[-1]["choices"][0] if stream else reply.json()["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop, choice
    kept = server.chat("Count from one to ten.", max_tokens=20, stop=[stop], include_stop_str_in_output=True).json()["choices"][0]
    assert kept["message"]["content"] == text[: text.index(stop) + len(stop)]
    assert server.chat(max_tokens=2).json()["choices"][0].get("stop_reason") is None
    ids = server.chat("Count from one to ten.", max_tokens=20, return_token_ids=True).json()["choices"][0]["token_ids"]
    by_id = server.chat("Count from one to ten.", max_tokens=20, stop_token_ids=[ids[3]]).json()["choices"][0]
    assert by_id["stop_reason"] == ids[3] and by_id["finish_reason"] == "stop"


def test_token_ids_are_those_of_prompt_and_answer(server):
    content = "Name three rivers."
    whole = server.chat(content, return_token_ids=True).json()
    conversation = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    assert whole["prompt_token_ids"] == server.post("/tokenize", conversation).json()["tokens"]
    ids = whole["choices"][0]["token_ids"]
    text = server.post("/detokenize", {"model": MODEL, "tokens": ids}).json()["prompt"]
    assert text.startswith(whole["choices"][0]["message"]["content"])
    chunks = chunks_of(server.chat(content, return_token_ids=True, stream=True))
    assert [id for chunk in chunks for choice in chunk["choices"] for id in choice.get("token_ids") or []] == ids
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [whole["prompt_token_ids"]]
    assert "token_ids" not in server.chat(content).json()["choices"][0]


def test_usage_can_come_with_every_chunk(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of(server.chat("Name a fruit.", stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[1:]]
    assert counts == sorted(counts) and counts[-1] >= 1 and chunks[-1]["choices"] == []
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks[1:]} == {chunks[-1]["usage"]["prompt_tokens"]}
    alone = server.chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert alone.error["param"] == "stream_options.continuous_usage_stats"


def test_obfuscation_hides_the_length_of_a_text(server):
    chunks = chunks_of(server.chat("Name a fruit.", stream=True, stream_options={"include_obfuscation": True}))
    sizes = {len(chunk["obfuscation"]) + len((chunk["choices"][0]["delta"].get("content") or "").encode()) for chunk in chunks}
    assert sizes == {32}
    plain = chunks_of(server.chat("Name a fruit.", stream=True, stream_options={"include_obfuscation": False}))
    assert all("obfuscation" not in chunk for chunk in plain)


def test_a_request_may_bring_its_own_template_if_the_server_allows_it():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "LIMITS__REQUEST_TEMPLATES": "true"}) as server:
        brings_its_own_template(server)


def brings_its_own_template(server):
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    messages = [{"role": "user", "content": "Hi <|im_start|>"}]
    body = {"model": MODEL, "messages": messages, "chat_template": template}
    assert server.post("/apply-template", body).json()["prompt"] == "[user] Hi <|im_start|>\n[assistant]"
    count = server.post("/tokenize", body).json()["count"]
    reply = server.chat(messages=messages, chat_template=template)
    assert reply.status == 200 and reply.json()["usage"]["prompt_tokens"] == count
    for wrong in ("{% for m in messages %}", "{{ raise_exception('no') }}", "{% for i in range(999999999) %}x{% endfor %}", "x" * 100_000):
        refused = server.chat(chat_template=wrong)
        assert refused.status == 400, refused.body
    assert server.chat(chat_template="{% if").error["param"] == "chat_template"


def test_legacy_functions_get_a_legacy_function_call(coder):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    functions = [{"name": "get_weather", "parameters": parameters}]
    fields = {"model": CODER, "functions": functions, "function_call": {"name": "get_weather"}, "max_tokens": 60}
    answer = coder.chat("What is the weather in Oslo?", **fields).json()["choices"][0]
    call = answer["message"]["function_call"]
    assert answer["finish_reason"] == "function_call" and call["name"] == "get_weather" and "city" in json.loads(call["arguments"])
    assert "tool_calls" not in answer["message"]
    chunks = chunks_of(coder.chat("What is the weather in Oslo?", stream=True, **fields))
    deltas = [chunk["choices"][0]["delta"].get("function_call") for chunk in chunks]
    assert [delta["name"] for delta in deltas if delta and delta.get("name")] == ["get_weather"]
    assert "".join(delta["arguments"] for delta in deltas if delta) == call["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    messages = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        answer["message"],
        {"role": "function", "name": "get_weather", "content": "5 degrees and rain"},
    ]
    told = coder.chat(messages=messages, **{**fields, "function_call": "none"}).json()["choices"][0]
    assert told["finish_reason"] != "function_call" and told["message"]["content"] and "function_call" not in told["message"]


def test_only_allowed_tools_are_called(coder):
    def tool(name):
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}

    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("get_time")]}}
    fields = {"model": CODER, "tools": [tool("get_weather"), tool("get_time")], "max_tokens": 60}
    answer = coder.chat("What is the weather?", tool_choice=choice, **fields).json()["choices"][0]
    assert {call["function"]["name"] for call in answer["message"]["tool_calls"]} == {"get_time"}


def test_a_required_call_is_not_made_twice(coder):
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    fields = {"model": CODER, "tools": [tool], "tool_choice": "required", "max_tokens": 200}
    answer = coder.chat("What time is it?", **fields).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and len(answer["message"]["tool_calls"]) == 1
    chunks = chunks_of(coder.chat("What time is it?", stream=True, **fields))
    starts = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or [] if call.get("id")]
    assert len(starts) == 1 and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.fixture(scope="module")
def coder():
    with Server({"SERVER__DEFAULT_MODELS": CODER, "ENGINE__KV_TOKENS": "4096"}) as running:
        yield running
