"""Fields that real clients send and Penstock does not have: all are accepted. They come from the clients' sources and documentation."""

import pytest
from harness import MODEL

HELLO = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
LLAMA = "/api/chat"
BODIES = {
    CHAT: {"messages": HELLO, "max_tokens": 2, "temperature": 0},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2, "temperature": 0},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2, "temperature": 0},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
    LLAMA: {"messages": HELLO, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hi"},
}

# By client: the endpoint, and the fields of the request.
REQUESTS = {
    "ollama-ai-provider-v2": (LLAMA, {"temperature": 0.7, "top_p": 0.9, "max_output_tokens": 5, "tool_choice": "auto", "think": False}),
    "Open WebUI": (
        CHAT,
        {
            "chat_id": "c",
            "id": "m",
            "session_id": "s",
            "parent_id": "p",
            "parent_message": {"id": "p"},
            "background_tasks": {"title_generation": True},
            "features": {"web_search": False, "memory": True},
            "variables": {"{{USER_NAME}}": "ada"},
            "model_item": {"id": "x"},
            "tool_ids": ["t"],
            "tool_servers": [{"url": "x"}],
            "filter_ids": ["f"],
            "params": {"temperature": 0.5},
            "files": [{"id": "f"}],
            "metadata": {"chat_id": "c"},
            "skill_ids": ["k"],
            "terminal_id": "t",
        },
    ),
    "Open WebUI to Ollama": (LLAMA, {"keep_alive": "5m", "metadata": {"task": "title_generation"}, "url_idx": 0, "user": "ada"}),
    "@openrouter/ai-sdk-provider": (
        CHAT,
        {
            "models": ["a/b", "c/d"],
            "usage": {"include": True},
            "plugins": [{"id": "web"}],
            "provider": {"order": ["x"], "allow_fallbacks": True},
            "debug": {"echo_upstream_body": True},
            "include_reasoning": True,
            "cache_control": {"type": "ephemeral"},
            "transforms": ["middle-out"],
            "route": "fallback",
            "reasoning": {"effort": "none", "enabled": True, "exclude": False},
            "stream_tokens": True,
        },
    ),
    "LiteLLM": (
        CHAT,
        {
            "custom_llm_provider": "openai",
            "litellm_metadata": {"a": 1},
            "mock_response": "x",
            "api_version": "1",
            "drop_params": True,
            "allowed_openai_params": ["x"],
            "num_retries": 2,
            "caching": False,
            "fallbacks": ["x"],
            "context_window_fallback_dict": {"a": "b"},
            "guardrails": ["g"],
            "extra_headers": {"a": "b"},
            "timeout": 60,
            "tags": ["t"],
            "user_api_key": "k",
            "litellm_session_id": "s",
        },
    ),
    "LobeChat": (CHAT, {"apiMode": "x", "enabledSearch": False, "enabledContextCaching": True, "preset": "x", "plugins": ["p"]}),
    "Cherry Studio": (
        CHAT,
        {
            "enable_thinking": False,
            "thinking": {"type": "disabled"},
            "thinking_budget": 100,
            "enable_search": False,
            "translation_options": {"a": 1},
        },
    ),
    "Continue": (CHAT, {"contextLength": 4096, "useLegacyCompletionsEndpoint": False, "completionOptions": {"a": 1}, "keepAlive": 1800}),
    "Continue to Ollama": (
        LLAMA,
        {"raw": False, "keep_alive": 1800, "options": {"num_ctx": 4096, "num_thread": 4, "num_gpu": 1, "num_predict": 8}},
    ),
    "Cline": (CHAT, {"thinking_budget_tokens": 1024, "taskId": "t", "incremental_output": True}),
    "Zed": (CHAT, {"thread_id": "t", "prompt_id": "p", "intent": "user_prompt", "thinking_allowed": True, "prompt_cache_key": "k"}),
    "Copilot": (
        CHAT,
        {
            "intent": True,
            "copilot_thread_id": "t",
            "nwo": "o/r",
            "snippy": {"enabled": False},
            "intent_threshold": 0.7,
            "intent_model": "m",
            "intent_tokenizer": "t",
            "copilot_references": [{"a": 1}],
            "extra": {"language": "python"},
        },
    ),
    "LibreChat": (CHAT, {"conversationId": "c", "parentMessageId": "p", "endpoint": "x", "endpointType": "x", "promptPrefix": "x"}),
    "Vercel AI SDK": (CHAT, {"providerOptions": {"a": 1}, "experimental_telemetry": {"a": 1}, "maxRetries": 2, "abortSignal": {"x": 1}}),
    "LangChain": (CHAT, {"ls_structured_output_format": {"a": 1}, "run_id": "r", "callbacks_config": {"a": 1}, "strict": True}),
    "DashScope": (CHAT, {"result_format": "message", "enable_search": False, "search_options": {"a": 1}, "vl_high_resolution_images": 1}),
    "Mistral": (CHAT, {"safe_prompt": False, "prompt_mode": "reasoning", "document_image_limit": 1}),
    "Azure": (CHAT, {"data_sources": [{"type": "x"}], "dataSources": [{"type": "x"}], "enhancements": {"ocr": {"enabled": True}}}),
    "llama.cpp's page": (
        CHAT,
        {
            "cache_prompt": True,
            "timings_per_token": True,
            "reasoning_format": "auto",
            "reasoning_control": True,
            "return_progress": True,
            "id_slot": -1,
            "n_keep": 0,
            "n_discard": 0,
            "t_max_predict_ms": -1,
            "post_sampling_probs": False,
            "backend_sampling": False,
            "dynatemp_range": 0,
            "dynatemp_exponent": 1,
            "xtc_probability": 0,
            "xtc_threshold": 0.1,
            "typ_p": 1,
            "repeat_last_n": -1,
            "dry_multiplier": 0,
            "dry_base": 1.75,
            "dry_allowed_length": 2,
            "dry_penalty_last_n": -1,
        },
    ),
    "SillyTavern": (
        "/v1/completions",
        {
            "api_server": "x",
            "api_type": "generic",
            "legacy_api": False,
            "truncation_length": 2048,
            "add_bos_token": True,
            "mirostat_mode": 0,
            "mirostat_tau": 5,
            "mirostat_eta": 0.1,
            "rep_pen": 1,
            "rep_pen_range": 0,
            "no_repeat_ngram_size": 0,
            "penalty_alpha": 0,
            "num_beams": 1,
            "length_penalty": 1,
            "guidance_scale": 1,
            "negative_prompt": "",
            "tfs": 1,
            "epsilon_cutoff": 0,
            "eta_cutoff": 0,
            "smoothing_factor": 0,
            "early_stopping": False,
            "sampler_order": [],
            "include_reasoning": True,
        },
    ),
    "Codex": ("/v1/responses", {"client_metadata": {"a": "b"}, "prompt_cache_key": "k", "originator": "codex", "service_tier": "auto"}),
    "Claude Code": (
        "/v1/messages",
        {"betas": ["x"], "context_hint": {"a": 1}, "research_preview_2026_02": "active", "metadata": {"user_id": "u", "app": "cli"}},
    ),
    "NVIDIA's embeddings": ("/v1/embeddings", {"input_type": "query", "truncate": "NONE", "embedding_type": "float"}),
    "Cohere's embeddings": ("/v1/embeddings", {"embedding_types": ["float"], "output_dimension": 8, "task": "retrieval"}),
    "Jina": ("/v1/rerank", {"return_embeddings": False, "instruction_type": "x", "overlap_tokens": 8, "priority_class": 1}),
    "LlamaIndex to Ollama": ("/api/generate", {"additional_kwargs": {"a": 1}, "json_mode": False, "request_timeout": 30}),
}
# Fields that clients add to messages.
OF_MESSAGES = {
    "id": "m",
    "timestamp": 1764300000,
    "model": "x",
    "modelName": "x",
    "models": ["x"],
    "phase": "final_answer",
    "thinking": "hm",
    "name": "ada",
    "type": "message",
    "date": "2026-11-28",
    "time": 5,
    "createdAt": "2026-11-28T00:00:00Z",
    "created_at": 5,
    "parentId": "p",
    "childrenIds": ["c"],
    "done": True,
    "status": "sent",
    "statusHistory": [{"a": 1}],
    "usage": {"a": 1},
    "sources": [{"a": 1}],
    "files": [{"a": 1}],
    "attachments": [{"a": 1}],
    "experimental_attachments": [{"a": 1}],
    "parts": [{"type": "text", "text": "x"}],
    "toolInvocations": [{"a": 1}],
    "metadata": {"a": 1},
    "providerOptions": {"a": 1},
    "provider_metadata": {"a": 1},
    "cache_control": {"type": "ephemeral"},
    "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
    "reasoning_signature": "x",
    "thinking_blocks": [{"a": 1}],
    "annotations": [{"a": 1}],
    "context": {"citations": []},
    "end_turn": True,
    "channel": "final",
    "recipient": "all",
    "weight": 1,
    "index": 0,
    "lang": "en",
    "topic": "x",
    "user_id": "u",
    "senderId": "u",
    "isVisible": True,
    "tokenCount": 5,
    "feedback": {"a": 1},
    "error": False,
}
OF_PARTS = {
    "id": "p",
    "state": "done",
    "providerMetadata": {"a": 1},
    "providerOptions": {"a": 1},
    "cache_control": {"type": "ephemeral"},
    "thought_signature": "x",
    "annotations": [{"a": 1}],
    "index": 0,
    "title": "x",
    "mimeType": "text/plain",
}
OF_TOOLS = {
    "cache_control": {"type": "ephemeral"},
    "copilot_cache_control": {"a": 1},
    "displayName": "x",
    "id": "t",
    "server": "s",
    "source": "mcp",
}
OF_FUNCTIONS = {
    "display_name": "x",
    "icons": [{"a": 1}],
    "is_async": False,
    "outputSchema": {"a": 1},
    "returns": {"type": "string"},
    "title": "x",
}


@pytest.fixture(scope="module", autouse=True)
def time_as_before(server):
    """Makes the model stay loaded. The last client's `keep_alive` would unload it, and other tests expect it to stay."""
    yield
    assert server.post("/api/generate", {"model": MODEL, "keep_alive": -1}).status == 200


def names(value) -> int:
    return sum(len(fields) for _, fields in REQUESTS.values()) + len(value)


def test_at_least_200_fields_are_covered():
    assert names({**OF_MESSAGES, **OF_PARTS, **OF_TOOLS, **OF_FUNCTIONS}) >= 200


@pytest.mark.parametrize("client", REQUESTS)
def test_extra_fields_of_requests_are_accepted(server, client):
    path, fields = REQUESTS[client]
    body = {"model": MODEL, **BODIES[path]}
    reply = server.post(path, {**body, **fields})
    assert reply.status == 200, reply.body
    for name, value in fields.items():
        assert server.post(path, {**body, name: value}).status == 200, name


@pytest.mark.parametrize("path", [CHAT, LLAMA, "/v1/messages"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_extra_fields_of_messages_are_accepted_and_change_nothing(server, path, role):
    def ask(**noted):
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "Name a river."}]
        messages = [{**turn, **noted} if turn["role"] == role else turn for turn in turns]
        greedy = {"options": {"num_predict": 2, "temperature": 0}} if path == LLAMA else {"temperature": 0}
        return server.post(path, {"model": MODEL, **BODIES[path], **greedy, "messages": messages})

    plain = ask().json()
    text = lambda answer: answer.get("choices") or answer.get("message") or answer["content"]
    for name, value in OF_MESSAGES.items():
        reply = ask(**{name: value})
        assert reply.status == 200, (name, reply.body)
        if name not in ("name", "thinking", "reasoning_details"):
            assert text(reply.json()) == text(plain), name
    assert ask(**OF_MESSAGES).status == 200


def test_extra_fields_of_parts_and_tools_are_accepted(server):
    function = {"name": "f", "parameters": {"type": "object"}}
    for name, value in OF_PARTS.items():
        for path in (CHAT, "/v1/messages"):
            messages = [{"role": "user", "content": [{"type": "text", "text": "Hi", name: value}]}]
            reply = server.post(path, {"model": MODEL, **BODIES[path], "messages": messages})
            assert reply.status == 200, (path, name, reply.body)
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi", name: value}]}]
        reply = server.post("/v1/responses", {"model": MODEL, **BODIES["/v1/responses"], "input": items})
        assert reply.status == 200, (name, reply.body)
    for path in (CHAT, LLAMA):
        tools = [{"type": "function", "function": {**function, **OF_FUNCTIONS}, **OF_TOOLS}]
        reply = server.post(path, {"model": MODEL, **BODIES[path], "tools": tools})
        assert reply.status == 200, (path, reply.body)
    tools = [{"type": "function", **function, **OF_FUNCTIONS, **OF_TOOLS}]
    assert server.post("/v1/responses", {"model": MODEL, **BODIES["/v1/responses"], "tools": tools}).status == 200
    tools = [{"name": "f", "input_schema": {"type": "object"}, **OF_FUNCTIONS, **OF_TOOLS}]
    assert server.post("/v1/messages", {"model": MODEL, **BODIES["/v1/messages"], "tools": tools}).status == 200


# Values that clients send to request a default.
DEFAULTS = {
    CHAT: [
        {"max_tokens": -1},
        {"max_completion_tokens": -1},
        {"stop": ""},
        {"stop": []},
        {"seed": -1},
        {"n": None},
        {"top_k": -1},
        {"top_k": 0},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none", "parallel_tool_calls": True},
        {"functions": [], "function_call": "auto"},
        {"response_format": {"type": "text"}},
        {"logit_bias": {}},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"effort": "low"}},
        {"reasoning": {"enabled": False}},
        {"reasoning": {}},
        {"verbosity": "low"},
        {"verbosity": "high"},
        *[{"reasoning_effort": effort} for effort in ("", "none", "minimal", "low", "medium", "high", "xhigh", "max")],
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}, "strict": True}}},
    ],
    "/v1/completions": [
        {"max_tokens": -1, "logit_bias": {"2": 100}},
        {"stop": ""},
        {"seed": -1},
        {"suffix": ""},
        {"logit_bias": {}},
        {"top_k": 0},
    ],
    "/v1/responses": [
        {"max_output_tokens": -1, "stop": " "},
        {"reasoning": {"effort": "none"}},
        *[{"reasoning": {"effort": effort, "summary": "auto"}} for effort in ("minimal", "low", "medium", "high", "xhigh")],
        *[{"text": {"verbosity": length}} for length in ("low", "medium", "high")],
        {"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"tools": [], "tool_choice": "auto"},
        {"include": []},
    ],
    "/v1/messages": [{"top_k": -1}, {"stop_sequences": []}, {"tools": [], "tool_choice": {"type": "auto"}}, {"metadata": {}}],
    LLAMA: [
        {"think": ""},
        {"think": False},
        {"format": ""},
        {"keep_alive": ""},
        {"tools": None},
        {"options": {"num_predict": 4, "stop": ""}},
        {"options": {"num_predict": 4, "seed": -1, "top_k": -1, "num_ctx": 0}},
    ],
}


@pytest.mark.parametrize("path", DEFAULTS)
def test_values_that_request_a_default_are_accepted(server, path):
    for fields in DEFAULTS[path]:
        body = {"model": MODEL, **BODIES[path], **fields}
        if fields.get("max_tokens") == -1:
            body["stop"] = [" ", ".", "\n", "!"]
        reply = server.post(path, body)
        assert reply.status == 200, (fields, reply.body)


def test_max_tokens_of_minus_one_sets_no_limit(server):
    whole = server.chat("Name a fruit.", max_tokens=None, stop=["."])
    assert server.chat("Name a fruit.", max_tokens=-1, stop=["."]).json()["choices"] == whole.json()["choices"]
    for wrong in (0, -2, -1.5, "-1"):
        assert server.chat("Hi", max_tokens=wrong).error["param"] == "max_tokens"


def test_a_seed_of_minus_one_is_random(server):
    ask = lambda: server.chat("Tell me a story.", seed=-1, temperature=1.5, max_tokens=12).json()["choices"][0]["message"]["content"]
    assert len({ask() for _ in range(4)}) > 1


TYPES = ["application/json", "application/octet-stream", "application/json; charset=utf-8", "application/x-ndjson", "text/json", "*/*"]
REFUSED = ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data; boundary=x"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", LLAMA, "/api/generate", "/api/embed"])
def test_only_content_types_of_simple_cross_origin_requests_are_refused(server, path):
    body = {"model": MODEL, **BODIES[path]}
    for kind in TYPES:
        assert server.post(path, body, headers={"content-type": kind}).status == 200, kind
    form = [] if path.startswith("/api") else ["application/x-www-form-urlencoded"]
    for kind in REFUSED + form:
        assert server.post(path, body, headers={"content-type": kind}).status == 415, kind


def test_asynchronous_calls_of_litellm_to_ollama_are_answered(server):
    """LiteLLM's HTTP client sends a body without a type as application/octet-stream."""
    options = {"temperature": 0, "num_predict": 4, "stop": ["\n\n"]}
    message = {"role": "user", "content": "What is the capital of France?"}
    headers = {"content-type": "application/octet-stream", "user-agent": "litellm/1.110.2"}
    for path, body in (
        ("/api/chat", {"model": MODEL, "messages": [message], "options": options, "stream": False}),
        ("/api/generate", {"model": MODEL, "prompt": "### User:\nHi\n\n", "options": options, "stream": False, "images": []}),
        ("/api/embed", {"model": MODEL, "input": ["Hi"]}),
    ):
        reply = server.post(path, body, headers=headers)
        assert reply.status == 200, (path, reply.body)


def test_extra_fields_of_tool_results_are_accepted(server):
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c", "type": "function", "index": 0, "function": function, "extra_content": {"a": 1}, "thought": "x"}
    messages = [
        {"role": "system", "content": "Be brief.", "id": "s", "name": "system"},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "thinking": "hm", "timestamp": 1},
        {"role": "tool", "tool_call_id": "c", "content": "5", "name": "f", "is_error": False, "toolName": "f", "timestamp": 1},
    ]
    reply = server.post(CHAT, {"model": MODEL, "max_tokens": 2, "messages": messages})
    assert reply.status == 200, reply.body
