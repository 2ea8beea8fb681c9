"""Small endpoints and fields of other servers: vLLM's, llama.cpp's, and those of OpenAI that are refused by name."""

import json
import threading

import pytest
from harness import CODER, MODEL, Server, chunks_of, open_stream, sse_events, wait_until

TURNS = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": "The longest"}]


@pytest.fixture(scope="module")
def coder():
    """A server with a model that fills in gaps, and one that is not loaded."""
    with Server({"SERVER__DEFAULT_MODELS": f"{CODER},{MODEL}", "ENGINE__KV_TOKENS": "8192"}) as running:
        yield running


@pytest.mark.parametrize("method, path", [
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/audio/translations"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/images/edits"),
    ("POST", "/v1/moderations"),
    ("GET", "/v1/fine_tuning/jobs"),
    ("GET", "/v1/videos"),
    ("POST", "/classify"),
    ("POST", "/v1/classify"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/completions/render"),
    ("POST", "/sleep?level=1"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/slots/0?action=save"),
])
def test_what_the_server_does_not_do_is_refused_by_name(server, method, path):
    reply = server.request(method, path, {"model": MODEL, "input": "Hi"} if method == "POST" else None)
    assert reply.status == 501, (path, reply.body)
    assert reply.error["code"] == "not_implemented" and "is not supported: this server does not" in reply.error["message"]
    assert reply.headers["x-should-retry"] == "false", "the SDK does not try again"


def test_lm_studios_own_api_is_refused_in_ollamas_words(server):
    for method, path in (("GET", "/api/v0/models"), ("POST", "/api/v0/chat/completions"), ("POST", "/api/v1/chat")):
        reply = server.request(method, path, {} if method == "POST" else None)
        assert reply.status == 501 and "LM Studio's own API" in reply.json()["error"], (path, reply.body)


def test_probes_of_vllm_and_sagemaker_are_answered(server):
    for method in ("GET", "POST", "HEAD"):
        assert server.request(method, "/ping").status == 200
    assert server.get("/v1/health").json() == server.get("/health").json() == {"status": "ok"}
    assert server.get("/load").json() == {"server_load": 0}
    long = open_stream(server, "/v1/completions", {"model": MODEL, "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True})
    wait_until(lambda: server.get("/load").json() == {"server_load": 1}, 10, "the request counts")
    long.close()
    wait_until(lambda: server.get("/load").json() == {"server_load": 0}, 10, "the request has ended")


def test_one_path_takes_the_bodies_of_all_endpoints(server):
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
    told = server.post("/invocations", chat).json()
    assert told["object"] == "chat.completion"
    assert told["choices"] == server.post("/v1/chat/completions", chat).json()["choices"]
    assert chunks_of(server.post("/invocations", {**chat, "stream": True}))[-1]["object"] == "chat.completion.chunk"
    text = server.post("/invocations", {"model": MODEL, "prompt": "Hi", "max_tokens": 2, "messages": None})
    assert text.json()["object"] == "text_completion", "a null field chooses nothing"
    assert server.post("/invocations", {"model": MODEL, "input": "Hi"}).json()["data"][0]["object"] == "embedding"
    ranked = server.post("/invocations", {"model": MODEL, "query": "a", "documents": ["b", "c"]}).json()
    assert len(ranked["results"]) == 2
    assert len(server.post("/invocations", {"model": MODEL, "text_1": "a", "text_2": ["b"]}).json()["data"]) == 1
    for body in ({"model": MODEL}, [], b"{", b""):
        reply = server.post("/invocations", body)
        assert reply.status == 400, (body, reply.body)
        assert reply.error["type"] == "invalid_request_error"
    packed = server.post("/invocations", b"x", headers={"content-encoding": "gzip"})
    assert packed.status == 415 and "compressed" in packed.error["message"]


def test_vectors_come_in_vllms_words_too(server):
    asked = {"model": MODEL, "input": ["a river", "a mountain"]}
    pooled, embedded = server.post("/pooling", asked).json(), server.post("/v1/embeddings", asked).json()
    assert (pooled["object"], pooled["data"][0]["object"], pooled["usage"]) == ("list", "pooling", embedded["usage"])
    assert [item["data"] for item in pooled["data"]] == [item["embedding"] for item in embedded["data"]]


def test_a_vector_keeps_its_length_if_the_request_says_so(server):
    def vector(**fields):
        return server.post("/v1/embeddings", {"model": MODEL, "input": "a river", **fields}).json()["data"][0]["embedding"]

    length = lambda values: sum(value * value for value in values) ** 0.5
    scaled, own = vector(), vector(normalize=False)
    assert abs(length(scaled) - 1) < 1e-4 and abs(length(own) - 1) > 1e-2
    assert all(abs(one - other / length(own)) < 1e-5 for one, other in zip(scaled, own))
    assert vector(normalize=True) == scaled


def test_a_conversation_has_a_vector(server):
    messages = [{"role": "user", "content": "a river"}]
    told = server.post("/v1/embeddings", {"model": MODEL, "messages": messages}).json()
    prompt = server.post("/apply-template", {"model": MODEL, "messages": messages, "add_generation_prompt": False}).json()["prompt"]
    same = server.post("/v1/embeddings", {"model": MODEL, "input": prompt}).json()
    assert told["data"] == same["data"] and told["usage"] == same["usage"]
    both = server.post("/v1/embeddings", {"model": MODEL, "messages": messages, "input": "a"})
    assert both.status == 400 and both.error["param"] == "input"
    long = server.post("/v1/embeddings", {"model": MODEL, "messages": [{"role": "user", "content": "word " * 20_000}]})
    assert long.error["code"] == "context_length_exceeded" and long.error["param"] == "messages"


def test_an_answer_begins_with_the_last_message_if_the_request_says_so(server):
    fields = {"messages": TURNS, "continue_final_message": True, "max_tokens": 4}
    plain, echoed = server.chat(**fields).json(), server.chat(**fields, echo=True).json()
    text = plain["choices"][0]["message"]["content"]
    assert echoed["choices"][0]["message"]["content"] == TURNS[-1]["content"] + text
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"], "the echo is not generated"
    chunks = chunks_of(server.chat(**fields, echo=True, stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TURNS[-1]["content"] + text
    assert server.chat(echo=True).json()["choices"] == server.chat().json()["choices"], "the last message is the user's"
    assert server.chat(echo="yes").error["param"] == "echo"


def test_tokens_are_named_by_their_ids(server):
    fields = {"max_tokens": 2, "ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    choice = server.chat(logprobs=True, top_logprobs=2, **fields).json()["choices"][0]
    names = [f"token_id:{number}" for number in choice["token_ids"]]
    assert [token["token"] for token in choice["logprobs"]["content"]] == names
    assert all(top["token"].startswith("token_id:") for token in choice["logprobs"]["content"] for top in token["top_logprobs"])
    choice = server.complete(logprobs=2, echo=True, **fields).json()["choices"][0]
    ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == [f"token_id:{number}" for number in ids]
    assert choice["logprobs"]["tokens"][1] in choice["logprobs"]["top_logprobs"][1]
    chunks = chunks_of(server.complete(logprobs=0, stream=True, **fields))
    streamed = [token for chunk in chunks for token in (chunk["choices"][0]["logprobs"] or {}).get("tokens", [])]
    assert streamed == [f"token_id:{number}" for number in choice["token_ids"]]


def test_a_prompt_is_not_cut_to_more_tokens_than_the_context_holds(server):
    context = server.get("/tokenizer_info").json()["max_model_len"]
    for path, fields in (
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": TURNS[:1], "max_tokens": 1}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ):
        for most in (context + 1, 2**31):
            reply = server.post(path, {"model": MODEL, **fields, "truncate_prompt_tokens": most})
            assert reply.status == 400 and reply.error["param"] == "truncate_prompt_tokens", (path, most, reply.body)
            assert f"more than the model's context of {context}" in reply.error["message"]
        for most in (-1, context):
            reply = server.post(path, {"model": MODEL, **fields, "truncate_prompt_tokens": most})
            assert reply.status == 200, (path, most, reply.body)


def test_a_role_of_the_clients_own_reaches_a_template_that_shows_it(server, coder):
    messages = [*TURNS[:1], {"role": "critic", "content": "Be strict."}]
    prompt = server.post("/apply-template", {"model": MODEL, "messages": messages}).json()["prompt"]
    assert "critic\nBe strict." in prompt
    assert server.chat(messages=messages).status == 200
    wrong = {"usr": "did you mean `user`?", "Assistant": "did you mean `assistant`?", "": "must be", "x" * 65: "must be"}
    for role, words in wrong.items():
        reply = server.chat(messages=[{"role": role, "content": "Hi"}])
        assert reply.status == 400 and reply.error["param"] == "messages[0].role" and words in reply.error["message"], reply.body
    refused = coder.post("/v1/chat/completions", {"model": CODER, "messages": messages, "max_tokens": 1})
    assert refused.status == 400 and "does not show a message's role `critic`" in refused.error["message"], refused.body


def test_the_progress_of_a_prompt_comes_by_llamacpps_name_too(server):
    long = [{"role": "user", "content": "a river and a mountain " * 400}]
    chunks = chunks_of(server.chat(messages=long, stream=True, return_progress=True, max_tokens=1))
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert told and set(told[0]) == {"total", "cached", "cache", "processed", "time_ms"}
    assert all(one["cached"] == one["cache"] <= one["processed"] <= one["total"] for one in told)
    whole = server.chat(return_progress=True)
    assert whole.status == 200 and "penstock-ignored-fields" not in whole.headers
    assert server.chat(return_progress=1).error["param"] == "return_progress"


def test_a_schema_may_stand_beside_the_type_of_a_format(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    reply = server.chat(response_format={"type": "json_schema", "schema": schema}, max_tokens=40)
    assert reply.status == 200 and set(json.loads(reply.json()["choices"][0]["message"]["content"])) == {"a"}
    wrong = server.chat(response_format={"type": "json_schema", "schema": 5})
    assert wrong.error["param"] == "response_format.schema"


PLAIN = {"prompt": "The capital of France is", "n_predict": 12, "temperature": 0}


def completed(server, **fields):
    reply = server.post("/completion", {**PLAIN, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


def test_a_text_is_continued_in_llamacpps_words(server):
    told = completed(server)
    same = server.complete(PLAIN["prompt"], max_tokens=12).json()
    assert told["content"] == same["choices"][0]["text"] and told["model"] == MODEL, "without a name, the first model"
    assert (told["index"], told["stop"], told["truncated"], told["tokens"]) == (0, True, False, [])
    assert told["tokens_evaluated"] == same["usage"]["prompt_tokens"] and told["tokens_predicted"] == same["usage"]["completion_tokens"]
    assert told["stop_type"] == ("limit" if same["choices"][0]["finish_reason"] == "length" else "eos")
    assert told["has_new_line"] == ("\n" in told["content"])
    assert told["tokens_cached"] + told["timings"]["prompt_n"] == told["tokens_evaluated"]
    settings = told["generation_settings"]
    assert (settings["temperature"], settings["n_predict"], settings["stream"]) == (0, 12, False)
    seeded = completed(server, seed=42, temperature=1.0)
    assert seeded["generation_settings"]["seed"] == 42 and seeded["content"] == completed(server, seed=42, temperature=1.0)["content"]


def test_a_continued_text_streams_with_its_tokens(server):
    whole = completed(server, return_tokens=True)
    *pieces, last = [json.loads(event) for event in sse_events(server.post("/completion", {**PLAIN, "stream": True}).body)]
    assert not any(piece["stop"] for piece in pieces) and last["stop"] and "timings" not in pieces[0]
    assert "".join(piece["content"] for piece in [*pieces, last]) == whole["content"]
    assert sum((piece["tokens"] for piece in [*pieces, last]), []) == whole["tokens"]
    assert len(whole["tokens"]) - whole["tokens_predicted"] == (whole["stop_type"] == "eos"), "the end itself is not counted"
    counted = [piece["tokens_predicted"] for piece in [*pieces, last]]
    assert counted == sorted(counted) and counted[-1] == whole["tokens_predicted"]
    texts = server.post("/detokenize", {"model": MODEL, "tokens": whole["tokens"]}).json()["content"]
    assert texts.strip().startswith(whole["content"].strip())


def test_prompts_come_as_texts_or_ids_and_several_at_once(server):
    ids = server.post("/tokenize", {"model": MODEL, "prompt": PLAIN["prompt"]}).json()["tokens"]
    alone = completed(server)["content"]
    assert completed(server, prompt=ids)["content"] == completed(server, prompt=[PLAIN["prompt"]])["content"] == alone
    both = completed(server, prompt=[PLAIN["prompt"], ids, "Once upon a time"])
    assert [one["index"] for one in both] == [0, 1, 2] and both[0]["content"] == both[1]["content"] == alone != both[2]["content"]
    events = [json.loads(event) for event in sse_events(server.post("/completion", {**PLAIN, "prompt": ["A", "B"], "stream": True}).body)]
    for index, alone in enumerate(completed(server, prompt=["A", "B"])):
        assert "".join(event["content"] for event in events if event["index"] == index) == alone["content"]
        assert [event["stop"] for event in events if event["index"] == index].count(True) == 1


def test_probabilities_stops_and_penalties_have_llamacpps_names(server):
    told = completed(server, n_probs=3, return_tokens=True)
    probabilities = told["completion_probabilities"]
    assert [one["id"] for one in probabilities] == told["tokens"][:told["tokens_predicted"]]
    assert "".join(one["token"] for one in probabilities) == told["content"]
    for one in probabilities:
        assert len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["id"] == one["id"], "greedy takes the likeliest"
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] < 0 and bytes(one["bytes"]).decode() == one["token"]
    word = told["content"].split()[0]
    stopped = completed(server, stop=[word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word) and word not in stopped["content"]
    first = told["tokens"][0]
    assert completed(server, logit_bias=[[first, False]], return_tokens=True)["tokens"][0] != first
    assert completed(server, repeat_penalty=1.5)["generation_settings"]["repeat_penalty"] == 1.5
    shaped = completed(server, json_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, n_predict=60)
    assert "a" in json.loads(shaped["content"])
    assert completed(server, n_predict=0)["content"] == ""
    few = completed(server, response_fields=["content", "generation_settings/n_predict", "timings/nothing"])
    assert few == {"content": told["content"], "n_predict": 12}


def test_a_template_is_applied_without_a_model(server):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert server.post("/apply-template", body).json() == server.post("/apply-template", {"model": MODEL, **body}).json()


def test_what_llamacpps_clients_send_is_accepted_or_refused_by_name(server):
    sent = {"cache_prompt": True, "samplers": ["top_k"], "n_keep": 0, "id_slot": 0, "n_indent": 0, "t_max_predict_ms": 1000}
    sent |= {"typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0.0, "tfs_z": 1.0, "repeat_last_n": 64}
    reply = server.post("/completion", {**PLAIN, **sent})
    assert reply.status == 200, reply.body
    assert {"id_slot", "n_indent"} <= set(reply.headers["penstock-ignored-fields"].split(", "))
    for fields, param in (
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": []}}, "prompt"),
        ({"n_predict": -5}, "n_predict"),
        ({"mirostat": 2}, "mirostat"),
        ({"n_probs": 99}, "n_probs"),
        ({"n_probs": 2, "post_sampling_probs": True}, "post_sampling_probs"),
        ({"logit_bias": [["word", 1]]}, "logit_bias"),
        ({"prompt": "word " * 100_000}, "prompt"),
        ({"grammar": "root ::= ("}, "grammar"),
    ):
        reply = server.post("/completion", {**PLAIN, **fields})
        assert reply.status == 400 and reply.error["param"] == param, (fields, reply.body[:300])


def test_texts_are_embedded_in_llamacpps_words(server):
    told = server.post("/embedding", {"content": ["Hi", "A river"]}).json()
    same = server.post("/v1/embeddings", {"model": MODEL, "input": ["Hi", "A river"]}).json()["data"]
    assert [one["index"] for one in told] == [0, 1]
    assert [one["embedding"] for one in told] == [[one["embedding"]] for one in same]
    raw = server.post("/embedding", {"input": "Hi", "embd_normalize": -1}).json()[0]["embedding"][0]
    assert abs(sum(value * value for value in raw) - 1) > 1e-3
    assert server.post("/embedding", {"content": []}).error["param"] == "content"
    ranked = {"model": MODEL, "query": "a", "documents": ["b", "c"]}
    texts = server.post("/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True}).json()
    same = server.post("/v1/rerank", ranked).json()["results"]
    assert [(one["index"], one["score"]) for one in texts] == [(one["index"], one["relevance_score"]) for one in same]
    assert [one["text"] for one in texts] == ["bc"[one["index"]] for one in texts]
    assert server.post("/reranking", ranked).json()["results"] == server.post("/v1/rerank", ranked).json()["results"]


GAP = {"model": CODER, "input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "temperature": 0, "n_predict": 8}


def test_a_gap_is_filled_in_llamacpps_words(coder):
    told = coder.post("/infill", GAP).json()
    same = coder.post("/v1/completions", {
        "model": CODER, "prompt": GAP["input_prefix"], "suffix": GAP["input_suffix"], "temperature": 0, "max_tokens": 8,
    }).json()
    assert told["content"] == same["choices"][0]["text"]
    assert (told["stop"], told["model"], told["index"], told["truncated"]) == (True, CODER, 0, False)
    assert told["tokens_evaluated"] == same["usage"]["prompt_tokens"] and told["tokens_predicted"] == same["usage"]["completion_tokens"]
    assert told["stop_type"] == ("limit" if same["choices"][0]["finish_reason"] == "length" else "eos")
    times = told["timings"]
    assert times["predicted_n"] == told["tokens_predicted"] and times["prompt_n"] + times["cache_n"] == told["tokens_evaluated"]
    assert times["predicted_ms"] > 0 and times["predicted_per_second"] > 0
    # The first model of the server, and a field that editors send.
    unnamed = coder.post("/infill", {**GAP, "model": None, "samplers": ["top_k", "infill"], "cache_prompt": True})
    assert unnamed.json()["content"] == told["content"] and "penstock-ignored-fields" not in unnamed.headers


def test_a_gap_is_filled_in_a_stream(coder):
    whole = coder.post("/infill", GAP).json()
    *pieces, last = [json.loads(event) for event in sse_events(coder.post("/infill", {**GAP, "stream": True}).body)]
    assert pieces and not any(piece["stop"] for piece in pieces) and last["stop"] is True
    assert "".join(piece["content"] for piece in [*pieces, last]) == whole["content"]
    assert last["stop_type"] == whole["stop_type"] and "timings" not in pieces[0]


def test_other_files_and_the_beginning_of_the_gap_reach_the_model(coder):
    count = lambda **fields: coder.post("/infill", {**GAP, "n_predict": 0, **fields}).json()["tokens_evaluated"]
    files = [{"filename": f"f{number}.py", "text": "import math\n" * 20} for number in range(4)]
    plain, one, four = count(), count(input_extra=files[:1]), count(input_extra=files)
    assert plain < one < four
    assert count(prompt="return a") > plain
    context = coder.get("/props").json()["default_generation_settings"]["n_ctx"]
    many = [{"filename": f"f{number}.py", "text": "import math\n" * 400} for number in range(100)]
    assert plain < count(input_extra=many) <= context, "what has no room is left out"
    stopped = coder.post("/infill", {**GAP, "n_predict": 40, "stop": ["a"]}).json()
    assert stopped["stop_type"] != "word" or stopped["stopping_word"] == "a"


def test_what_an_editor_sends_is_accepted(coder):
    """The fields of llama.vim and llama.vscode. Those that change nothing here are left out and named."""
    extra = [{"filename": "a.py", "text": "import math\n", "time": 1764300000}]
    sent = {"input_extra": extra, "prompt": "", "n_predict": 8, "stop": [], "top_k": 40, "top_p": 0.9, "stream": False}
    sent |= {"cache_prompt": True}
    sent |= {"samplers": ["top_k", "top_p", "infill"], "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000}
    reply = coder.post("/infill", {**GAP, **sent, "response_fields": ["content", "timings/prompt_n"], "id_slot": 0})
    assert reply.status == 200 and set(reply.json()) == {"content", "prompt_n"}, reply.body
    named = set(reply.headers["penstock-ignored-fields"].split(", "))
    assert {"n_indent", "t_max_predict_ms", "input_extra.time"} <= named
    warm = coder.post("/infill", {**GAP, "n_predict": 0, "samplers": []}).json()
    assert (warm["content"], warm["tokens_predicted"], warm["stop"]) == ("", 0, True)


def test_wrong_gaps_are_refused(coder):
    for fields, param in (
        ({"input_prefix": None, "input_suffix": None}, "input_prefix"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": "a"}, "input_extra"),
        ({"n_predict": -2}, "n_predict"),
        ({"temperature": 9}, "temperature"),
        ({"input_prefix": "word " * 100_000}, "input_prefix"),
        ({"model": MODEL}, "input_suffix"),
    ):
        reply = coder.post("/infill", {**GAP, **fields})
        assert reply.status == 400 and reply.error["param"] == param, (fields, reply.body[:300])


def test_settings_and_places_are_shown_in_llamacpps_words(coder):
    coder.post("/v1/completions", {"model": CODER, "prompt": "Hi", "max_tokens": 1})
    props = coder.get("/props").json()
    info = coder.get("/tokenizer_info").json()
    assert (props["model_alias"], props["is_sleeping"]) == (CODER, False)
    assert props["default_generation_settings"]["n_ctx"] == info["max_model_len"] and props["eos_token"] == info["eos_token"]
    assert "messages" in props["chat_template"] and props["build_info"].startswith("penstock-")
    slots = coder.get("/slots").json()
    assert len(slots) == props["total_slots"] and [slot["id"] for slot in slots] == list(range(len(slots)))
    assert not any(slot["is_processing"] for slot in slots)
    busy = open_stream(coder, "/v1/completions", {"model": CODER, "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True})
    wait_until(lambda: sum(slot["is_processing"] for slot in coder.get("/slots").json()) == 1, 10, "a place is busy")
    assert coder.get("/slots?fail_on_no_slot=1").status == 200
    busy.close()
    assert coder.get("/props?model=nope").error["code"] == "model_not_found"
    assert coder.request("POST", "/props", {}).status == 405


def test_looking_at_a_model_does_not_load_it(coder):
    assert coder.request("POST", "/models/unload", {"model": MODEL}).status == 200
    props = coder.get(f"/props?model={MODEL}").json()
    assert props["is_sleeping"] is True and "chat_template" not in props
    assert coder.get(f"/slots?model={MODEL}").json() == [] and coder.get(f"/slots?model={MODEL}&fail_on_no_slot=1").status == 503
    listed = {model["id"]: model["status"]["value"] for model in coder.get("/models").json()["data"]}
    assert listed[MODEL] == "unloaded"


def test_many_clients_at_all_doors_at_once(coder):
    """Each door answers as it does alone."""
    expected = coder.post("/infill", GAP).json()["content"]
    failures = []

    def visit():
        for _ in range(4):
            told = coder.post("/infill", GAP).json()["content"]
            fine = told == expected and coder.get("/props").status == coder.get("/slots").status == coder.get("/load").status == 200
            failures.extend([] if fine else [told])

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
