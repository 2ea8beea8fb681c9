"""Pictures from OpenAI's, Anthropic's and Ollama's SDKs and LangChain: each sends one in its own form, and all get the same answer."""

import base64
import sys

import anthropic
import ollama
import openai
import pytest
from harness import ROOT, Server
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

sys.path.append(str(ROOT / "tests" / "wire"))
from tiny_vision import picture, write_seeing  # noqa: E402

MODEL = "eyes"
QUESTION = "What is it?"
IMAGE = picture(112, 112)
DATA = base64.b64encode(IMAGE).decode()
URL = f"data:image/png;base64,{DATA}"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    with Server({"ENGINE__BACKEND": "cpu"}, ("--config", write_seeing(tmp_path_factory.mktemp("pictures")))) as server:
        yield server


@pytest.fixture(scope="module")
def due(seeing):
    """The answer to the picture and the question, and the number of the prompt's tokens."""
    client = openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none")
    parts = [{"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, {"type": "text", "text": QUESTION}]
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, max_completion_tokens=8
    )
    without = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_completion_tokens=8
    )
    assert answer.choices[0].message.content != without.choices[0].message.content
    assert answer.usage.prompt_tokens == without.usage.prompt_tokens + 18, "16 rows, and a token before and after them"
    return answer.choices[0].message.content, answer.usage.prompt_tokens


def test_openai_responses(seeing, due):
    client = openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none")
    parts = [{"type": "input_image", "image_url": URL, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    answer = client.responses.create(model=MODEL, input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=16)
    assert answer.output_text.startswith(due[0]) and answer.usage.input_tokens == due[1]
    followed = client.responses.create(model=MODEL, input="And now?", previous_response_id=answer.id, max_output_tokens=16)
    assert followed.usage.input_tokens > due[1], "the picture stays in the conversation"


def test_anthropic(seeing, due):
    client = anthropic.Anthropic(base_url=seeing.url, api_key="none")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    answer = client.messages.create(model=MODEL, messages=messages, max_tokens=8, extra_body={"temperature": 0})
    assert (answer.content[0].text, answer.usage.input_tokens) == due
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens == due[1]


def test_ollama(seeing, due, tmp_path):
    (tmp_path / "a.png").write_bytes(IMAGE)
    client, options = ollama.Client(host=seeing.url, timeout=60), {"temperature": 0, "num_predict": 8}
    assert "vision" in client.show(MODEL).capabilities
    for image in (IMAGE, str(tmp_path / "a.png"), DATA):
        messages = [{"role": "user", "content": QUESTION, "images": [image]}]
        assert client.chat(model=MODEL, messages=messages, options=options).message.content == due[0]
    answer = client.generate(model=MODEL, prompt=QUESTION, images=[IMAGE], options=options)
    assert (answer.response, answer.prompt_eval_count) == due


@pytest.mark.parametrize("kind", ["openai", "anthropic", "ollama"])
def test_langchain(seeing, due, kind):
    chats = {
        "openai": lambda: ChatOpenAI(base_url=f"{seeing.url}/v1", api_key="none", model=MODEL, temperature=0, max_completion_tokens=8),
        "anthropic": lambda: ChatAnthropic(base_url=seeing.url, api_key="none", model=MODEL, temperature=0, max_tokens=8),
        "ollama": lambda: ChatOllama(base_url=seeing.url, model=MODEL, temperature=0, num_predict=8),
    }
    image = {"type": "image", "base64": DATA, "mime_type": "image/png"}
    answer = chats[kind]().invoke([HumanMessage(content=[image, {"type": "text", "text": QUESTION}])])
    # ChatOllama begins the text with a line break.
    more = 1 if kind == "ollama" else 0
    assert answer.usage_metadata["input_tokens"] == due[1] + more
    assert more or answer.text == due[0]
