"""Background responses: queued, polled, followed from any event and cancelled. Also truncation, input items and token counts."""

import json
import time

import pytest
from harness import MODEL, Server, cli, wait_until

CONFIG = {"SERVER__DEFAULT_MODELS": MODEL, "SERVER__ON_DEMAND": "false", "ENGINE__KV_TOKENS": "8192"}
ENDED = {"completed", "incomplete", "failed", "cancelled"}


def begin(server, input="Count to ten.", **fields):
    body = {"model": MODEL, "input": input, "temperature": 0, "max_output_tokens": 24, "background": True, **fields}
    return server.post("/v1/responses", body)


def get(server, id: str, query: str = "") -> dict:
    return server.get(f"/v1/responses/{id}{query}").json()


def ended(server, id: str) -> dict:
    wait_until(lambda: get(server, id)["status"] in ENDED, 60, "the response ends")
    return get(server, id)


def events_of(reply) -> list[dict]:
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream"), reply.body
    return [json.loads(block.split("\ndata: ")[1]) for block in reply.body.decode().split("\n\n") if block.startswith("event: ")]


def test_a_response_is_queued_and_comes_to_the_same_end(server):
    queued = begin(server).json()
    assert queued["status"] == "queued" and queued["background"] is True and queued["output"] == []
    done = ended(server, queued["id"])
    plain = begin(server, background=False).json()
    assert done["status"] == plain["status"] and done["id"] == queued["id"] and done["created_at"] == queued["created_at"]
    assert done["output"][0]["content"] == plain["output"][0]["content"] and done["usage"]["output_tokens"] > 0
    follow = server.post("/v1/responses", {"model": MODEL, "input": "And?", "previous_response_id": done["id"], "max_output_tokens": 4})
    assert follow.status == 200


def test_events_are_followed_from_any_number(server):
    events = events_of(begin(server, stream=True, ignore_eos=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.incomplete" and kinds.count("response.output_text.delta") > 3
    id = events[0]["response"]["id"]
    assert events_of(server.get(f"/v1/responses/{id}?stream=true")) == events
    assert events_of(server.get(f"/v1/responses/{id}?stream=true&starting_after=4")) == events[5:]
    assert events_of(server.get(f"/v1/responses/{id}?stream=true&starting_after={len(events) - 1}")) == []
    for query, param in [(f"stream=true&starting_after={len(events)}", "starting_after"), ("starting_after=1", "starting_after"),
                         ("stream=perhaps", "stream"), ("colour=red", "colour"), ("include=nothing", "include")]:
        reply = server.get(f"/v1/responses/{id}?{query}")
        assert reply.status == 400 and reply.error["param"] == param, reply.body


def test_a_running_response_is_cancelled_and_nothing_follows_it(server):
    id = begin(server, max_output_tokens=2000, ignore_eos=True).json()["id"]
    wait_until(lambda: get(server, id)["status"] == "in_progress", 20, "the response runs")
    early = server.post("/v1/responses", {"model": MODEL, "input": "x", "previous_response_id": id})
    assert early.status == 400 and "has not ended" in early.error["message"]
    cancelled = server.request("POST", f"/v1/responses/{id}/cancel")
    assert cancelled.status == 200 and cancelled.json()["status"] == "cancelled"
    assert get(server, id)["status"] == "cancelled"
    assert server.request("POST", f"/v1/responses/{id}/cancel").json()["status"] == "cancelled"
    late = server.post("/v1/responses", {"model": MODEL, "input": "x", "previous_response_id": id})
    assert late.error["code"] == "previous_response_not_found"
    wait_until(lambda: server.gauge("num_requests_running") == 0, 10, "the engine is idle")
    plain = begin(server, background=False, max_output_tokens=2).json()["id"]
    assert server.request("POST", f"/v1/responses/{plain}/cancel").status == 400
    assert server.get(f"/v1/responses/{plain}?stream=true").error["param"] == "stream"
    assert server.request("POST", "/v1/responses/resp_nope/cancel").status == 404


def test_a_running_response_is_deleted(server):
    id = begin(server, max_output_tokens=2000, ignore_eos=True).json()["id"]
    assert server.request("DELETE", f"/v1/responses/{id}").json()["deleted"] is True
    assert server.get(f"/v1/responses/{id}").status == 404
    wait_until(lambda: server.gauge("num_requests_running") == 0, 10, "the engine is idle")


def test_a_wrong_request_is_refused_at_once_or_fails_later(server):
    assert begin(server, store=False).error["param"] == "background"
    assert begin(server, model="gpt-9").status == 404
    assert begin(server, previous_response_id="resp_nope").error["code"] == "previous_response_not_found"
    failed = ended(server, begin(server, input="word " * 9000).json()["id"])
    assert failed["status"] == "failed" and "context" in failed["error"]["message"] and failed["output"] == []


def test_responses_in_the_background_are_bounded():
    with Server(CONFIG | {"STORAGE__MAX_BACKGROUND": "2"}) as server:
        ids = [begin(server, max_output_tokens=2000, ignore_eos=True).json()["id"] for _ in range(2)]
        reply = begin(server)
        assert reply.status == 429 and "storage.max_background" in reply.error["message"]
        for id in ids:
            server.request("POST", f"/v1/responses/{id}/cancel")
        assert begin(server).status == 200
        time.sleep(0.1)


def test_input_tokens_are_those_that_the_answer_counts(server):
    body = {"model": MODEL, "input": "How many are these?", "instructions": "Be brief."}
    counted = server.post("/v1/responses/input_tokens", body).json()
    answer = server.post("/v1/responses", body | {"max_output_tokens": 2}).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}
    more = {"model": MODEL, "input": "And now?", "previous_response_id": answer["id"]}
    counted = server.post("/v1/responses/input_tokens", more).json()["input_tokens"]
    assert counted == server.post("/v1/responses", more | {"max_output_tokens": 2}).json()["usage"]["input_tokens"]
    assert server.post("/v1/responses/input_tokens", {"model": MODEL}).error["param"] == "input"


def test_input_items_are_kept_with_ids(server):
    input = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"type": "message", "role": "user", "content": "c"}]
    id = server.post("/v1/responses", {"model": MODEL, "input": input, "max_output_tokens": 2}).json()["id"]
    page = server.get(f"/v1/responses/{id}/input_items?order=asc").json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["a", "b", "c"] and not page["has_more"]
    assert [item["content"][0]["type"] for item in page["data"]] == ["input_text", "output_text", "input_text"]
    newest = server.get(f"/v1/responses/{id}/input_items?limit=1").json()
    assert newest["data"] == page["data"][2:] and newest["has_more"]
    again = {"model": MODEL, "input": [{"type": "item_reference", "id": page["data"][0]["id"]}], "max_output_tokens": 2}
    assert server.post("/v1/responses", again).status == 200
    assert server.get("/v1/responses/resp_nope/input_items").status == 404


@pytest.fixture
def short():
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__CONTEXT": "2048"}) as running:
        yield running


def test_truncation_drops_the_oldest_turns_only_if_asked(short):
    turn = [{"role": "user", "content": "word " * 400}, {"role": "assistant", "content": "Yes."}]
    input = [{"role": "system", "content": "Answer in English."}, *turn * 10, {"role": "user", "content": "What is the capital of France?"}]
    body = {"model": MODEL, "input": input, "max_output_tokens": 8, "temperature": 0}
    assert short.post("/v1/responses", body).error["code"] == "context_length_exceeded"
    answer = short.post("/v1/responses", body | {"truncation": "auto"})
    assert answer.status == 200 and answer.json()["truncation"] == "auto" and answer.json()["usage"]["input_tokens"] > 400
    assert short.post("/v1/responses", body | {"truncation": "some"}).error["param"] == "truncation"
    one = body | {"truncation": "auto", "input": "word " * 3000}
    assert short.post("/v1/responses", one).error["code"] == "context_length_exceeded"


def test_settings_are_echoed_and_obfuscation_pads_events(server):
    given = {"max_tool_calls": 3, "prompt_cache_key": "k", "safety_identifier": "s"}
    answer = server.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 2, **given}).json()
    assert {key: answer[key] for key in given} == given
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 6, "stream": True}
    padded = events_of(server.post("/v1/responses", body | {"stream_options": {"include_obfuscation": True}}))
    deltas = [event for event in padded if event["type"].endswith(".delta")]
    assert deltas and all((len(event["delta"].encode()) + len(event["obfuscation"])) % 16 == 0 for event in deltas)
    assert not any("obfuscation" in event for event in events_of(server.post("/v1/responses", body)))
    assert server.post("/v1/responses/compact", {"model": MODEL}).error["code"] == "unsupported_parameter"


WRONG = {
    "max_tool_calls": 0,
    "prompt_cache_key": "x" * 600,
    "conversation": 7,
    "background": "yes",
    "stream_options": {"include_obfuscation": True},
}


@pytest.mark.parametrize("field, value", WRONG.items())
def test_a_wrong_value_is_named(server, field, value):
    reply = server.post("/v1/responses", {"model": MODEL, "input": "Hi", field: value})
    assert reply.status == 400 and reply.error["param"] == field


def test_a_response_in_the_background_counts_against_its_key(tmp_path):
    env = {"AUTH__KEYS_FILE": str(tmp_path / "keys.toml")}
    add = lambda name: cli("keys", "add", name, "--max-concurrent", "1", env=env).stdout.split()[-1]
    ann, bob = ({"authorization": f"Bearer {add(name)}"} for name in ["ann", "bob"])
    body = {"model": MODEL, "input": "Count.", "max_output_tokens": 4}
    with Server(CONFIG | env) as server:
        # The context bounds its output, which takes far longer than this test.
        long = body | {"background": True, "max_output_tokens": 100_000, "input": "word " * 2000}
        id = server.post("/v1/responses", long, headers=ann).json()["id"]
        refused = server.post("/v1/responses", body, headers=ann)
        assert refused.status == 429 and "at once" in refused.error["message"], refused.body
        assert server.post("/v1/responses", body, headers=bob).status == 200
        assert server.get(f"/v1/responses/{id}", headers=ann).json()["status"] in ("queued", "in_progress")
        assert server.request("POST", f"/v1/responses/{id}/cancel", headers=ann).json()["status"] == "cancelled"
        wait_until(lambda: server.post("/v1/responses", body, headers=ann).status == 200, 10, "the cancelled response no longer counts")
