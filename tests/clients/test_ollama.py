"""Tests Ollama's own Python package and LangChain's ChatOllama against the real binary."""

import asyncio
import json

import ollama
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from harness import cli
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
WEATHER = "What is the weather in Paris? Use the tool."
OPTIONS = {"temperature": 0, "num_predict": 12}
MESSAGES = [{"role": "user", "content": QUESTION}]


class Capital(BaseModel):
    city: str
    country: str


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: the name of the city
    """
    return f"In {city} it is sunny, 24 degrees."


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.url, timeout=60)


# The package `ollama`


def test_a_chat_is_answered(client, model):
    answer = client.chat(model=model, messages=MESSAGES, options=OPTIONS)
    assert (answer.model, answer.message.role, answer.message.content, answer.done, answer.done_reason) == (
        model,
        "assistant",
        ANSWER,
        True,
        "stop",
    )
    assert (answer.prompt_eval_count, answer.eval_count) == (37, 7)
    assert 0 < answer.eval_duration < answer.total_duration and answer.load_duration < answer.total_duration
    assert answer.prompt_eval_duration >= 0 and answer.created_at.startswith("20") and answer.message.tool_calls is None


def test_a_chat_is_streamed(client, model):
    pieces = list(client.chat(model=model, messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == ANSWER
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True] and pieces[-1].eval_count == 7


def test_a_chat_is_streamed_asynchronously(server, model):
    async def run():
        client = ollama.AsyncClient(host=server.url)
        return [piece.message.content async for piece in await client.chat(model=model, messages=MESSAGES, options=OPTIONS, stream=True)]

    assert "".join(asyncio.run(run())) == ANSWER


@pytest.mark.real_models
def test_a_text_is_generated_and_continued(client, model):
    answer = client.generate(model=model, prompt=QUESTION, options=OPTIONS)
    assert answer.response == ANSWER and answer.done_reason == "stop" and len(answer.context) > 37
    again = client.generate(model=model, prompt="And of Italy?", context=answer.context, options=OPTIONS)
    assert "Rome" in again.response and again.prompt_eval_count > len(answer.context)
    streamed = client.generate(model=model, prompt=QUESTION, system="Answer briefly.", options=OPTIONS, stream=True)
    assert len("".join(piece.response for piece in streamed)) > 10
    raw = client.generate(model=model, prompt="The capital of France is", raw=True, options=OPTIONS)
    assert "Paris" in raw.response and raw.context is None


@pytest.mark.real_models
def test_the_middle_of_a_text_is_filled_in(client, coder):
    answer = client.generate(model=coder, prompt="def add(a, b):\n", suffix="\n    return result\n", options=OPTIONS)
    assert "return" in answer.response and answer.context is None


@pytest.mark.real_models
def test_a_tool_is_called_in_two_steps(client, coder):
    messages = [{"role": "user", "content": WEATHER}]
    first = client.chat(model=coder, messages=messages, tools=[get_weather], options={"temperature": 0, "num_predict": 64})
    (call,) = first.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = get_weather(**call.function.arguments)
    messages += [first.message, {"role": "tool", "tool_name": call.function.name, "content": result}]
    second = client.chat(model=coder, messages=messages, tools=[get_weather], options={"temperature": 0, "num_predict": 64})
    assert "24" in second.message.content and not second.message.tool_calls
    pieces = list(client.chat(model=coder, messages=messages[:1], tools=[get_weather], options={"temperature": 0}, stream=True))
    assert [call.function.arguments for piece in pieces for call in piece.message.tool_calls or []] == [{"city": "Paris"}]


def test_a_format_is_followed(client, model):
    answer = client.chat(model=model, messages=MESSAGES, format=Capital.model_json_schema(), options={"temperature": 0, "num_predict": 60})
    assert Capital.model_validate_json(answer.message.content).city


def test_logprobs_are_returned(client, model):
    answer = client.chat(model=model, messages=MESSAGES, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert "".join(token.token for token in answer.logprobs) == ANSWER
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in answer.logprobs)


@pytest.mark.real_models
def test_texts_become_vectors(client, model):
    answer = client.embed(model=model, input=["a river", "a mountain"], truncate=True, dimensions=64)
    assert [len(vector) for vector in answer.embeddings] == [64, 64] and answer.prompt_eval_count == 4 and answer.total_duration > 0
    assert len(client.embeddings(model=model, prompt="a river").embedding) == 576


def test_models_are_listed_and_described(client, model, coder):
    listed = {one.model: one for one in client.list().models}
    assert {model, coder} <= set(listed) and listed[model].details.quantization_level == "Q4_1" and listed[model].size > 5e7
    assert listed[model].modified_at.year >= 2020 and len(listed[model].digest) == 64
    client.generate(model=coder, prompt="a", options={"num_predict": 1})  # a model that is loaded tells the context that it serves
    shown = client.show(coder)
    assert shown.capabilities == ["completion", "tools", "insert"] and shown.modelinfo["qwen2.context_length"] == 8192
    assert shown.details.family == "qwen2" and shown.template and shown.modified_at.year >= 2020
    running = {one.model: one for one in client.ps().models}
    assert running[model].context_length > 0 and running[model].expires_at.year > 2100


@pytest.mark.real_models
def test_a_model_is_pulled(client, model):
    assert client.pull(model).status == "success"
    progress = list(client.pull(model, stream=True))
    assert progress[0].status == "pulling manifest" and progress[-1].status == "success"


def test_models_are_loaded_and_unloaded(client, coder):
    assert client.generate(model=coder, prompt="").done_reason == "load"
    assert coder in [one.model for one in client.ps().models]
    assert client.chat(model=coder, messages=[], keep_alive=0).done_reason == "unload"
    assert coder not in [one.model for one in client.ps().models]
    assert client.generate(model=coder, prompt="", keep_alive="1h").done_reason == "load"
    (loaded,) = [one for one in client.ps().models if one.model == coder]
    assert loaded.expires_at.year < 2100
    client.generate(model=coder, prompt="", keep_alive=-1)


def test_models_are_made_copied_and_deleted(client, model):
    settings = {"system": "You are Mario.", "parameters": {"temperature": 0, "num_predict": 8, "stop": ["User:"]}, "license": ["MIT"]}
    examples = [{"role": "user", "content": "Hi"}, ollama.Message(role="assistant", content="It's me!")]
    stages = list(client.create(model="mario", from_=model, messages=examples, stream=True, **settings))
    assert stages[-1].status == "success" and stages[0].status
    try:
        assert client.chat(model="mario", messages=MESSAGES).eval_count <= 8
        shown = client.show("mario")
        assert 'SYSTEM """You are Mario."""' in shown.modelfile and shown.license == "MIT" and "User:" in shown.parameters
        assert client.copy("mario", "luigi").status == "success"
        names = [one.model for one in client.list().models]
        assert {"mario:latest", "luigi:latest"} <= set(names)
    finally:
        assert client.delete("mario").status == "success"
    assert client.generate(model="luigi", prompt=QUESTION).response and client.delete("luigi").status == "success"
    with pytest.raises(ollama.ResponseError) as gone:
        client.show("luigi")
    assert gone.value.error == "model 'luigi' not found" and gone.value.status_code == 404


def test_a_file_is_uploaded_and_quantised(client, model):
    source = json.loads(cli("show", model, "--json").stdout)["path"]
    digest = client.create_blob(source)
    made = client.create(model="mine:q8", files={"model.gguf": digest}, quantize="q8_0", template="U: {{ .Prompt }}\nA: ")
    try:
        assert made.status == "success" and client.show("mine:q8").template == "U: {{ .Prompt }}\nA: "
        assert client.chat(model="mine:q8", messages=MESSAGES, options=OPTIONS).message.content
    finally:
        client.delete("mine:q8")


def test_errors_are_the_package_s_own(client, model):
    with pytest.raises(ollama.ResponseError) as unknown:
        client.chat(model="no-such-model", messages=MESSAGES)
    assert unknown.value.status_code == 404 and "no-such-model" in unknown.value.error
    with pytest.raises(ollama.ResponseError) as wrong:
        client.generate(model=model, prompt="x", options={"mirostat": 1})
    assert wrong.value.status_code == 400 and "`options.mirostat`" in wrong.value.error
    with pytest.raises(ollama.ResponseError) as refused:
        list(client.generate(model=model, prompt="x" * 400_000, stream=True))
    assert refused.value.status_code == 400 and "context" in refused.value.error
    with pytest.raises(ollama.ResponseError) as missing:
        client.push(model)
    assert missing.value.status_code == 501
    with pytest.raises(ollama.ResponseError) as from_nothing:
        client.create(model="x", from_="no-such-model")
    assert from_nothing.value.status_code == 404 and from_nothing.value.error == "model 'no-such-model' not found"


# LangChain


@pytest.fixture
def lang(server, model):
    return lambda name=model, **fields: ChatOllama(**{"base_url": server.url, "model": name, "temperature": 0, "num_predict": 12, **fields})


def test_langchain_chats(lang):
    answer = lang().invoke(QUESTION)
    assert answer.content == ANSWER and answer.response_metadata["done_reason"] == "stop"
    assert answer.usage_metadata == {"input_tokens": 37, "output_tokens": 7, "total_tokens": 44}
    assert "".join(piece.content for piece in lang().stream(QUESTION)) == ANSWER
    assert asyncio.run(lang().ainvoke(QUESTION)).content == ANSWER
    many = dict(validate_model_on_init=True, keep_alive="1h", num_ctx=512, num_gpu=1, num_thread=2, repeat_last_n=64, top_k=1, seed=1)
    assert lang(**many, mirostat=0, stop=["!"]).invoke(QUESTION).content == ANSWER


@pytest.mark.real_models
def test_langchain_calls_tools(lang, coder):
    @tool
    def weather(city: str) -> str:
        "The weather in a city."
        return f"In {city} it is sunny, 24 degrees."

    chat = lang(coder, num_predict=64).bind_tools([weather])
    messages = [HumanMessage("What is the weather in Paris? Use the tool.")]
    first = chat.invoke(messages)
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    messages += [first, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert "24" in chat.invoke(messages).content


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain_structures_answers(lang, method):
    prompt = f"{QUESTION} Answer as JSON with the keys city and country."
    answer = lang(num_predict=80).with_structured_output(Capital, method=method, include_raw=True).invoke(prompt)
    assert answer["raw"].content.lstrip().startswith("{")
    if method == "json_schema":
        assert answer["parsed"].city and answer["parsing_error"] is None


@pytest.mark.real_models
def test_langchain_s_other_classes(server, model):
    llm = OllamaLLM(base_url=server.url, model=model, temperature=0, num_predict=12)
    assert llm.invoke(QUESTION) == ANSWER and "".join(llm.stream(QUESTION)) == ANSWER
    embeddings = OllamaEmbeddings(base_url=server.url, model=model)
    assert len(embeddings.embed_query("a river")) == 576
    assert [len(vector) for vector in embeddings.embed_documents(["a", "b"])] == [576, 576]
