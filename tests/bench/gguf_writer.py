"""Writes GGUF files with random weights fast: makes random blocks once per tensor type, and cuts all tensors from them.

The scales give weights a mean of 0 and a standard deviation of about 0.02, so that activations stay finite.
"""

import functools
import os
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

# Each tensor type's id in files, weights per block, and bytes per block.
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "MXFP4": (39, 32, 17),
}
STD = 0.02
ALIGNMENT = 32
SLAB_BYTES = 32 << 20
THREADS = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Tensor:
    name: str
    dims: tuple  # innermost first
    type: str
    value: float | None = None  # the value of every element; None means random. Only for F32.

    @property
    def elements(self):
        return int(np.prod(self.dims, dtype=np.int64))

    @property
    def bytes(self):
        _, weights, size = TYPES[self.type]
        assert self.dims[0] % weights == 0, f"{self.name}: a row of {self.dims[0]} weights is not a whole number of {self.type} blocks"
        return self.elements // weights * size


def f16(value):
    return np.array([value], np.float16).view(np.uint8)


@functools.cache
def slab(kind):
    """Makes random blocks of one type, about SLAB_BYTES in total."""
    size = TYPES[kind][2]
    count = SLAB_BYTES // size
    rng = np.random.default_rng(1234)
    if kind in ("F32", "F16"):
        return (rng.standard_normal(count, np.float32) * STD).astype(np.float32 if kind == "F32" else np.float16).view(np.uint8)
    b = rng.integers(0, 256, (count, size), dtype=np.uint8)
    # A uniform n-bit number has a standard deviation of 2^n / √12, and a random 6-bit scale has a mean square of 1302.
    match kind:
        case "Q8_0":
            b[:, 0:2] = f16(STD / 74)
        case "Q5_0":
            b[:, 0:2] = f16(STD / 9.2)
        case "Q5_1":
            b[:, 0:2], b[:, 2:4] = f16(STD / 9.2), f16(-15.5 * STD / 9.2)
        case "Q4_K":  # a weight: scale × 6 bits × 4 bits − the minimum's scale × 6 bits
            b[:, 0:2], b[:, 2:4] = f16(STD / 258), f16(7.5 * STD / 258)
        case "Q5_K":
            b[:, 0:2], b[:, 2:4] = f16(STD / 527), f16(15.5 * STD / 527)
        case "Q6_K":  # sixteen signed scales of 8 bits, of which 6 are used here
            b[:, 192:208] = (b[:, 192:208].view(np.int8) // 4).view(np.uint8)
            b[:, 208:210] = f16(STD / 342)
        case "MXFP4":  # the scale is a power of two, stored as its exponent + 127; the sixteen values have a mean square of 8.6
            b[:, 0] = 119 + b[:, 0] % 2
    return b.reshape(-1)


def pieces(index, tensor):
    """Yields runs of bytes that together make up a tensor. Each tensor starts at a different block of the slab."""
    if tensor.value is not None:
        yield np.full(tensor.elements, tensor.value, np.float32).view(np.uint8)
        return
    whole, block = slab(tensor.type), TYPES[tensor.type][2]
    left, start = tensor.bytes, index * 7919 * block % len(whole)
    while left:
        piece = whole[start : start + left]
        yield piece
        left, start = left - len(piece), 0


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value):
    """Encodes a metadata value as its type id and bytes."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, text(value)
        case list():
            parts = [typed(item) for item in value]
            return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(raw for _, raw in parts)
    raise TypeError(f"no GGUF type for {value!r}")


def aligned(offset):
    return -(-offset // ALIGNMENT) * ALIGNMENT


def write(path, metadata, tensors):
    """Writes a GGUF file and returns its bytes.

    Several threads copy into the mapped file, because `write` calls on one file wait for each other, and one thread is slower than memory.
    """
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        kind, raw = typed(value)
        head.append(text(key) + struct.pack("<I", kind) + raw)
    offsets, end = [], 0
    for t in tensors:
        offsets.append(end)
        head.append(text(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, TYPES[t.type][0], end))
        end = aligned(end + t.bytes)
    head = b"".join(head)
    data = aligned(len(head))
    file = create(path, data + end)
    file[: len(head)] = np.frombuffer(head, np.uint8)

    def copy(job):
        offset, piece = job
        file[offset : offset + len(piece)] = piece

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(copy, jobs(tensors, [data + offset for offset in offsets])):
            pass
    return data + end


def jobs(tensors, offsets):
    for index, (tensor, offset) in enumerate(zip(tensors, offsets)):
        for piece in pieces(index, tensor):
            yield offset, piece
            offset += len(piece)


def create(path, size):
    """Creates and maps a file of a given size. Checks the free space first, because a copy beyond it would end the process."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path):
        os.remove(path)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise SystemExit(f"{path}: the file needs {size / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB left")
    return np.memmap(path, np.uint8, "w+", shape=(size,))
