"""Real coding agents, set up as docs/agents.md says. A scripted model replaces a trained one. Each agent gets a task, runs its shell tool,
returns the result and shows the answer, with the long prompts and the many tools that it really sends."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest
import scripted
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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_works_with_its_tool(zoo, tmp_path, name):
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".codex").mkdir(parents=True)
    work.mkdir()
    variables, code = {}, piece(name, zoo)
    if name == "codex":
        (home / ".codex" / "config.toml").write_text(code)
    elif name == "opencode":
        (work / "opencode.json").write_text(code)
    else:
        variables = dict(re.findall(r"export (\w+)=(.*)", code))
    arguments, again = AGENTS[name][2:]

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

    ask(*arguments, TASK)
    # If a subcommand comes first, the options that continue follow it.
    ask(*([*arguments, *again, TASK] if name in ("codex", "opencode") else [*again, *arguments, TASK]))
    sent = conversation(zoo, name)
    print(f"{name}: from the prefix cache {', '.join(f'{cached} of {tokens}' for cached, tokens in sent)} tokens")
    assert len(sent) >= 3, "expected requests for the task, the tool's result and the second turn"
    for (_, before), (cached, _) in zip(sent, sent[1:]):
        assert cached > 0.9 * before, f"each prompt must extend the previous one: {sent}"
    requests = [dict(labels) for metric, labels in zoo.metrics() if metric == "penstock_http_requests_total"]
    refused = [labels for labels in requests if labels["route"].startswith("/v1/") and labels["status"] != "200"]
    assert not refused, refused
