"""Chat templates that refuse a conversation or never end, and conversations that the server adapts to a template."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness import BINARY, MODEL, Server, environment
from test_cli import show

TEMPLATES = {
    "strict": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('a system message is not supported') }}{% endif %}"
        "{% if 'parrot' in messages[-1].content %}{{ raise_exception('this model never speaks of parrots') }}{% endif %}"
        "{{ messages[0].content }}"
    ),
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


@pytest.mark.parametrize("model", ["endless", "wrong", "silent"])
def test_a_template_that_fails_is_an_error_of_the_request(templates, model):
    reply = templates.chat(model=model)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == "messages" and reply.error["type"] == "invalid_request_error"
    assert templates.complete(model=model, max_tokens=1).status == 200, "completions need no template"


def test_if_a_template_refuses_system_messages_their_text_precedes_the_users(templates):
    assert templates.post("/apply-template", {"model": "strict", "messages": SYSTEM}).json() == {"prompt": "Be brief.\n\nHi"}


GROWING = "{%% set ns = namespace(x='ab', l=['ab']) %%}{%% for i in range(60) %%}%s{%% endfor %%}{{ ns.x }}"
HOSTILE = {
    "repeated": "{% for i in range(10) %}{% set x = 'a' * 99000000 %}{% endfor %}",
    "kept": "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ['a' * 1000000] %}{% endfor %}",
    "doubled": GROWING % "{% set ns.x = ns.x ~ ns.x %}",
    "replaced": GROWING % "{% set ns.x = ns.x | replace('b', ns.x) %}",
    "captured": GROWING % "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
    "called": GROWING % "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = m(ns.x) %}",
    "lists": GROWING % "{% set ns.l = ns.l * 2 %}",
    "shared": (GROWING % "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l | string | length }}",
    "written": "{% for i in range(100000) %}" + "x" * 50_000 + "{% endfor %}",
    "raw": "{% set x %}{% for i in range(100000) %}" + "x" * 50_000 + "{% endfor %}{% endset %}",
    "padded": "{{ '{:>999999999}'.format('x') }}",
}


def render(folder: str, template: str) -> tuple[int, str, int]:
    """Runs `penstock render`. Returns its exit code, stderr and peak resident memory [bytes]."""
    source, conversation = Path(folder, "t.jinja"), Path(folder, "in.json")
    source.write_text(template)
    conversation.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    command = [BINARY, "render", source, "--input", conversation]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
    text = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, text, usage.ru_maxrss * 1024
