"""`penstock --version` reports what a binary was built from, also if it was built without git."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import ROOT, cli

UNKNOWN = "unknown (built outside of a git checkout)"


def test_the_long_version_reports_the_build_and_the_short_one_is_a_line():
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert cli("-V").stdout == f"penstock {version}\n"
    first, commit, target, features = cli("--version").stdout.splitlines()
    assert first == f"penstock {version}"
    assert re.fullmatch(r"commit:   \S.*", commit)
    assert re.fullmatch(r"target:   \w+-\w+-linux-\w+", target)
    assert re.fullmatch(r"features: (none|[a-z-]+(, [a-z-]+)*)", features)


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    """The build script that finds the commit, compiled as cargo does."""
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    path = tmp_path_factory.mktemp("script") / "version"
    subprocess.run(["rustc", "--edition", "2024", "-o", path, ROOT / "build" / "version.rs"], check=True, cwd=ROOT)
    return path


def told(script: Path, folder: Path, **variables: str) -> dict[str, str]:
    """Returns the variables that the script passes to the compiler for a source tree in `folder`."""
    env = {"PATH": os.environ["PATH"], "TARGET": "x86_64-unknown-linux-gnu", "CARGO_MANIFEST_DIR": str(folder), **variables}
    printed = subprocess.run([script], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^cargo::rustc-env=PENSTOCK_(\w+)=(.*)$", printed, re.M))


def checkout(folder: Path) -> str:
    """Makes a checkout with one commit. Returns the commit."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder)]
    (folder / "src").mkdir()
    (folder / "src" / "main.rs").write_text("fn main() {}\n")
    for args in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *args], check=True)
    return subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_source_archive_without_git_builds_and_says_so(script, tmp_path):
    assert told(script, tmp_path) == {"COMMIT": UNKNOWN, "TARGET": "x86_64-unknown-linux-gnu", "FEATURES": "none"}


def test_a_checkout_reports_its_commit_and_whether_it_was_changed(script, tmp_path):
    commit = checkout(tmp_path)
    assert told(script, tmp_path)["COMMIT"] == commit
    (tmp_path / "src" / "main.rs").write_text("fn main() { todo() }\n")
    assert told(script, tmp_path)["COMMIT"] == f"{commit}, with changes"


def test_an_archive_inside_somebody_elses_checkout_does_not_take_its_commit(script, tmp_path):
    checkout(tmp_path)
    inner = tmp_path / "penstock"
    inner.mkdir()
    assert told(script, inner)["COMMIT"] == UNKNOWN


def test_the_environment_may_name_the_build_and_features_have_cargos_names(script, tmp_path):
    said = told(script, tmp_path, PENSTOCK_BUILD="r42", CARGO_FEATURE_CUDA="1", CARGO_FEATURE_TEST_ENGINE="1", CARGO_FEATURE_DEFAULT="1")
    assert (said["COMMIT"], said["FEATURES"]) == ("r42", "cuda, test-engine")
    assert told(script, tmp_path, PENSTOCK_BUILD=" ")["COMMIT"] == UNKNOWN
