import openai
import pytest
from harness import MODEL


def pytest_report_header(config):
    return f"openai {openai.__version__}"


@pytest.fixture(scope="session")
def model():
    return MODEL


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="not-needed", max_retries=0, timeout=60)
