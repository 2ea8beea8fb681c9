"""Makes a Homebrew formula that installs the tarballs next to it from the place where they are published."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from formats.problem import Problem
from formats.product import SUMMARY, Product

CPUS = {"x86_64": "on_intel", "aarch64": "on_arm"}
SYSTEMS = {"linux": "on_linux", "macos": "on_macos"}
FORMULA = """\
# Written by tools/package: do not edit.
class Penstock < Formula
  desc "{summary}"
  homepage "{homepage}"
  version "{version}"
  license "Apache-2.0"

{platforms}
  def install
    bin.install "bin/penstock"
    doc.install Dir["share/doc/penstock/*"]
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install Dir["share/bash-completion/completions/*"]
    zsh_completion.install Dir["share/zsh/site-functions/*"]
    fish_completion.install Dir["share/fish/vendor_completions.d/*"]
  end

  service do
    run [opt_bin/"penstock", "serve"]
    keep_alive crashed: true
    log_path var/"log/penstock.log"
    error_log_path var/"log/penstock.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/penstock --version")
  end
end
"""
PLATFORM = """\
  {system} do
    {cpu} do
      url "{url}"
      sha256 "{digest}"
    end
  end
"""


def write(product: Product, base_url: str | None, folder: Path) -> tuple[str, bytes]:
    """Makes the formula for this version's tarballs in `folder`, which will be published below `base_url`: those of binaries with CUDA if
    the product has it, and else those without."""
    if base_url is None:
        raise Problem("a formula names where its tarballs are published: give --base-url URL")
    if not re.fullmatch(r"(https?|file)://[^\s\"\\#]+", base_url):
        raise Problem(f"--base-url {base_url}: expected an address such as https://example.org/releases")
    variant = f"-{product.variant}" if product.variant else ""
    platforms: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob(f"penstock-{product.version}-*.tar.gz")):
        found = re.fullmatch(rf"penstock-{re.escape(product.version)}-(\w+?)-(linux|macos)(-gnu|-static)?{variant}\.tar\.gz", path.name)
        if found and found[1] in CPUS:
            url = f"{base_url.rstrip('/')}/{path.name}"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            # If there is a static and a dynamic tarball for the same machines, the static one, which comes last, runs on more of them.
            place = SYSTEMS[found[2]], CPUS[found[1]]
            platforms[place] = PLATFORM.format(system=place[0], cpu=place[1], url=url, digest=digest)
    if not platforms:
        kind = "with" if variant else "without"
        raise Problem(f"{folder} has no tarball of version {product.version} {kind} CUDA: make `tarball` first, or both in one call")
    homepage = base_url if base_url.startswith("http") else "https://penstock.invalid"
    formula = FORMULA.format(summary=SUMMARY, homepage=homepage, version=product.version, platforms="\n".join(platforms.values()))
    return "penstock.rb", formula.encode()
