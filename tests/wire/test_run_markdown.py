"""`penstock run` on a terminal: renders Markdown, completes with Tab, wraps its help and changes the model."""

import re

import pytest
import scripted
from harness import CODER, MODEL, cli
from pseudo import GREEDY, PROMPT, Terminal, plain
from test_cli import BASE, show

TABLE = "| name | km |\n|---|--:|\n| *Rhine* | 1233 |"
TEXT = f"# Rivers\n\nThe **Rhine** and `code`.\n- one\n- two\n\n{TABLE}\n\n```py\nif x:  # no\n```\nEnd."
SHOWN = "Rivers\n\nThe Rhine and code.\n• one\n• two\n\nname  │   km\n──────┼─────\nRhine │ 1233\n\npy\nif x:  # no\nEnd."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that answers with `TEXT`."""
    path = tmp_path_factory.mktemp("markdown") / "markdown.gguf"
    scripted.write(path, show(CODER)["path"], TEXT, "x", bare=True)
    return path


def answered(chat) -> str:
    """The raw output of an answer."""
    chat.prompt()
    chat.type("Hi\r")
    chat.until("\r\n")
    return chat.until(PROMPT)


def test_markdown_is_rendered_on_a_terminal(model):
    chat = Terminal(model=model, columns=60)
    raw = answered(chat)
    assert plain(raw).strip() == SHOWN
    for styled in ("\x1b[1mRivers\x1b[22m", "\x1b[1mRhine\x1b[22m", "\x1b[36mcode\x1b[39m", "\x1b[35mif\x1b[0m", "\x1b[3mRhine\x1b[23m"):
        assert styled in raw, (styled, raw)
    assert f"assistant: {TEXT}" in chat.ask("/show messages"), "the conversation has the text as the model wrote it"
    assert "plain is on" in chat.ask("/set plain")
    chat.ask("/clear")
    assert TEXT in chat.ask("Hi")
    chat.type("/bye\r")
    assert chat.ends() == 0


RAW = {"flag": (("--plain",), {}), "no colours": ((), {"NO_COLOR": "1"}), "dumb": ((), {"TERM": "dumb"})}


@pytest.mark.parametrize("args, env", RAW.values(), ids=RAW)
def test_the_text_stays_as_it_is_if_it_is_not_to_be_rendered(model, args, env):
    chat = Terminal(*args, model=model, env=env)
    if env.get("TERM") == "dumb":
        chat.until("> ")
        chat.type("Hi\r")
        chat.until("End.")
    else:
        assert plain(answered(chat)).strip() == TEXT
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_a_pipe_gets_the_text_as_it_is(model):
    done = cli("run", model, "Hi", *GREEDY)
    assert (done.returncode, done.stdout) == (0, TEXT + "\n")


def test_tab_completes_commands_settings_models_and_paths(tmp_path):
    (tmp_path / "talks").mkdir()
    chat = Terminal("--max-tokens", "2")
    chat.prompt()
    chat.type("/se\t")
    chat.until("/set ")
    chat.type("temper\t")
    chat.until("temperature ")
    chat.type("0.5\r")
    assert "temperature is 0.5" in chat.prompt()
    chat.type("/model qwen2.5\t")
    chat.until(CODER)
    chat.type("\r")
    assert f"{CODER} answers from now on" in chat.prompt()
    chat.type(f"/save {tmp_path}/ta\t")
    chat.until(f"{tmp_path}/talks/")
    chat.type("one.json\r")
    chat.until("saved to")
    chat.prompt()
    assert (tmp_path / "talks" / "one.json").is_file()
    chat.type("\x04")
    assert chat.ends() == 0


def test_the_model_can_be_changed_in_a_chat():
    chat = Terminal("--max-tokens", "12")
    chat.prompt()
    listed = chat.ask("/model")
    assert f"* {MODEL}" in listed and f"  {BASE} (completion)" in listed and listed.index(MODEL) < listed.index(BASE)
    first = chat.ask("What is the capital of France?")
    assert f"{CODER} answers from now on" in chat.ask(f"/model {CODER}")
    assert f"* {CODER}" in chat.ask("/model") and "assistant: " in chat.ask("/show messages"), "the conversation stays"
    assert "does not exist" in chat.ask("/model nope:1b")
    chat.ask("/set system Be brief.")
    assert "takes neither `system`" in chat.ask(f"/model {BASE}")
    chat.ask("/set system default")
    assert f"{MODEL} answers" in chat.ask("/model smollm2")
    chat.ask("/clear")
    assert chat.ask("What is the capital of France?") == first
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_the_help_is_wrapped():
    chat = Terminal(columns=44)
    chat.prompt()
    lines = chat.ask("/?").rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 44, lines
    row = next(at for at, line in enumerate(lines) if line.startswith("/model"))
    assert lines[row + 1].startswith(" " * 18) and lines[row + 1].strip(), "a further line begins below the second column"
    assert re.search(r"^/set temperature +0 to 2", chat.ask("/set"), re.M)
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_a_base_model_in_a_terminal_names_models_that_chat():
    done = cli("run", BASE, "Once", *GREEDY, "--max-tokens", "2")
    assert done.returncode == 0 and "does not chat; on this disk, these do: " in done.stderr and MODEL in done.stderr, done.stderr


def test_what_is_on_disk_is_listed_first():
    rows = [line.split() for line in cli("list").stdout.splitlines()[1:]]
    on_disk = [re.search(r"\b(yes|no|partly|\d+ %)\b", " ".join(row[1:]))[1] for row in rows]
    assert on_disk[0] == "yes" and "yes" not in on_disk[on_disk.index("no") :]
    names = [row[0] for row in rows]
    assert names.index(MODEL) < names.index(BASE) < names.index("qwen3:8b"), "models that chat come first"
    assert rows[names.index("qwen3:8b")][1] == "~4.7"
