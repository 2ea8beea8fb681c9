"""Finds what a Linux binary requires of its system: the machine, the libraries, and the versions of their symbols."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

from formats.problem import Problem

MACHINES = {62: "x86_64", 183: "aarch64"}
DYNAMIC, VERSION_NEEDS, SYMBOL_TABLE = 6, 0x6FFFFFFE, 2
TAG_NEEDED = 1
# Libraries that every glibc system provides under these names, or that PEP 600 lets a wheel take from the system.
SYSTEM = re.compile(r"^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[-a-z0-9]+)\.so\.\d+$")
# The oldest glibc of distributions whose libstdc++ has the symbols of a version: (GLIBCXX, CXXABI, glibc), from PEP 600's profiles.
CPLUSPLUS = [((3, 4, 19), (1, 3, 7), (2, 17)), ((3, 4, 24), (1, 3, 11), (2, 28)), ((3, 4, 28), (1, 3, 12), (2, 31))]
CPLUSPLUS += [((3, 4, 29), (1, 3, 13), (2, 34)), ((3, 4, 30), (1, 3, 13), (2, 35)), ((3, 4, 32), (1, 3, 14), (2, 38))]


@dataclass
class Needs:
    machine: str
    libraries: list[str] = field(default_factory=list)
    # The highest version of each family of symbols: {"GLIBC": (2, 34), "GCC": (4, 2, 0)}.
    symbols: dict[str, tuple[int, ...]] = field(default_factory=dict)
    is_stripped: bool = True

    @property
    def glibc(self) -> tuple[int, ...]:
        """The oldest glibc with which the binary starts. Empty if it is linked statically and needs none."""
        needs = [self.symbols["GLIBC"]] if "GLIBC" in self.symbols else []
        for family, column in (("GLIBCXX", 0), ("CXXABI", 1)):
            if family in self.symbols:
                fitting = [row[2] for row in CPLUSPLUS if row[column] >= self.symbols[family]]
                if not fitting:
                    raise Problem(f"the binary needs {family}_{dotted(self.symbols[family])}, which no known distribution has")
                needs.append(fitting[0])
        return max(needs, default=())


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def read(path: Path) -> Needs:
    """Reads a 64-bit, little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise Problem(f"{path}: not a Linux binary of 64 bits (ELF, little endian)")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine not in MACHINES:
        raise Problem(f"{path}: made for the machine number {machine}, expected one of {', '.join(MACHINES.values())}")
    needs = Needs(MACHINES[machine])
    table, (size, count) = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<HH", data, 58)
    # Offsets in a section header: type 4, offset 24, size 32, link 40, info 44.
    sections = [struct.unpack_from("<4xI16xQQII", data, table + size * i) for i in range(count)]
    text = lambda section, at: data[sections[section][1] + at : data.index(b"\0", sections[section][1] + at)].decode()
    for kind, offset, length, link, info in sections:
        if kind == SYMBOL_TABLE:
            needs.is_stripped = False
        if kind == DYNAMIC:
            entries = struct.iter_unpack("<QQ", data[offset : offset + length])
            needs.libraries = sorted(text(link, value) for tag, value in entries if tag == TAG_NEEDED)
        if kind == VERSION_NEEDS:
            for name in version_names(data, offset, info, lambda at: text(link, at)):
                family, _, version = name.partition("_")
                number = tuple(int(part) for part in version.split(".") if part.isdigit())
                needs.symbols[family] = max(needs.symbols.get(family, ()), number)
    foreign = [name for name in needs.libraries if not SYSTEM.match(name)]
    if foreign:
        raise Problem(f"{path}: needs {', '.join(foreign)}, which not every system has: link it statically")
    return needs


def version_names(data: bytes, offset: int, count: int, text):
    """The names of the versions that a binary requires, such as `GLIBC_2.34`."""
    for _ in range(count):
        num_names, at, following = struct.unpack_from("<2xH4xII", data, offset)
        name = offset + at
        for _ in range(num_names):
            where, step = struct.unpack_from("<8xII", data, name)
            yield text(where)
            name += step
        offset += following
