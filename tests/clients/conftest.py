"""Provides one server with two models for all clients. An environment skips the tests of clients that it lacks. tests/summary.py checks
that each test runs in at least one environment."""

from importlib.util import find_spec

import pytest
from harness import CODER, MODEL, Server

# The module that each test file needs. The environments are .venv, .venv-openai2, .venv-lm-eval and .venv-litellm.
NEEDS = {
    "test_agents_sdk.py": "agents",
    "test_anthropic.py": "anthropic",
    "test_anthropic_agent.py": "anthropic",
    "test_instructor.py": "instructor",
    "test_langchain.py": "langchain_openai",
    "test_langchain_anthropic.py": "langchain_anthropic",
    "test_langchain_structured.py": "langchain_openai",
    "test_llama_index.py": "llama_index",
    "test_llama_index_ollama.py": "llama_index",
    "test_litellm.py": "litellm",
    "test_lm_eval.py": "lm_eval",
    "test_ollama.py": "langchain_ollama",
    "test_openai.py": "openai",
    "test_openai_custom.py": "openai",
    "test_openai_kept.py": "openai",
    "test_openai_structured.py": "openai",
    "test_openai_surface.py": "openai",
    "test_picture_clients.py": "langchain_ollama",
    "test_pydantic_ai.py": "pydantic_ai",
    "test_tools.py": "openai",
}
collect_ignore = [name for name, module in NEEDS.items() if find_spec(module) is None]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = {"STORAGE__FOLDER": str(tmp_path_factory.mktemp("kept"))}
    with Server({"SERVER__DEFAULT_MODELS": f"{MODEL},{CODER}", "ENGINE__KV_TOKENS": "8192"} | folder) as running:
        yield running


@pytest.fixture(scope="session")
def url(server):
    return f"{server.url}/v1"


@pytest.fixture(scope="session")
def model():
    return MODEL


@pytest.fixture(scope="session")
def coder():
    """The model whose template supports tools."""
    return CODER


@pytest.fixture(scope="session")
def client(url):
    import openai

    return openai.OpenAI(base_url=url, api_key="not-needed", max_retries=0, timeout=60)
