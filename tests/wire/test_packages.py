"""Packages as users get them (tools/package): each is built from the tested binary, installed into an empty place, started, asked a
question, and removed without a trace."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import BINARY, MODEL, ROOT, cli, features
from installed import QUESTION, NpmPlace, TarballPlace, WheelPlace, is_root, npm_path, place_for, run

BASE_URL = "https://downloads.example.org/penstock"
needs_npm = pytest.mark.skipif(npm_path() is None, reason="npm is not installed")


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian package {package})")
    return found


# a binary for tests is packaged for a test alone
FOR_TESTS = ["--for-tests"] if features() & {"faults", "test-engine"} else []


def package(*args, **options):
    command = [sys.executable, str(ROOT / "tools" / "package"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def make(out: Path, *args, binary: Path = BINARY, **options) -> dict[str, Path]:
    """Makes packages. Returns their paths by file extension."""
    done = package(*args, *FOR_TESTS, "--binary", binary, "--out", out, **options)
    assert done.returncode == 0, done.stderr
    return {re.search(r"\.(tar\.gz|\w+)$", path.name)[1]: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    tool("dpkg-deb", "dpkg")
    return make(tmp_path_factory.mktemp("dist"), "wheel", "tarball", "deb", "npm", "formula", "--base-url", BASE_URL)


@pytest.fixture(scope="module")
def models() -> Path:
    """The folder of the tests' models."""
    return Path(json.loads(cli("show", MODEL, "--json").stdout)["path"]).parents[1]


@pytest.fixture
def place(tmp_path, models, packages, request):
    with place_for(packages[request.param], tmp_path / "place", models) as place:
        place.install(packages[request.param])
        yield place


@pytest.fixture(scope="module")
def answer(server) -> str:
    """What the tested binary says to the question."""
    reply = server.chat(QUESTION[0]["content"], max_tokens=16)
    return reply.json()["choices"][0]["message"]["content"]


def assert_serves(place, answer) -> None:
    with place.serving() as server:
        assert server.answer() == answer


def assert_tells_its_build(place) -> None:
    assert place.penstock("--version").splitlines() == cli("--version").stdout.splitlines()


@pytest.mark.parametrize("place", ["whl"], indirect=True)
def test_a_wheel_serves_and_leaves_nothing(place: WheelPlace, answer):
    assert_tells_its_build(place)
    printed = run([place.python, "-m", "penstock", "-V"], env=place.env, cwd=place.home)
    assert printed == cli("-V").stdout
    bad = subprocess.run([place.python, "-m", "penstock", "no-such-command"], env=place.env, cwd=place.home, capture_output=True)
    assert bad.returncode == cli("no-such-command").returncode == 2
    assert_serves(place, answer)
    place.uninstall()
    assert place.left() == []


@pytest.mark.parametrize("place", ["tar.gz"], indirect=True)
def test_a_tarball_serves_and_leaves_nothing(place: TarballPlace, answer):
    assert_tells_its_build(place)
    documents = {path.name for path in (place.prefix / "share/doc/penstock").iterdir()}
    assert {"LICENSE", "THIRD-PARTY.txt", "README.md", "CHANGELOG.md", "example.toml"} <= documents
    # the unit contains the path for which the archive is made
    assert "ExecStart=/usr/local/bin/penstock " in (place.prefix / "lib/systemd/system/penstock.service").read_text()
    assert_serves(place, answer)
    place.uninstall()
    assert place.left() == []


@needs_npm
@pytest.mark.parametrize("place", ["tgz"], indirect=True)
def test_an_npm_package_serves_and_leaves_nothing(place: NpmPlace, answer):
    assert_tells_its_build(place)
    # Node programs that depend on the package start this binary.
    node = shutil.which("node", path=place.env["PATH"])
    script = "const { binary } = require('penstock'); process.stdout.write(binary)"
    binary = run([node, "-e", script], env=place.env | {"NODE_PATH": str(place.prefix / "lib/node_modules")}, cwd=place.home)
    assert os.path.realpath(binary) == os.path.realpath(place.binary)
    assert_serves(place, answer)
    place.uninstall()
    # npm keeps a list of installed packages
    assert [path for path in place.left() if not path.endswith(".package-lock.json")] == []


@pytest.mark.skipif(not is_root(), reason="installing a deb needs root")
@pytest.mark.parametrize("place", ["deb"], indirect=True)
def test_a_deb_serves_and_purging_it_leaves_nothing(place, answer):
    tool("adduser", "adduser")
    assert_tells_its_build(place)
    status = run(place.inside("stat", "-c", "%U %a", "/var/lib/penstock", "/etc/penstock/penstock.toml"))
    assert status == "penstock 750\nroot 644\n"
    place.bring_model()
    assert_serves(place, answer)
    # keys that the package's user adds apply to the service, and both files survive a removal
    assert place.penstock("keys", "add", "ops").startswith("sk-penstock-")
    tool("systemd-analyze", "systemd")
    run(place.inside("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/penstock.service"))
    place.remove()
    assert {"/etc/penstock/penstock.toml", "/var/lib/penstock/keys.toml"} <= set(place.left())
    place.uninstall()
    assert place.left() == []


@pytest.mark.skipif(not is_root(), reason="installing a deb needs root")
@pytest.mark.parametrize("place", ["deb"], indirect=True)
def test_a_deb_installed_again_keeps_changed_settings(place, packages):
    run(place.inside("sh", "-c", "echo '[limits]\nmax_queue = 7' >>/etc/penstock/penstock.toml"))
    place.install(packages["deb"])
    assert "max_queue = 7" in run(place.inside("cat", "/etc/penstock/penstock.toml"))
    place.uninstall()
    assert place.left() == []


def test_a_deb_is_clean_by_lintian(packages):
    done = subprocess.run([tool("lintian", "lintian"), "--fail-on", "error,warning", packages["deb"]], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr


def test_a_wheels_tag_is_what_auditwheel_finds(packages):
    pytest.importorskip("auditwheel")
    tag = re.search(r"py3-none-(\w+)\.whl", packages["whl"].name)[1]
    shown = run([sys.executable, "-m", "auditwheel", "show", packages["whl"]])
    found = re.search(r'following platform tag:\s+"(\w+)"', " ".join(shown.split()))
    assert found and found[1] == tag, shown


def test_a_formula_is_valid_and_installs_the_tarball(packages, tmp_path):
    """Ruby parses it with all warnings. Its `install` runs on the unpacked tarball, with stand-ins for the methods of Homebrew that it
    uses."""
    ruby, formula = tool("ruby", "ruby"), packages["rb"]
    checked = subprocess.run([ruby, "-wc", formula], capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stderr == "", checked.stderr
    run(["tar", "xf", packages["tar.gz"], "-C", tmp_path])
    (unpacked,) = tmp_path.iterdir()
    prefix = tmp_path / "prefix"
    told = json.loads(run([ruby, "-w", ROOT / "tests/wire/homebrew.rb", formula, prefix], cwd=unpacked))
    assert told["url"] == f"{BASE_URL}/{packages['tar.gz'].name}"
    assert told["sha256"] == hashlib.sha256(packages["tar.gz"].read_bytes()).hexdigest()
    assert told["version"] in run([prefix / "bin/penstock", "--version"])
    assert told["service"] == [str(prefix / "opt/bin/penstock"), "serve"]
    assert (prefix / "share/doc/penstock/THIRD-PARTY.txt").is_file()


def test_the_same_inputs_give_the_same_bytes(packages, tmp_path):
    """A build on another day, from another folder, with another umask and time zone."""
    copy = tmp_path / "elsewhere" / "penstock-copy"
    copy.parent.mkdir()
    shutil.copy(BINARY, copy)
    changed = os.environ | {"TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "7"}
    again = make(tmp_path / "dist", binary=copy, cwd=tmp_path, env=changed, umask=0o077)
    assert set(again) == {"whl", "tar.gz", "deb", "tgz"}
    for end, path in again.items():
        assert path.name == packages[end].name and path.read_bytes() == packages[end].read_bytes(), path.name


def test_the_date_is_that_of_the_sources(packages, tmp_path):
    dated = make(tmp_path, "tarball", env=os.environ | {"SOURCE_DATE_EPOCH": "86400"})["tar.gz"]
    assert "1970-01-02" in run(["tar", "tvf", dated], env=os.environ | {"TZ": "UTC"}).splitlines()[0]
    assert dated.read_bytes() != packages["tar.gz"].read_bytes()


def test_libraries_that_are_linked_in_are_named_with_their_licences(packages):
    listed = run(["tar", "xOf", packages["tar.gz"], "--wildcards", "*/THIRD-PARTY.txt"])
    for name in ("actix-web", "rustls", "utoipa-swagger-ui", "tokio", "num-bigint"):
        assert re.search(rf"^{name} \d\S*: \S+", listed, re.M), name
    # dependencies of tests and build scripts only are not in the binary
    assert not re.search(r"^(proptest|cc) \d", listed, re.M)
    assert "Permission is hereby granted, free of charge" in listed and "Apache License" in listed


@pytest.mark.features("cuda", "faults")
def test_a_wheel_tells_its_engine_and_features_for_tests_are_refused(packages, tmp_path):
    assert "+cuda-py3-none-manylinux_" in packages["whl"].name
    done = package("wheel", "--binary", BINARY, "--out", tmp_path)
    assert done.returncode == 1 and "which is for tests" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--binary", "/no/such/file"), "there is no such binary"),
        (("--binary", "/bin/true"), "--version does not tell"),
        (("--binary", str(ROOT / "README.md")), "does not run here"),
        (("--binary", str(BINARY), "formula"), "give --base-url"),
        (("--binary", str(BINARY), "formula", "--base-url", "ftp://x"), "expected an address"),
        (("--binary", str(BINARY), "formula", "--base-url", "https://x.org"), "no tarball of version"),
        (("--binary", str(BINARY), "--glibc", "2.28"), "built already"),
        (("--features", "cuda", "--static"), "do not go together"),
        (("--features", "cuda", "--glibc", "2.28"), "do not go together"),
        (("--static", "--glibc", "2.28"), "do not go together"),
        (("rpm",), "invalid choice"),
    ],
)
def test_what_cannot_be_packaged_is_refused(args, words, tmp_path):
    done = package(*args, *FOR_TESTS, "--out", tmp_path)
    code = 2 if words in ("invalid choice", "built already") else 1
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
