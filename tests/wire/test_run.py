"""`penstock run`: a single answer, a prompt on stdin, and a chat on a terminal."""

import base64
import json
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness import BINARY, MODEL, ROOT, cli, environment
from pseudo import GREEDY, MORE, Terminal
from test_cli import failed, show
from test_reasoning import OPEN


QUESTION = "What is the capital of France?"
# A picture of 1 × 1 pixels.
GIF = base64.b64decode("R0lGODlhAQABAIAAAP8AAP///yH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")


def test_a_prompt_gets_one_answer():
    done = cli("run", MODEL, QUESTION, *GREEDY, "--max-tokens", "12")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("The capital of France is Paris.") and done.stdout.endswith("\n")


def test_a_prompt_on_stdin_is_the_same_prompt():
    answer = cli("run", MODEL, QUESTION, *GREEDY, "--max-tokens", "12").stdout
    assert cli("run", MODEL, *GREEDY, "--max-tokens", "12", stdin=QUESTION + "\n").stdout == answer
    failed(cli("run", MODEL, stdin=" \n"), "stdin", "empty")


def test_stdin_comes_before_the_prompt():
    text = "Ada likes green tea. Bob likes coffee.\n"
    joined = cli("run", MODEL, *GREEDY, "--max-tokens", "12", stdin=f"{text}\nWho likes coffee?").stdout
    assert cli("run", MODEL, "Who likes coffee?", *GREEDY, "--max-tokens", "12", stdin=text).stdout == joined
    words = cli("run", MODEL, "Who", "likes", "coffee?", *GREEDY, "--max-tokens", "12", stdin=text)
    assert words.stdout == joined, "words without quotation marks form one prompt"
    alone = cli("run", MODEL, "Who likes coffee?", *GREEDY, "--max-tokens", "12")
    assert alone.stdout != joined
    failed(cli("run", MODEL, " "), "the prompt is empty")
    failed(cli("run", MODEL, "x", stdin=b"\xff\xfe"), "stdin")


def test_the_speed_of_an_answer_is_shown_if_asked_for():
    done = cli("run", MODEL, QUESTION, *GREEDY, "--max-tokens", "12", "--verbose")
    assert done.returncode == 0 and done.stdout.startswith("The capital of France is Paris.")
    line = done.stderr.strip()
    found = re.fullmatch(
        r"prompt: (\d+) tokens in [\d.]+ s, [\d.]+ tokens/s; "
        r"answer: (\d+) tokens in [\d.]+ s, [\d.]+ tokens/s; first token after [\d.]+ s",
        line,
    )
    assert found and 20 < int(found[1]) < 60 and 5 < int(found[2]) <= 12, line


@pytest.fixture
def short_path():
    """A folder whose path leaves room in a line of the terminal, where a long line breaks."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_model_that_reads_no_pictures_refuses_a_prompt_that_names_one(tmp_path):
    file = tmp_path / "my cat.gif"
    file.write_bytes(GIF)
    escaped = str(file).replace(" ", "\\ ")
    for prompt in (f"What is in '{file}'?", f"describe {escaped}", f"cat: {escaped}."):
        failed(cli("run", MODEL, prompt), f"{MODEL} reads no pictures, and {file} is one")
        failed(cli("run", MODEL, stdin=prompt), f"{MODEL} reads no pictures, and {file} is one")
    for prompt in (f"What is in {tmp_path}/dog.png?", f"Is `{file}` a good name?"):
        assert cli("run", MODEL, prompt, *GREEDY, "--max-tokens", "2").returncode == 0, "it is text"
    aside = cli("run", MODEL, "Summarise this.", *GREEDY, "--max-tokens", "2", stdin=f"see '{file}'")
    assert aside.returncode == 0, "a text before the prompt names no pictures"
    (tmp_path / "text.png").write_text("no picture")
    failed(cli("run", MODEL, f"describe {tmp_path}/text.png"), "text.png: the bytes are of no known type", "between backticks")


def test_pictures_are_attached_listed_and_dropped(short_path):
    for name in ("one.gif", "a b.gif"):
        (short_path / name).write_bytes(GIF)
    chat = Terminal("--max-tokens", "2")
    chat.prompt()
    assert "no pictures are attached" in chat.ask("/image")
    assert chat.ask(f"/image {short_path}/one.gif") == "[picture 1: one.gif, 1 × 1]\n"
    both = "[picture 1: one.gif, 1 × 1]\n[picture 2: a b.gif, 1 × 1]\n"
    assert chat.ask(f"/image {short_path}/a b.gif") == both and chat.ask("/image") == both
    assert "gone.gif: expected a picture" in chat.ask(f"/image '{short_path}/a b.gif' {short_path}/gone.gif") and chat.ask("/image") == both
    refusal = chat.ask("What are they?")
    assert "reads no pictures" in refusal and "/image clear drops the attached pictures" in refusal, refusal
    assert "no messages yet" in chat.ask("/show messages") and chat.ask("/image") == both, "they stay for another model"
    chat.type(f"/image {short_path}/on\t")
    chat.until("one.gif")
    chat.type("\x15")
    assert "no pictures are attached" in chat.ask("/image clear") and "reads no pictures" not in chat.ask("Hi")
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_reasoning_is_switchable_only_if_the_template_supports_it():
    failed(cli("run", MODEL, "x", "--think", "on"), "has no switch for reasoning")
    failed(cli("run", MODEL, "x", "--think", "perhaps"), "--think", "perhaps")


def test_reasoning_is_not_written_to_a_pipe(tmp_path):
    (tmp_path / "open.jinja").write_text(OPEN)
    path = show(MODEL)["path"]
    config = tmp_path / "c.toml"
    source = f"source = {{ type = 'file', path = '{path}' }}"
    config.write_text(f"[[models]]\nid = 'thinker'\nchat_template = '{tmp_path}/open.jinja'\n{source}\n")
    done = cli("--config", config, "run", "thinker", QUESTION, *GREEDY, "--max-tokens", "8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", ""), "the answer contains reasoning only"
    answer = cli("--config", config, "run", "thinker", QUESTION, *GREEDY, "--max-tokens", "8", "--think", "off")
    assert answer.returncode == 0 and "Paris" in answer.stdout, answer


def test_a_model_file_can_be_named():
    with tempfile.TemporaryDirectory() as folder:
        file = shutil.copy(show(MODEL)["path"], Path(folder, "some-model.gguf"))
        done = cli("run", file, QUESTION, *GREEDY, "--max-tokens", "12")
        assert done.returncode == 0 and done.stdout.startswith("The capital of France is Paris."), done.stderr
        failed(cli("run", Path(folder, "other.gguf"), QUESTION), "other.gguf")
    failed(cli("run", "nope:1b", QUESTION), "nope:1b")


def test_a_closed_pipe_is_not_an_error():
    process = subprocess.Popen(
        [BINARY, "run", MODEL, "Tell me a story.", *GREEDY],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    )
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(20) != 0 and process.stderr.read() == b""


def test_an_interrupt_ends_the_answer():
    process = subprocess.Popen(
        [BINARY, "run", MODEL, "Write a very long story.", *GREEDY],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    )
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130 and b"interrupted" in process.stderr.read()


def test_a_chat_knows_its_commands():
    chat = Terminal("--max-tokens", "12")
    chat.prompt()
    first = chat.ask(QUESTION)
    assert first.startswith("The capital of France is Paris."), first
    assert "is not a command (did you mean /help?)" in chat.ask("/hepl")
    assert "/clear" in chat.ask("/help") and "/save" in chat.ask("/?")
    assert "assistant: The capital of France is Paris." in chat.ask("/show messages")
    chat.ask("/clear")
    assert "no messages yet" in chat.ask("/show messages")
    assert chat.ask(QUESTION) == first, "the model gets nothing of the cleared conversation"
    assert "llama" in chat.ask("/show model")
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_settings_change_the_answers():
    chat = Terminal()
    chat.prompt()
    assert "max_tokens is 3" in chat.ask("/set parameter num_predict 3")
    short = chat.ask(QUESTION)
    assert len(short.split()) <= 3, short
    assert "max_tokens is 12" in chat.ask("/set max_tokens 12")
    assert "stop is" in chat.ask("/set stop is")
    chat.ask("/clear")
    assert chat.ask(QUESTION) == "The capital of France \n", "the stop text is not shown"
    assert "system is" in chat.ask("/set system Answer in French.")
    table = chat.ask("/show")
    assert re.search(r'^system +"Answer in French\."$', table, re.M) and re.search(r"^temperature +0$", table, re.M), table
    assert re.search(r"^top_p +0\.9 \(the model's\)$", table, re.M), table
    assert "temperature is a number from 0 to 2" in chat.ask("/set temperature 9")
    assert "did you mean temperature?" in chat.ask("/set tempreature 1")
    assert "no switch for reasoning" in chat.ask("/set think on")
    assert "verbose is on" in chat.ask("/set verbose")
    chat.ask("/set nothing")
    assert "tokens/s" in chat.ask("Hi"), "figures are printed, and are not part of the answer"
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_quotes_hold_a_message_of_several_lines_together():
    chat = Terminal("--max-tokens", "2")
    chat.prompt()
    chat.type('"""One\r')
    chat.until(MORE)
    chat.type("/bye\r")
    chat.until(MORE)
    chat.type('two"""\r')
    chat.until("\r\n")
    chat.prompt()
    assert "user: One\n/bye\ntwo\nassistant: " in chat.ask("/show messages")
    chat.type('"""dropped\r')
    chat.until(MORE)
    chat.type("\x03")
    chat.prompt()
    assert "dropped" not in chat.ask("/show messages")
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_a_conversation_is_kept_in_a_file(tmp_path):
    file = tmp_path / "talk.json"
    chat = Terminal("--max-tokens", "12")
    chat.prompt()
    chat.ask(QUESTION)
    chat.ask("/set seed 7")
    assert f"saved to {file}" in chat.ask(f"/save {file}")
    before = chat.ask("/show messages")
    chat.ask("/clear")
    chat.ask("/set nothing")
    assert "2 messages" in chat.ask(f"/load {file}")
    assert chat.ask("/show messages") == before
    assert re.search(r"^seed +7$", chat.ask("/show"), re.M)
    assert f"saved to {file}" in chat.ask(f"/save {file}"), "a file that contains a conversation may be replaced"
    other = tmp_path / "other.json"
    other.write_text('{"precious": true}')
    assert "not replaced" in chat.ask(f"/save {other}") and other.read_text() == '{"precious": true}'
    for text in ("{", '{"format": "x", "model": "m", "messages": []}', file.read_text().replace('"seed": 7', '"seed": 7, "top_q": 1')):
        other.write_text(text)
        assert str(other) in chat.ask(f"/load {other}")
    other.write_text(file.read_text().replace('"top_p": null', '"top_p": 7'))
    assert "top_p is a number" in chat.ask(f"/load {other}")
    assert chat.ask("/show messages") == before, "a failed load changes nothing"
    assert "cannot read" in chat.ask(f"/load {tmp_path}/gone.json")
    assert "name of a file is missing" in chat.ask("/save")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "talk.json"]
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_an_export_of_the_page_is_loaded_and_continued(tmp_path):
    messages = [
        {"id": "a", "parent": None, "role": "user", "content": "Hi"},
        {"id": "b", "parent": "a", "role": "assistant", "content": "one", "state": "done", "model": MODEL},
        {"id": "c", "parent": "a", "role": "assistant", "content": "two", "state": "done", "model": MODEL},
    ]
    one = {"title": "Hi", "head": "b", "model": MODEL, "settings": {"system": "Be brief.", "seed": "7"}, "messages": messages}
    file = tmp_path / "export.json"
    chat = Terminal("--max-tokens", "2")
    chat.prompt()
    file.write_text(json.dumps({"format": "penstock-chat", "version": 1, "conversations": [one]}))
    assert "2 messages" in chat.ask(f"/load {file}")
    assert chat.ask("/show messages") == "user: Hi\nassistant: one\n", "the branch that the page showed"
    assert "Be brief." in chat.ask("/show system") and re.search(r"^seed +7$", chat.ask("/show"), re.M)
    assert "not replaced" in chat.ask(f"/save {file}"), "the other branches would be lost"
    file.write_text(json.dumps({"format": "penstock-chat", "version": 1, "conversations": [one, one]}))
    assert "2 conversations, expected one" in chat.ask(f"/load {file}")
    chat.type("/bye\r")
    assert chat.ends() == 0


def test_the_history_is_kept_on_disk(tmp_path):
    for keys, expected in ((None, None), ("\x1b[A", "/show messages"), ("\x1b[A\x1b[A", "/set max_tokens 2")):
        chat = Terminal("--max-tokens", "2", state=tmp_path)
        chat.prompt()
        if keys:
            chat.type(keys)
            chat.until(expected)
            chat.type("\x15")  # clears the line
        else:
            chat.ask("/set max_tokens 2")
            chat.ask("/show messages")
        chat.type("\x04")
        assert chat.ends() == 0
    file = tmp_path / "penstock" / "history"
    assert file.stat().st_mode & 0o077 == 0, "other users cannot read the history"
    kept = file.read_text()
    chat = Terminal(state=tmp_path)
    chat.prompt()
    chat.ask("/set history off")
    chat.ask("/show system")
    chat.type("\x04")
    assert chat.ends() == 0
    assert "/show system" not in file.read_text() and file.read_text().startswith(kept)


@pytest.mark.real_models
def test_keys_typed_while_it_answers_are_kept():
    chat = Terminal("--max-tokens", "60")
    chat.prompt()
    chat.type("Write a very long story about the sea.\r")
    chat.until("\r\n")
    chat.until("sea")
    chat.type("/show modelx\x7f\rhalf a li")
    answer = chat.prompt()
    assert "/show" not in answer and "half" not in answer, "keys are not echoed into the answer"
    assert "architecture" in chat.prompt(), "a completed line is executed"
    chat.until("half a li")
    chat.type("ne\x15")
    chat.type("/bye\r")
    assert chat.ends() == 0


@pytest.mark.real_models
def test_words_are_wrapped_at_the_edge():
    chat = Terminal("--max-tokens", "100", columns=40)
    chat.prompt()
    chat.type("Write a story about the sea.\r")
    chat.until("\r\n")
    wrapped = chat.prompt()
    chat.type("/clear\r")
    chat.prompt()
    chat.type("/set wordwrap off\r")
    chat.prompt()
    chat.type("Write a story about the sea.\r")
    chat.until("\r\n")
    plain = chat.prompt()
    chat.type("/bye\r")
    assert chat.ends() == 0
    lines = wrapped.rstrip("\n").split("\n")
    assert len(lines) > 5 and max(map(len, lines)) <= 40, lines
    assert plain.split() == " ".join(lines).split() and max(map(len, plain.split("\n"))) > 40


@pytest.mark.real_models
def test_the_progress_of_a_long_prompt_is_shown(tmp_path):
    text = "The quick brown fox jumps over the lazy dog. " * 200
    file = tmp_path / "talk.json"
    chat = Terminal("--max-tokens", "2", "--threads", "1")
    chat.prompt()
    chat.ask(f"/save {file}")
    file.write_text(file.read_text().replace('"messages": []', f'"messages": [{{"role": "user", "content": "{text}"}}]'))
    chat.ask(f"/load {file}")
    chat.type("Go on.\r")
    chat.until("reading the prompt: ")
    seen = int(chat.until(" of "))
    total = int(chat.until(" tokens"))
    assert total > 1500 and 0 <= seen < total, (seen, total)
    chat.prompt()
    chat.type("/bye\r")
    assert chat.ends() == 0


@pytest.mark.real_models
def test_ctrl_c_stops_only_the_answer_and_ctrl_d_leaves():
    chat = Terminal()
    chat.prompt()
    chat.type("Write a very long story about the sea.\r")
    chat.until("\r\n")
    chat.until("sea")
    chat.type("\x03")
    chat.prompt(10)
    assert "assistant: " in chat.ask("/show messages"), "the text so far is part of the conversation"
    chat.type("\x03")
    chat.prompt(10)
    chat.type("\x04")
    assert chat.ends() == 0


@pytest.mark.real_models
def test_a_base_model_says_so_once_and_continues_the_text():
    done = cli("run", "gemma3:270m-base", "The capital of France is", *GREEDY, "--max-tokens", "3", timeout=120)
    assert done.returncode == 0 and done.stderr.count("is a base model") == 1, done.stderr
    assert done.stdout.startswith(" ") and done.stdout.strip(), "the word that continues the text"
