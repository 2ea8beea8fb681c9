"""Real coding agents, set up as docs/agents.md says. A scripted model replaces a trained one. Each agent gets a task, runs its shell tool,
returns the result and shows the answer, with the long prompts and the many tools that it really sends. In another test two of
them open a screenshot with their own tool."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import scripted
import tiny_vision
from harness import CODER, ROOT, Server
from test_cli import show

PROGRAMS = ROOT / "tests" / "coding-agents" / "node_modules" / ".bin"
ANSWER = "It prints a whale."
TASK = "What does the tool print?"
# By agent: its shell tool, the tool's argument, the command line, and the options that continue a conversation.
AGENTS = {
    "codex": ("exec_command", "cmd", ["exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"], ["resume", "--last"]),
    "claude": ("Bash", "command", ["--allowedTools", "Bash", "-p"], ["--continue"]),
    "opencode": ("bash", "command", ["run"], ["--continue"]),
    "qwen": ("run_shell_command", "command", ["--auth-type", "openai", "--approval-mode", "yolo", "-p"], ["--continue"]),
}
# By agent: the tool with which it looks at a picture, and the tool's argument. The others send no picture to a model that they do not know.
VIEWERS = {"codex": ("view_image", "path"), "claude": ("Read", "file_path")}
SCREENSHOT = "What does the screenshot show?"
# ChatML with calls in JSON. Pictures are shown wherever they stand, in results of tools, too.
SEEING = """{%- macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{% endmacro %}
{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Call one as <tool_call>{"name": <name>, "arguments": <object>}</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ shown(m.content) }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ shown(m.content or '') }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SECTIONS = {"codex": "Codex", "claude": "Claude Code", "opencode": "opencode", "qwen": "Qwen Code"}
pytestmark = pytest.mark.skipif(not PROGRAMS.is_dir(), reason="tests/coding-agents has no packages: tests/run installs them")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    config = f"[server]\ndefault_models = {json.dumps(list(AGENTS))}\n"
    for name, (tool, argument, *_) in AGENTS.items():
        call = json.dumps({"name": tool, "arguments": {argument: scripted.COMMAND}})
        scripted.write(folder / f"{name}.gguf", show(CODER)["path"], call, ANSWER)
        config += f"[[models]]\nid = '{name}'\nsource = {{ type = 'file', path = '{folder}/{name}.gguf' }}\n"
    (folder / "config.toml").write_text(config)
    with Server({"ENGINE__CONTEXT": "32768", "ENGINE__BACKEND": "cpu"}, ("--config", str(folder / "config.toml"))) as server:
        yield server


def piece(name, server) -> str:
    """The page's code for an agent, with the address of this server and the name of this model."""
    page = (ROOT / "docs" / "agents.md").read_text()
    (section,) = (part for part in page.split("\n## ") if part.startswith(SECTIONS[name] + "\n"))
    (code,) = re.findall(r"```\w+\n(.*?)```", section, re.S)
    return code.replace("http://127.0.0.1:8080", server.url).replace(CODER, name)


def conversation(server, model) -> list[tuple[int, int]]:
    """Lists the answered prompts of the conversation in order, each as its number of cached tokens and of all tokens. It leaves out
    requests that the agent abandoned and repeated, and the short side requests that some agents make."""
    log = Path(server.log.name).read_text(errors="replace")
    form = rf"outcome=ok .* model={model} .*prompt_tokens=(\d+) cached_tokens=(\d+)"
    found = [(int(cached), int(tokens)) for tokens, cached in re.findall(form, log)]
    most = max(tokens for _, tokens in found)
    return [(cached, tokens) for cached, tokens in found if tokens > 0.6 * most]


def agent(name, server, home, work):
    """Sets an agent up for a server. Returns a function that runs it, and checks that it shows the answer."""
    (home / ".codex").mkdir(parents=True)
    work.mkdir(exist_ok=True)
    variables, code = {}, piece(name, server)
    if name == "codex":
        (home / ".codex" / "config.toml").write_text(code)
    elif name == "opencode":
        (work / "opencode.json").write_text(code)
    else:
        variables = dict(re.findall(r"export (\w+)=(.*)", code))

    def ask(*words):
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **variables}
        process = subprocess.Popen(
            [PROGRAMS / name, *words],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=150)
        finally:
            # End the processes that the agent started, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0 and ANSWER in out, (out[-4000:], errors[-4000:])

    return ask


def refusals(server) -> list[dict]:
    """The labels of requests that were not answered with 200."""
    requests = [dict(labels) for metric, labels in server.metrics() if metric == "penstock_http_requests_total"]
    return [labels for labels in requests if labels["route"].startswith("/v1/") and labels["status"] != "200"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_works_with_its_tool(zoo, tmp_path, name):
    arguments, again = AGENTS[name][2:]
    ask = agent(name, zoo, tmp_path / "home", tmp_path / "work")
    ask(*arguments, TASK)
    # If a subcommand comes first, the options that continue follow it.
    ask(*([*arguments, *again, TASK] if name in ("codex", "opencode") else [*again, *arguments, TASK]))
    sent = conversation(zoo, name)
    print(f"{name}: from the prefix cache {', '.join(f'{cached} of {tokens}' for cached, tokens in sent)} tokens")
    assert len(sent) >= 3, "expected requests for the task, the tool's result and the second turn"
    for (_, before), (cached, _) in zip(sent, sent[1:]):
        assert cached > 0.9 * before, f"each prompt must extend the previous one: {sent}"
    assert not refusals(zoo)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """A server whose models call the agents' tools for pictures. All rows of a picture are the token that the models wait for, so only a
    picture that has come through the agent, its endpoint and the encoder makes them answer."""
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "chat.jinja").write_text(SEEING)
    config = f"[server]\ndefault_models = {json.dumps(list(VIEWERS))}\n"
    row = np.zeros(scripted.WIDTH, np.float32)
    row[scripted.MARKED] = 1
    for name, (tool, argument) in VIEWERS.items():
        (folder / name).mkdir()
        (folder / name / "shot.png").write_bytes(tiny_vision.picture(112, 84))
        call = json.dumps({"name": tool, "arguments": {argument: str(folder / name / "shot.png")}})
        scripted.write(folder / f"{name}.gguf", show(CODER)["path"], call, ANSWER)
        tiny_vision.write_encoder(folder / f"mmproj-{name}.gguf", "llava", {"mm.2.weight": 0 * row, "mm.2.bias": row})
        config += tiny_vision.entry(name, folder / f"{name}.gguf", folder)
    (folder / "config.toml").write_text(config)
    with Server({"ENGINE__CONTEXT": "32768", "ENGINE__BACKEND": "cpu"}, ("--config", str(folder / "config.toml"))) as server:
        yield server, folder


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", VIEWERS)
def test_an_agent_shows_a_screenshot(gallery, tmp_path, name):
    server, folder = gallery
    arguments = AGENTS[name][2]
    agent(name, server, tmp_path / "home", folder / name)(*arguments, SCREENSHOT)
    assert server.gauge("picture_rows_total", name) > 0
    assert not refusals(server)
