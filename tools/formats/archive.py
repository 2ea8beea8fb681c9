"""Writes archives whose bytes depend only on their contents and a date: sorted names, one owner, one time, no file name in the header."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import zipfile
from pathlib import Path

# Path in the archive → (contents, mode).
Tree = dict[str, tuple[bytes, int]]
PROGRAM, DATA = 0o755, 0o644


def compress(data: bytes, level: int = 9) -> bytes:
    """Compresses data to a gzip file without a file name and a time."""
    return gzip.compress(data, level, mtime=0)


def tar_gz(tree: Tree, date: int, level: int, has_folders: bool = True) -> bytes:
    """Packs a tree into a compressed tar archive. npm's archives have no entries for folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        folders = {str(parent) for path in tree for parent in Path(path).parents if str(parent) != "."}
        for path in sorted([*tree, *(folders if has_folders else [])]):
            info = tarfile.TarInfo(path)
            info.mtime = date
            if path in tree:
                data, info.mode = tree[path]
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
    return compress(buffer.getvalue(), level)


def zip_file(tree: Tree, date: int, level: int) -> bytes:
    """Packs a tree into a zip archive, in the tree's order. Zip supports times since 1980."""
    buffer = io.BytesIO()
    stamp = time.gmtime(max(date, 315532800))[:6]
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for path, (data, mode) in tree.items():
            info = zipfile.ZipInfo(path, stamp)
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def write_tree(tree: Tree, folder: Path, date: int) -> None:
    """Writes a tree to a folder, with its modes and the same time for everything."""
    import os

    for path, (data, mode) in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(mode)
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (date, date))
