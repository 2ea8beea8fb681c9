""".ci/commits refuses a message whose subject is too long or not imperative, or whose body is missing, both after a base commit and in the
hook."""

import importlib.machinery
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import ROOT

SCRIPT = ROOT / ".ci" / "commits"
GOOD = "Keep the separator\n\nFormats that begin with a line break lost it.\n"
WRONG = [
    (f"Keep {'x' * 68}\n\nFormats lost it, all of them.", "73 characters"),
    ("Tests keep the separator\n\nFormats that begin with a line break lost it.", "imperative"),
    ("Keeping the separator\n\nFormats that begin with a line break lost it.", "imperative"),
    ("Kept: fixed the separator.\n\nFormats that begin with a line break lost it.", "full stop"),
    ("The separator\n\nFormats that begin with a line break lost it.", "imperative"),
    ("keep the separator\n\nFormats that begin with a line break lost it.", "capital letter"),
    ("Keep the separator\nFormats that begin with a line break lost it.", "must be empty"),
    ("Keep the separator", "say why"),
    ("Keep the separator\n\nSigned-off-by: Some Body <some.body@example.com>", "say why"),
]
RIGHT = [
    GOOD,
    f"Keep {'x' * 67}\n\nFormats lost it, all of them.",
    "Pass `n` on to the scheduler\n\nIt was lost on the way there.",
    "Focus the field\n\nA key that was pressed went nowhere.",
    "Merge branch 'x'",
    'Revert "Tests keep the separator"\n\nThis reverts commit 1.',
]


@pytest.fixture(scope="module")
def commits():
    """Loads the script as a module."""
    loader = importlib.machinery.SourceFileLoader("commits", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("commits", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(("message", "fault"), WRONG)
def test_a_wrong_message_is_refused(commits, message, fault):
    assert fault in " ".join(commits.faults(message))


@pytest.mark.parametrize("message", RIGHT)
def test_a_right_message_passes(commits, message):
    assert commits.faults(message) == []


class Repository:
    """A repository of empty commits, isolated from the user's git settings."""

    def __init__(self, folder: Path):
        self.folder, self.time = folder, 1_000_000_000
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *args: str) -> str:
        identity = {f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = {f"GIT_{who}_DATE": f"{self.time} +0000" for who in ("AUTHOR", "COMMITTER")}
        env = os.environ | identity | dates | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *args], cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.time += 60
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Repository(tmp_path)


def test_only_commits_after_the_base_are_checked(commits, repository, capsys):
    repository.commit("an old commit")
    base = repository.commit("a base")
    good = repository.commit(GOOD)
    assert commits.new_commits(base, repository.time) == [good]
    assert commits.check_history(base, repository.time) == 0
    bad = repository.commit("wrong")
    assert commits.check_history(base, 0) == 1
    printed = capsys.readouterr().err
    assert bad[:10] in printed and "an old commit" not in printed


def test_a_merge_and_the_old_branch_that_it_brings_are_not_checked(commits, repository):
    repository.commit("root")
    repository.git("branch", "old")
    base = repository.commit("a base")
    repository.git("checkout", "--quiet", "old")
    repository.commit("begun before the base")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "whatever", "old")
    assert commits.new_commits(base, 0) == []
    repository.commit("wrong")
    assert commits.check_history(base, 0) == 1


def test_without_the_base_newer_commits_with_a_parent_are_checked(commits, repository):
    missing = "1" * 40
    repository.commit("a copy of the sources")
    base_time = repository.time
    assert commits.check_history(missing, 0) == 0, "the root commit is not checked"
    repository.commit("an old commit")
    assert commits.check_history(missing, repository.time) == 0
    repository.commit("wrong")
    assert commits.check_history(missing, repository.time - 1) == 1
    assert len(commits.new_commits(missing, base_time)) == 2


def test_a_shallow_clone_is_checked_from_its_second_commit_on(commits, repository, tmp_path, monkeypatch):
    base = repository.commit("a base")
    for _ in range(3):
        repository.commit("wrong")
    head = repository.commit(GOOD)
    repository.git("clone", "--quiet", "--depth", "2", f"file://{tmp_path}", "shallow")
    monkeypatch.chdir(tmp_path / "shallow")
    assert commits.new_commits(base, 0) == [head]


def test_a_folder_without_history_passes(commits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commits.check_history("1" * 40, 0) == 0
    assert "not checked" in capsys.readouterr().out


def test_the_hook_refuses_a_message(repository):
    repository.git("config", "core.hooksPath", str(ROOT / ".githooks"))
    (repository.folder / ".ci").symlink_to(ROOT / ".ci")
    repository.commit(GOOD)
    with pytest.raises(AssertionError, match="imperative"):
        repository.commit("Tests keep the separator\n\nFormats that begin with a line break lost it.")
    repository.commit("fixup! Keep the separator")


def test_comments_of_the_editor_are_no_body(tmp_path):
    file = tmp_path / "MESSAGE"
    file.write_text(f"Keep the separator\n\n{(ROOT / '.gitmessage').read_text()}\n# ---- >8 ----\n+ a line of the diff\n")
    done = subprocess.run([SCRIPT, "--message", file], capture_output=True, text=True)
    assert done.returncode == 1 and "say why" in done.stderr
    file.write_text(f"{GOOD}\n# a comment\n")
    assert subprocess.run([SCRIPT, "--message", file]).returncode == 0


def test_the_lints_call_the_script():
    assert re.search(r"^commits\(\) \{ \.ci/commits; \}$", (ROOT / "tests" / "run").read_text(), re.M)
    assert re.search(r'^    stage ".*" commits$', (ROOT / "tests" / "run").read_text(), re.M)


def test_the_recorded_base_is_a_commit_of_this_history_or_out_of_reach(commits):
    """A change of the base must also change its time."""
    done = subprocess.run(["git", "show", "-s", "--format=%ct", commits.BASE], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        assert int(done.stdout) == commits.BASE_TIME
    assert re.fullmatch(r"[0-9a-f]{40}", commits.BASE)
