"""Every path, command, setting and metric that a document names exists: links and their anchors, files, flags, build targets and tests."""

import functools
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from harness import ROOT, cli

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "notes/*.md", "fuzz/README.md", "tests/**/README.md", "config/*.toml", "deploy/**/*.*")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
# Folders with built, installed or generated files, which are not part of the project.
MADE = {".git", ".venv", ".cache", "target", "node_modules", "dist", "__pycache__", "corpus"}
# Names that documents use but no file has: files that a reader creates, files of examples, and a library.
IMAGINED = {"config/local.toml", "x.rs", "x_tests.rs", "test_NAME.py", "highlight.js"}
TOP_LEVEL = "build|config|cuda|deploy|docs|fuzz|notes|openapi|page|src|tests|tools"
# By file extension: the folders in which a bare file name is looked up.
HOMES = {
    ".rs": ("src", "fuzz", "build", "tests/it", "tests/fixtures"),
    ".cu": ("cuda",),
    ".cuh": ("cuda",),
    ".h": ("cuda", "page"),
    ".inc": ("cuda",),
    ".js": ("page/src",),
    ".mjs": ("page", "tests/clients/node"),
    ".py": ("tests", "tools"),
    ".sh": ("tests/bench", "fuzz"),
    ".md": ("docs", "notes"),
}


@functools.cache
def project() -> frozenset[str]:
    """The paths of all files and folders of the project, relative to its root."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE and not name.startswith(".venv")]
        found |= {(Path(folder) / name).relative_to(ROOT).as_posix() for name in [*folders, *files]}
    return frozenset(found)


@functools.cache
def ends() -> dict[str, set[str]]:
    """Maps every suffix of a path to the paths that end with it: `engine/lib.rs` and `lib.rs` to `src/engine/lib.rs`."""
    found: dict[str, set[str]] = {}
    for path in project():
        parts = path.split("/")
        for at in range(len(parts)):
            found.setdefault("/".join(parts[at:]), set()).add(path)
    return found


@functools.cache
def ending_with(pattern: str) -> set[str]:
    """The paths that end with the pattern, in which `*`, `…` and placeholders in capitals match any part of a name."""
    pattern = pattern.strip("/")
    pieces = re.split(r"[*…]+|(?<![A-Z])(?:NAME|OP|ROOM|TARGET|FOLDER)(?![A-Z])", pattern)
    if len(pieces) == 1:
        return ends().get(pattern, set())
    expression = re.compile("[^/]*".join(map(re.escape, pieces)))
    return set().union(*(paths for end, paths in ends().items() if expression.fullmatch(end)))


def is_made(path: str) -> bool:
    return any(part in MADE or part.startswith(".venv") for part in path.split("/"))


def names_a_path(path: str, document: str) -> bool:
    """Whether this is a path relative to the root or to the document's folder, or the end of one in the folders for its extension:
    `engine/lib.rs`."""
    path = path.removeprefix("./")
    if path in IMAGINED or is_made(path):
        return True
    whole = {path.strip("/").count("/"), os.path.normpath(Path(document).parent / path).count("/")}
    homes = tuple(f"{home}/" for home in HOMES.get(Path(path).suffix, ("src", "cuda", "tests", "page", "deploy", "fuzz", "docs")))
    found = ending_with(path) | ending_with(os.path.normpath(Path(document).parent / path))
    return any(one.startswith(homes) or one.count("/") in whole for one in found)


# Links


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).strip().replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", without_fences(text), re.M)}


def broken_links(document: str, text: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = os.path.normpath(Path(document).parent / path) if path else document
        if path and file not in project():
            yield f"({target}): {file} does not exist"
        elif anchor and anchor not in anchors(text if file == document else (ROOT / file).read_text()):
            yield f"({target}): {file} has no such heading"


# Code


def without_fences(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)


def fences(text: str) -> list[tuple[str, str]]:
    """Lists the code blocks, each with its language."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.S)


def inline(text: str) -> list[str]:
    """Lists the code in backticks, including code that spans the end of a line."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", without_fences(text))]


def broken_paths(document: str, text: str):
    """Checks paths from the root anywhere in the text, and names of files and folders in backticks."""
    for path in re.findall(rf"(?<![\w./$~=:-])(?:{TOP_LEVEL})/[\w.*/-]*[\w*/]", text):
        if not names_a_path(path, document):
            yield f"{path}: no such path"
    if document.endswith(".md"):
        for code in inline(text):
            endings = "|".join(re.escape(ending) for ending in HOMES)
            is_file = re.fullmatch(rf"[\w.*…-]+(/[\w.*…-]+)*({endings})", code)
            is_folder = re.fullmatch(r"[a-z_-]+(/[\w.*-]+)*/", code)
            if (is_file or is_folder) and not names_a_path(code, document):
                yield f"`{code}`: no such file or folder"


def commands(text: str, document: str) -> list[list[str]]:
    """Splits the commands of shell blocks and of code in backticks into words."""
    lines = []
    for language, block in fences(text):
        if language in ("sh", ""):
            lines += block.replace("\\\n", " ").splitlines()
    lines += [code for code in inline(text) if re.match(r"(\w+=\S+ )*(penstock|cargo|\S*pytest|\S*python3? -m pytest|\S+/\S+) ?", code)]
    if document.startswith(("deploy/", "config/")):
        lines = re.findall(r"`([^`\n]+)`", text)
    words = []
    for line in lines:
        try:
            pieces = shlex.shlex(line.replace("…", "WORDS").replace("'", " ").split(" # ")[0], posix=True, punctuation_chars="|&;<>")
            pieces.whitespace_split, pieces.commenters, pieces.escape = True, "", ""
            one: list[str] = []
            for word in [*pieces, ";"]:
                if set(word) <= set("|&;"):
                    words.append(one)
                    one = []
                else:
                    one.append(word)
        except ValueError:
            # a quotation that ends on another line
            continue
    stripped = [list(strip_environment(one)) for one in words]
    return [one for one in stripped if one]


def strip_environment(words: list[str]) -> list[str]:
    while words and (re.match(r"[A-Z_a-z]+=", words[0]) or words[0] in ("sudo", "env", "export")):
        words = words[1:]
    return words


# Penstock's own command line


@functools.cache
def help_of(*command: str) -> str | None:
    done = cli(*command, "--help")
    return done.stdout if done.returncode == 0 else None


def flags_of(page: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])(--[a-z][\w-]*|-[a-zA-Z])\b", page))


def subcommands(page: str) -> list[str]:
    section = page.partition("Commands:")[2].partition("\n\n")[0]
    return re.findall(r"^  (\S+) ", section, re.M)


def is_placeholder(word: str) -> bool:
    return word.isupper() or not word.isascii()


def broken_penstock(words: list[str]):
    page, command, rest = help_of(), [], list(words[1:])
    while rest:
        word = rest.pop(0)
        if word in (">", "<", ">>"):
            return
        if word.startswith("-") and len(word) > 1:
            if word.split("=")[0] not in flags_of(page):
                yield f"penstock {' '.join([*command, word])}: no such flag"
            elif not command and word == "--config":
                rest = rest[1:]
        elif subcommands(page):
            if is_placeholder(word):
                return
            command.append(word)
            page = help_of(*command)
            if page is None:
                yield f"penstock {' '.join(command)}: no such command"
                return


# Cargo and pytest


@functools.cache
def manifests() -> dict[str, dict]:
    """The workspace's manifests by package name."""
    root = tomllib.loads((ROOT / "Cargo.toml").read_text())
    folders = [".", *root["workspace"]["members"]]
    read = [tomllib.loads((ROOT / folder / "Cargo.toml").read_text()) for folder in folders]
    return {manifest["package"]["name"]: manifest for manifest in read}


@functools.cache
def code(pattern: str) -> str:
    return "\n".join((ROOT / path).read_text() for path in sorted(project()) if re.fullmatch(pattern, path) and (ROOT / path).is_file())


@functools.cache
def has_rust_test(part: str) -> bool:
    """Whether the path of a Rust test ends with this part: `tokenizer::tests::throughput`, `gpu`."""
    last = part.split("::")[-1]
    return bool(re.search(rf"\b(fn|mod) \w*{re.escape(last)}", code(r"(src|tests|fuzz)/.*\.rs")))


def broken_cargo(words: list[str]):
    if len(words) < 2 or words[1] not in ("build", "run", "test", "check", "clippy"):
        return
    if "--" in words:
        words, behind = words[: words.index("--")], words[words.index("--") + 1 :]
    else:
        behind = []
    named, rest = {}, []
    pairs = iter(words[2:])
    for word in pairs:
        if word in ("-p", "--package", "--features", "--test", "--manifest-path", "--target-dir", "--bin"):
            named[word] = next(pairs, "")
        elif not word.startswith("-"):
            rest.append(word)
    package = named.get("-p", named.get("--package"))
    if package and package not in manifests():
        yield f"cargo {words[1]} -p {package}: no such package"
    features = set(manifests().get(package or "penstock", {}).get("features", {}))
    for feature in filter(None, named.get("--features", "").split(",")):
        if feature not in features:
            yield f"cargo {words[1]} --features {feature}: no such feature"
    if "--test" in named and not ({f"tests/{named['--test']}.rs", f"tests/{named['--test']}/main.rs"} & project()):
        yield f"cargo {words[1]} --test {named['--test']}: no such target"
    if "--manifest-path" in named and named["--manifest-path"] not in project():
        yield f"cargo {words[1]} --manifest-path {named['--manifest-path']}: no such file"
    if words[1] == "test":
        parts = rest + [word for word in behind if not word.startswith("-")]
        yield from (f"cargo test {part}: no such test" for part in parts if not is_placeholder(part) and not has_rust_test(part))
    elif words[1] == "run" and package is None:
        yield from broken_penstock(["penstock", *behind])


def broken_pytest(words: list[str]):
    pairs = iter(words[words.index("pytest") + 1 :] if "pytest" in words else words[1:])
    files = []
    for word in pairs:
        if word in ("-k", "-m"):
            value = next(pairs, "")
            names = [name for name in re.findall(r"\w+", value) if name not in ("and", "or", "not")]
            text = code(r"pytest\.ini") if word == "-m" else code(r"tests/.*\.py")
            for name in names:
                if not re.search(rf"^    {name}:" if word == "-m" else rf"def test_\w*{name}|^# {name}", text, re.M):
                    yield f"pytest {word} {name}: nothing has that name"
        elif not word.startswith("-") and not is_placeholder(word) and "/" in word:
            files.append(word.split("::")[0])
    yield from (f"pytest {file}: no such path" for file in files if file not in project())


# Scripts of the project


def broken_script(words: list[str]):
    """Checks that the script's text has every flag of the command."""
    script = words[0].removeprefix("./")
    text = (ROOT / script).read_text()
    if script.startswith("tools/"):
        text += code(r"tools/.*\.py")
    rest = words[1:]
    for word, value in zip(rest, [*rest[1:], ""]):
        if word.startswith("--"):
            known = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
            if word.split("=")[0] not in known:
                yield f"{script} {word}: no such flag"
            elif script == "tests/run" and word == "--only" and value not in re.findall(r"\w+", text.partition("=~ ^(")[2].split(")")[0]):
                yield f"tests/run --only {value}: no such part"


def broken_commands(document: str, text: str):
    for words in commands(text, document):
        program = words[0].removeprefix("./")
        if program == "penstock" or program.endswith("/penstock"):
            yield from broken_penstock(words)
        elif program == "cargo":
            yield from broken_cargo(words)
        elif program == "pytest" or "pytest" in words[:3]:
            yield from broken_pytest(words)
        elif re.search(r"\bpython3?$", program) and len(words) > 1 and words[1] in project():
            yield from broken_script(words[1:])
        elif program in project() and (ROOT / program).is_file() and os.access(ROOT / program, os.X_OK):
            yield from broken_script(words)


def broken_flags(document: str, text: str):
    """Checks flags that stand alone in backticks. Each belongs to a command or to one of the project's scripts."""
    pages = [help_of(), *(help_of(*command) for command in every_command())]
    known = set().union(*(flags_of(page) for page in pages if page))
    scripts = code(r"tests/run|tools/.*|tests/(bench|load)/.*\.py|cuda/bench/.*|tests/it/.*\.rs")
    for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", " \n".join(code for code in inline(text) if code.startswith("--"))):
        if flag not in known and f"{flag}" not in FOREIGN_FLAGS and not re.search(rf"{flag}(?![\w-])", scripts):
            yield f"`{flag}`: no command has this flag"


# Flags of cargo's test harness.
FOREIGN_FLAGS = {"--include-ignored"}


@functools.cache
def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        command = waiting.pop()
        for name in subcommands(help_of(*command) or ""):
            if name != "help":
                found.append((*command, name))
                waiting.append((*command, name))
    return found


# Settings and metrics


@functools.cache
def settings() -> dict[str, set[str]]:
    """The keys of each section of config/example.toml, including those in comments."""
    found: dict[str, set[str]] = {}
    section = ""
    for line in (ROOT / "config" / "example.toml").read_text().splitlines():
        if heading := re.match(r"\[+(\w+)\]+", line):
            section = heading[1]
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            found.setdefault(section, set()).add(key[1])
    return found


# File extensions, which are not keys: `models.yaml`.
FILES = {"js", "json", "md", "py", "rs", "toml", "yaml"}


def broken_settings(document: str, text: str):
    sections = "|".join(settings())
    codes = inline(text) if document.endswith(".md") else [text]
    for section, key in re.findall(rf"(?<![\w./-])({sections})\.([a-z]\w*)(?!\.?\w|\(|::)", "\n".join(codes)):
        if key not in FILES and key not in settings()[section]:
            yield f"{section}.{key}: config/example.toml has no such setting"
    for section, key in re.findall(r"PENSTOCK__([A-Z]+)__([A-Z][A-Z_]*[A-Z])\b", text):
        if key != "KEY" and key.lower() not in settings().get(section.lower(), ()):
            yield f"PENSTOCK__{section}__{key}: config/example.toml has no such setting"
    for language, block in fences(text):
        tables = tomllib.loads(block) if language == "toml" else {}
        for section, table in tables.items():
            for one in table if isinstance(table, list) else [table]:
                if section in settings() and isinstance(one, dict) and set(one) - settings()[section]:
                    yield f"[{section}]: config/example.toml has no {', '.join(sorted(set(one) - settings()[section]))}"


@functools.cache
def metrics() -> set[str]:
    """The names in the sources of the metrics, without a prefix."""
    return set(re.findall(r'"(?:penstock_|vllm:)?([a-z_]+)"', code(r"src/(.*/)?metrics(/.*)?(\.rs)?")))


def broken_metrics(document: str, text: str):
    names = "\n".join(inline(text)) if document.endswith(".md") else text
    for prefix, name in re.findall(r"\b(penstock_|vllm:)([a-z][a-z_]*[a-z])\b", names):
        names = {name, re.sub(r"_(bucket|sum|count)$", "", name)}
        if not names & metrics():
            yield f"{prefix}{name}: no such metric"


RULES = (broken_links, broken_paths, broken_commands, broken_flags, broken_settings, broken_metrics)


def findings(document: str, text: str) -> list[str]:
    if document == "CHANGELOG.md":
        # earlier releases may name features that were removed
        text = text.partition("\n## Unreleased")[2].partition("\n## ")[0]
    return [found for rule in RULES for found in rule(document, text)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document):
    found = findings(document, (ROOT / document).read_text())
    assert not found, "\n".join([document, *found])


def test_the_documents_are_found():
    assert {"README.md", "ARCHITECTURE.md", "docs/api.md", "notes/laboratory.md", "tests/golden/README.md"} <= set(DOCUMENTS)
    assert any(document.startswith("deploy/") for document in DOCUMENTS)


@pytest.mark.parametrize("start", ["README.md", "docs/README.md"])
def test_every_page_is_linked(start):
    targets = re.findall(r"\]\(([^)\s#]+)", (ROOT / start).read_text())
    linked = {os.path.normpath(Path(start).parent / target) for target in targets}
    pages = {path for path in project() if re.fullmatch(r"(docs|notes)/[\w-]+\.md", path)}
    assert not pages - linked - {start}


# A wrong line of a document, a part of the finding, and the corrected line.
WRONG = [
    ("[x](docs/nothing.md)", "docs/nothing.md", "[x](docs/api.md)"),
    ("[x](docs/api.md#nothing)", "no such heading", "[x](docs/api.md#unknown-fields)"),
    ("[x](#nothing)", "no such heading", "# Nothing\n[x](#nothing)"),
    ("see docs/nothing.md", "docs/nothing.md", "see docs/api.md"),
    ("`tests/it/tidy.rs`", "tests/it/tidy.rs", "`tests/it/tidy/`"),
    ("`tidy.rs`", "tidy.rs", "`lib.rs`"),
    ("`scheduler/nothing.rs`", "scheduler/nothing.rs", "`scheduler/lib.rs`"),
    ("`nothing/`", "nothing/", "`scheduler/`"),
    ("`src/model/nothings/`", "src/model/nothings/", "`src/model/archs/`"),
    ("`src/engine/NAME/nothing.rs`", "nothing.rs", "`src/engine/NAME/mod.rs`"),
    ("```sh\npenstock serv\n```", "penstock serv", "```sh\npenstock serve\n```"),
    ("```sh\ncat x | penstock run M --nothing\n```", "--nothing", "```sh\ncat x | penstock run M --verbose\n```"),
    ("`penstock keys forget NAME`", "keys forget", "`penstock keys revoke NAME`"),
    ("`penstock bench M --gens 4`", "--gens", "`penstock bench M --gen 4`"),
    ("`--nothing`", "--nothing", "`--context`"),
    ("`cargo run --release -- server`", "penstock server", "`cargo run --release -- serve`"),
    ("`cargo test -p penstock-nothing`", "penstock-nothing", "`cargo test -p penstock-engine`"),
    ("`cargo build --features nothing`", "nothing", "`cargo build --features cuda`"),
    ("`cargo test --test its`", "its", "`cargo test --test it`"),
    ("`cargo test -- no_such_test`", "no_such_test", "`cargo test -- every_architecture`"),
    ("`cargo run --manifest-path tests/load/bare/Cargo.tom`", "Cargo.tom", "`cargo run --manifest-path tests/load/bare/Cargo.toml`"),
    ("`pytest tests/wire/test_nothing.py`", "test_nothing.py", "`pytest tests/wire/test_chat.py`"),
    ("`pytest -m nothing`", "nothing", "`pytest -m timing`"),
    ("`python -m pytest -k no_such_test`", "no_such_test", "`python -m pytest -k usage`"),
    ("`tests/run --quickly`", "--quickly", "`tests/run --quick`"),
    ("`tests/run --only wires`", "--only wires", "`tests/run --only wire`"),
    ("`tools/package --nothing`", "--nothing", "`tools/package --features cuda`"),
    ("`engine.nothing = 1`", "engine.nothing", "`engine.mmap = false`"),
    ("`PENSTOCK__SERVER__PORTS=1`", "PENSTOCK__SERVER__PORTS", "`PENSTOCK__SERVER__PORT=1`"),
    ('```toml\n[traces]\nendpoints = ""\n```', "endpoints", '```toml\n[traces]\nendpoint = ""\n```'),
    ("`penstock_nothing_total`", "penstock_nothing_total", "`penstock_log_lines_lost_total`"),
    ("`vllm:nothing`", "vllm:nothing", "`vllm:num_requests_waiting`"),
]


@pytest.mark.parametrize(("wrong", "named", "right"), WRONG)
def test_a_wrong_document_is_found(wrong, named, right):
    found = findings("WRONG.md", f"# A document\n\n{wrong}\n")
    assert found and all(named in one for one in found), found
    assert not findings("WRONG.md", f"# A document\n\n{right}\n")


def test_earlier_releases_may_name_removed_commands():
    text = "# Changelog\n\n## Unreleased\n\n- `penstock nothing`\n\n## 0.1.0\n\n- `penstock something`\n"
    assert findings("CHANGELOG.md", text) == ["penstock nothing: no such command"]
