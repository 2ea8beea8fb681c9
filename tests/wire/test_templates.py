"""Chat templates of a catalogue entry: those that refuse a conversation, and those that never end."""

import tempfile
from pathlib import Path

import pytest
from harness import MODEL, Server
from test_cli import show

TEMPLATES = {
    "strict": "{% if messages[0].role == 'system' %}{{ raise_exception('a system message is not supported') }}{% endif %}{{ messages[0].content }}",
    "endless": "{% for i in range(9999999) %}{% for j in range(9999999) %}x{% endfor %}{% endfor %}",
    "wrong": "{{ messages[0].content + 5 }}",
    "silent": "{% if false %}x{% endif %}",
}


@pytest.fixture(scope="module")
def templates():
    path = show(MODEL)["path"]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "models.toml")
        for name, text in TEMPLATES.items():
            file = Path(folder, f"{name}.jinja")
            file.write_text(text)
            with config.open("a") as out:
                out.write(f"[[models]]\nid = '{name}'\nchat_template = '{file}'\nsource = {{ type = 'file', path = '{path}' }}\n")
        names = ",".join([MODEL, *TEMPLATES])
        with Server({"SERVER__DEFAULT_MODELS": names, "ENGINE__KV_TOKENS": "4096"}, args=("--config", str(config))) as running:
            yield running


SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_what_a_template_raises_is_told(templates):
    reply = templates.chat(model="strict", messages=SYSTEM)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == "messages" and "a system message is not supported" in reply.error["message"]
    assert templates.chat(model="strict").status == 200
    assert templates.chat(model=MODEL, messages=SYSTEM).status == 200


@pytest.mark.parametrize("model", ["endless", "wrong", "silent"])
def test_a_template_that_fails_is_an_error_of_the_request(templates, model):
    reply = templates.chat(model=model)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == "messages" and reply.error["type"] == "invalid_request_error"
    assert templates.complete(model=model, max_tokens=1).status == 200, "completions need no template"
