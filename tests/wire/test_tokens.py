"""/tokenize, /detokenize and /apply-template, and completions that fill in the middle."""

import pytest
from harness import MODEL, Server, chunks_of

CODER = "qwen2.5-coder:0.5b"
CAPITAL = [504, 3575, 282, 4649, 314]


def post(server, path, **fields):
    return server.post(path, {"model": MODEL, **fields})


def test_text_becomes_ids_and_ids_become_text(server):
    answer = post(server, "/tokenize", prompt="The capital of France is").json()
    assert answer == {"count": 5, "max_model_len": 8192, "tokens": CAPITAL, "token_strs": None}
    with_texts = post(server, "/tokenize", prompt="The capital of France is", return_token_strs=True).json()
    assert with_texts["token_strs"] == ["The", " capital", " of", " France", " is"]
    assert post(server, "/detokenize", tokens=CAPITAL).json() == {name: "The capital of France is" for name in ("prompt", "content")}
    for text in ("", "🦙 東京\x00", "<|im_start|>user", "a" * 5000):
        tokens = post(server, "/tokenize", prompt=text).json()["tokens"]
        assert post(server, "/detokenize", tokens=tokens).json()["prompt"] == text
    assert post(server, "/tokenize", prompt="<|im_start|>").json()["tokens"] == [1], "special tokens are parsed as in a completion's prompt"
    assert post(server, "/detokenize", tokens=[1]).json()["prompt"] == "<|im_start|>"


def test_the_first_model_needs_no_name(server):
    assert server.post("/tokenize", {"prompt": "The capital of France is", "add_special_tokens": False}).json()["tokens"] == CAPITAL
    assert server.post("/detokenize", {"tokens": CAPITAL}).json()["prompt"] == "The capital of France is"
    told = server.get("/tokenizer_info").json()
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert told == {"model": MODEL, "tokenizer_class": "GPT2Tokenizer", **special, "vocab_size": 49152, "max_model_len": 8192}
    assert server.get("/tokenizer_info?model=smollm2%3A135m").json() == told
    assert server.get("/tokenizer_info?model=nope").error["code"] == "model_not_found"
    assert server.get("/tokenizer_info?model=%ff").error["code"] == "model_not_found"


def test_texts_are_taken_in_the_form_of_llama_cpp(server):
    text = "The capital of France is"
    answer = server.post("/tokenize", {"content": text, "add_special": False, "parse_special": True}).json()
    assert answer["tokens"] == CAPITAL and answer["token_strs"] is None
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == CAPITAL and "".join(piece["piece"] for piece in pieces) == text
    assert server.post("/tokenize", {"content": ""}).json()["tokens"] == []
    for wrong, field in (
        ({"prompt": "a"}, "prompt"),
        ({"messages": []}, "messages"),
        ({"return_token_strs": True}, "return_token_strs"),
        ({"parse_special": False}, "parse_special"),
        ({"with_pieces": 1}, "with_pieces"),
        ({"content": ["a"]}, "content"),
    ):
        assert server.post("/tokenize", {"content": text} | wrong).error["param"] == field, wrong


def test_a_conversation_has_as_many_tokens_as_its_request(server):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    usage = server.chat(messages=messages, max_tokens=1).json()["usage"]
    answer = post(server, "/tokenize", messages=messages).json()
    assert answer["count"] == usage["prompt_tokens"] == 37
    shorter = post(server, "/tokenize", messages=messages, add_generation_prompt=False).json()
    assert shorter["count"] < 37 and answer["tokens"][: shorter["count"]] == shorter["tokens"]


def test_the_template_is_applied(server):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> there"}]
    prompt = post(server, "/apply-template", messages=messages).json()["prompt"]
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|> there<|im_end|>\n<|im_start|>assistant\n"
    assert "assistant" not in post(server, "/apply-template", messages=messages, add_generation_prompt=False).json()["prompt"]
    tool = {"type": "function", "function": {"name": "look_up", "description": "Looks things up"}}
    told = post(server, "/apply-template", messages=messages, tools=[tool]).json()["prompt"]
    assert (
        "look_up" in told
        and "look_up" not in post(server, "/apply-template", messages=messages, tools=[tool], tool_choice="none").json()["prompt"]
    )
    fields = {"messages": messages, "tools": [tool]}
    counted = post(server, "/tokenize", **fields).json()["count"]
    assert counted == server.chat(**fields, max_tokens=1).json()["usage"]["prompt_tokens"]
    going_on = [*messages, {"role": "assistant", "content": "Well,"}]
    assert post(server, "/apply-template", messages=going_on, continue_final_message=True).json()["prompt"].endswith("Well,")


@pytest.mark.parametrize(
    "path, fields, param",
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"prompt": "x", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [49_152]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "nothing"}]}, "tools[0].type"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}], "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/apply-template", {"messages": [{"role": "asistant", "content": "x"}]}, "messages[0].role"),
        (
            "/apply-template",
            {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": 1}},
            "chat_template_kwargs.messages",
        ),
    ],
)
def test_an_error_names_the_field(server, path, fields, param):
    reply = post(server, path, **fields)
    assert reply.status == 400 and reply.error["param"] == param, reply.body
    # A wrong field is reported before an unknown model. Only a model can tell that an id is too large.
    assert server.post(path, {**fields, "model": "nope"}).status == (404 if fields == {"tokens": [49_152]} else 400)


@pytest.fixture(scope="module")
def coder():
    with Server({"SERVER__DEFAULT_MODELS": CODER, "ENGINE__KV_TOKENS": "8192"}) as running:
        yield running


@pytest.mark.real_models
def test_the_middle_between_two_texts_is_filled_in(coder):
    """The model's special tokens mark both texts. The answer is the text between them."""
    fields = {"model": CODER, "max_tokens": 24, "temperature": 0}
    body = {**fields, "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    answer = coder.post("/v1/completions", body).json()
    text = answer["choices"][0]["text"]
    assert text.startswith("a + b"), text
    by_hand = f"<|fim_prefix|>{body['prompt']}<|fim_suffix|>{body['suffix']}<|fim_middle|>"
    same = coder.post("/v1/completions", {**fields, "prompt": by_hand}).json()
    assert same["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"] and same["choices"][0]["text"].startswith(text)
    streamed = chunks_of(coder.post("/v1/completions", {**body, "stream": True, "logprobs": 1}))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == text
    two = coder.post("/v1/completions", {**body, "prompt": [body["prompt"], ""], "n": 2}).json()["choices"]
    assert [choice["text"] for choice in two[:2]] == [text, text] and len(two) == 4
    assert coder.post("/v1/completions", {**body, "suffix": ""}).json()["usage"]["prompt_tokens"] < answer["usage"]["prompt_tokens"] - 3


def test_filling_in_refuses_ids_echo_and_a_model_without_its_tokens(coder, server):
    for fields, param in (({"prompt": [1, 2]}, "suffix"), ({"echo": True}, "echo"), ({"suffix": 5}, "suffix")):
        reply = coder.post("/v1/completions", {"model": CODER, "prompt": "x", "suffix": "y", **fields})
        assert reply.status == 400 and reply.error["param"] == param, fields
    reply = server.complete("x", suffix="y")
    assert reply.status == 400 and reply.error["param"] == "suffix" and "no tokens" in reply.error["message"]
