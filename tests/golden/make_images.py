#!/usr/bin/env python3
"""Writes images/layouts.jsonl.gz and images/resizes.jsonl.gz: tiles by the image processors of transformers, and resized pictures.

    make_images.py WHEEL        WHEEL: the folder of an unpacked transformers 5.24 wheel. Needs numpy and Pillow 13.

The size rules are the wheel's own functions. They are compiled alone, because their modules import torch; for the same reason the steps
between them (resize, pad, crop) are written here, with Pillow in the place of torchvision.

A line of layouts.jsonl: the keys of a model's file, a picture's size, the tiles (width, height, CRC-32 of the RGB pixels), and the text
with `@` in the place of a tile's rows, or the number of rows, where the processor tells them. A line of resizes.jsonl: the filter
(bilinear, bicubic, Lanczos), the size, the new size, the CRC-32.
"""

import ast
import gzip
import json
import math
import random
import sys
import zlib
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
BILINEAR, BICUBIC, LANCZOS = Image.BILINEAR, Image.BICUBIC, Image.LANCZOS
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
BLACK = (0, 0, 0)


def picture(w: int, h: int) -> Image.Image:
    """The picture of src/images/test_picture.rs."""
    x, y = np.meshgrid(np.arange(w, dtype=np.int64), np.arange(h, dtype=np.int64))
    p = np.stack([x * 255 // max(w - 1, 1), y * 255 // max(h - 1, 1), (37 * x + 91 * y) % 256], axis=-1)
    p[(4 * x - 2 * w) ** 2 * h * h + (4 * y - 2 * h) ** 2 * w * w < (w * h) ** 2] = (220, 40, 60)
    p[(w // 8 <= x) & (x < w // 3) & (h // 8 <= y) & (y < h // 3)] = (20, 200, 90)
    p[x * h // w == y] = (255, 255, 255)
    return Image.fromarray(p.astype(np.uint8))


def functions(path: Path) -> SimpleNamespace:
    """All functions and methods of a file, without their annotations and decorators."""
    torch = SimpleNamespace(where=np.where, max=np.max, min=np.min, argmin=np.argmin)
    scope = {"math": math, "np": np, "lru_cache": lru_cache, "defaultdict": defaultdict, "torch": torch, "SizeDict": SimpleNamespace}
    scope["get_image_size"] = lambda size, *_, **__: size
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            node.decorator_list, node.returns = [], None
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
            try:
                exec(compile(ast.Module([node], []), str(path), "exec"), scope)
            except NameError:  # a default value that only the module knows: not one of the size rules
                pass
    return SimpleNamespace(**scope)


class Processors:
    """A method per projector: the tiles of a picture, and its text or its number of rows, if the processor tells them."""

    def __init__(self, wheel: Path):
        models = wheel / "transformers/models"
        self.utils = functions(wheel / "transformers/image_processing_utils.py")
        self.qwen = functions(models / "qwen2_vl/image_processing_pil_qwen2_vl.py")
        self.glm = functions(models / "glm4v/image_processing_pil_glm4v.py")
        self.gemma = functions(models / "gemma4/image_processing_pil_gemma4.py")
        self.idefics = functions(models / "idefics3/image_processing_pil_idefics3.py")
        self.pixtrals = functions(models / "pixtral/image_processing_pil_pixtral.py")
        self.next_text = functions(models / "llava_next/processing_llava_next.py")
        self.got = functions(models / "got_ocr2/image_processing_pil_got_ocr2.py")
        self.minicpm = functions(models / "minicpmv4_6/image_processing_pil_minicpmv4_6.py")
        self.llama = functions(models / "llama4/image_processing_llama4.py")
        self.lfm = functions(models / "lfm2_vl/image_processing_lfm2_vl.py")

    def gemma3(self, image, keys):
        return [resize(image, square(keys), BILINEAR)], None

    def qwen2vl_merger(self, image, keys):
        cell = 2 * keys.get("patch_size", 14)
        size = self.qwen.smart_resize(image.height, image.width, cell, 8 * cell**2, 4096 * cell**2)
        return [resize(image, size, BICUBIC)], None

    qwen3vl_merger = qwen2vl_merger

    def glm4v(self, image, keys):
        size = self.glm.smart_resize(2, image.height, image.width, 2, 28, 2 * 8 * 784, 2 * 4096 * 784)
        return [resize(image, size, BICUBIC)], None

    def gemma4v(self, image, keys):
        patches = keys["image_max_pixels"] // 256
        size = self.gemma.get_aspect_ratio_preserving_size(image.height, image.width, 16, patches, 3)
        return [resize(image, size, BICUBIC)], None

    def idefics3(self, image, keys):
        side, rules = keys["image_size"], self.idefics
        size = rules._resize_output_size_rescale_to_max_len(image.height, image.width, max_len=keys["preproc_image_size"])
        size = rules._resize_output_size_scale_below_upper_bound(*size, max_len=4096)
        image = resize(image, size, LANCZOS)
        told = SimpleNamespace(resize=lambda _, size, **__: size)
        size = rules.resize_for_vision_encoder(told, SimpleNamespace(shape=(3, *size)), side)
        image = resize(image, (size.height, size.width), LANCZOS)
        fake = "<fake_token_around_image>"
        if max(image.size) <= side:
            return [image], f"{fake}<global-img>@{fake}"
        text = ""
        for row in range(image.height // side):
            text += "".join(f"{fake}<row_{row + 1}_col_{column + 1}>@" for column in range(image.width // side)) + "\n"
        return [*tiles(image, side, side), resize(image, (side, side), LANCZOS)], f"{text}\n{fake}<global-img>@{fake}"

    def pixtral(self, image, keys):
        cell = keys["patch_size"] * keys["spatial_merge_size"]
        size = self.pixtrals.get_resize_output_image_size((image.height, image.width), keys["image_size"], cell)
        return [resize(image, size, BICUBIC)], None

    def mlp(self, image, keys):
        if "image_grid_pinpoints" in keys:
            return self.llava_next(image, keys)
        side = max(image.size)
        canvas = padded(image, (side, side), True, (122, 116, 104))
        return [resize(canvas, square(keys), BICUBIC)], None

    def llava_next(self, image, keys):
        side, size = keys["image_size"], (image.height, image.width)
        best = self.utils.select_best_resolution(size, PINPOINTS)
        small = resize(image, self.utils.get_patch_output_size(size, best, None), BICUBIC)
        patches = side // 14
        grid = (best[0] // side, best[1] // side)
        rows = patches**2 + sum(self.next_text._get_unpadded_features(None, *size, patches, patches, *grid))
        return [resize(image, (side, side), BICUBIC), *tiles(padded(small, best, True), side, side)], rows

    def internvl(self, image, keys):
        side = keys["image_size"]
        columns, rows = self.got.get_optimal_tiled_canvas((image.height, image.width), (side, side), 1, keys["preproc_max_tiles"])
        cut = tiles(resize(image, (side * rows, side * columns), BICUBIC), side, side)
        return cut + [resize(image, (side, side), BICUBIC)] * (len(cut) > 1), None

    def resampler(self, image, keys):
        side, size, rules = keys["image_size"], (image.height, image.width), self.minicpm
        # Version 4.6 merges patches by four in this step, and 2.6 does not.
        best = lambda **named: rules.find_best_resize(None, **(named | {"patch_size": 14 / 4, "downsample_mode": "16x"}))
        whole = lambda size: tuple(map(int, size))
        grid = rules.get_sliced_grid(None, size, 9, side)
        size_of_whole = best(image_size=size, scale_resolution=side, allow_upscale=grid is None)
        cut, text = [resize(image, whole(size_of_whole), BICUBIC)], "<image_id>3</image_id><image>@</image>"
        if grid:
            refined = whole(rules.get_refine_size(SimpleNamespace(find_best_resize=best), size, grid, side, 14, "16x", True))
            refined_image = resize(image, refined, BICUBIC)
            cut += tiles(refined_image, refined[0] // grid[0], refined[1] // grid[1])
            text += "\n".join(["<slice>@</slice>" * grid[1]] * grid[0])
        return cut, text

    def llama4(self, image, keys):
        side, size = keys["image_size"], (image.height, image.width)
        canvases = self.llama.find_supported_resolutions(16, SimpleNamespace(height=side, width=side))
        # torch divides integers as float32
        target = self.llama.get_best_fit(tuple(map(np.float32, size)), np.array(canvases, dtype=np.float32))
        target = tuple(map(int, target))
        room = tuple(min(max(given, side), most) for given, most in zip(size, target))
        fitted = tuple(max(1, s) for s in self.llama.get_max_res_without_distortion(size, room))
        cut = tiles(padded(resize(image, fitted, BILINEAR), target, False), side, side)
        rows, columns = target[0] // side, target[1] // side
        line = "<|tile_x_separator|>".join("@" * columns) + "<|tile_y_separator|>"
        if rows * columns > 1:
            cut.append(resize(image, (side, side), BILINEAR))
        return cut, "<|image_start|>" + line * rows * (rows * columns > 1) + "<|image|>@<|image_end|>"

    def lfm2(self, image, keys):
        rules = SimpleNamespace(_target_ratios=lambda least, most: self.lfm._target_ratios(None, least, most))
        size = (image.height, image.width)
        width, height = self.lfm.smart_resize(None, *size, 2, 64, 256, 16)
        whole = resize(image, (height, width), BILINEAR)
        if not self.lfm._is_image_too_large(None, *size, 256, 16, 2, 2.0):
            return [whole], "<|image_start|>@<|image_end|>"
        columns, rows, width, height, _ = self.lfm._get_grid_layout(rules, *size, 2, 10, 512)
        labels = [f"<|img_row_{row + 1}_col_{column + 1}|>@" for row in range(rows) for column in range(columns)]
        text = "<|image_start|>" + "".join(labels) + "<|img_thumbnail|>@<|image_end|>"
        return [*tiles(resize(image, (height, width), BILINEAR), 512, 512), whole], text

    def kimivl(self, image, keys):
        # The model's own processor is not part of transformers.
        patches = (image.width // 14) * (image.height // 14)
        if patches > 4096:
            scale = math.sqrt(4096 / patches)
            image = resize(image, (int(image.height * scale), int(image.width * scale)), BICUBIC)
        return [padded(image, (image.height + -image.height % 28, image.width + -image.width % 28), False)], None


def square(keys):
    return (keys["image_size"], keys["image_size"])


def resize(image, size, resample):
    return image.resize((size[1], size[0]), resample)


def padded(image, size, is_centred, colour=BLACK):
    canvas = Image.new("RGB", (size[1], size[0]), colour)
    canvas.paste(image, ((size[1] - image.width) // 2 * is_centred, (size[0] - image.height) // 2 * is_centred))
    return canvas


def tiles(image, height, width):
    places = [(x, y) for y in range(0, image.height, height) for x in range(0, image.width, width)]
    return [image.crop((x, y, x + width, y + height)) for x, y in places]


def crc(image) -> str:
    return f"{zlib.crc32(image.tobytes()):08x}"


MODELS = [
    ("gemma3", {"image_size": 896}),
    ("qwen2vl_merger", {}),
    ("qwen3vl_merger", {"patch_size": 16}),
    ("glm4v", {}),
    ("gemma4v", {"image_max_pixels": 280 * 48 * 48}),
    ("gemma4v", {"image_max_pixels": 70 * 48 * 48}),
    ("idefics3", {"image_size": 384, "preproc_image_size": 1536}),
    ("idefics3", {"image_size": 512, "preproc_image_size": 512}),
    ("pixtral", {"image_size": 1024, "patch_size": 16, "spatial_merge_size": 1}),
    ("pixtral", {"image_size": 1540, "patch_size": 14, "spatial_merge_size": 2}),
    ("mlp", {"image_size": 336}),
    ("mlp", {"image_size": 336, "image_grid_pinpoints": sum(PINPOINTS, [])}),
    ("internvl", {"image_size": 448, "preproc_max_tiles": 12}),
    ("internvl", {"image_size": 224, "preproc_max_tiles": 6}),
    ("resampler", {"image_size": 448}),
    ("llama4", {"image_size": 336}),
    ("lfm2", {}),
    ("kimivl", {}),
]


def random_size(rng: random.Random, longest: int):
    """A size of any shape, of a simple shape, long, or near a multiple of a patch."""
    kind = rng.randrange(4)
    width = rng.randint(28, longest)
    if kind == 0:
        return width, rng.randint(28, longest)
    if kind == 1:
        return width, min(max(28, int(width * rng.choice([0.25, 0.5, 0.75, 1, 1.5, 2, 4]))), longest)
    if kind == 2:
        return rng.choice([(rng.randint(28, 200), width), (width, rng.randint(28, 200))])
    return tuple(28 * rng.randint(1, longest // 28) + rng.choice([0, 7, 13, 14, 15]) for _ in range(2))


def layouts(wheel: Path, count: int, rng: random.Random):
    processors = Processors(wheel)
    for projector, keys in MODELS:
        for _ in range(count):
            width, height = random_size(rng, 1600)
            cut, told = getattr(processors, projector)(picture(width, height), keys)
            named = {"clip.projector_type": projector, **{f"clip.vision.{key}": value for key, value in keys.items()}}
            line = {"keys": named, "size": [width, height], "tiles": [[*tile.size, crc(tile)] for tile in cut]}
            yield line | ({} if told is None else {"text" if isinstance(told, str) else "rows": told})


def resizes(count: int, rng: random.Random):
    for _ in range(count):
        longest, number = rng.choice([8, 40, 200, 700]), rng.randrange(3)
        width, height, across, down = (rng.randint(1, longest) for _ in range(4))
        across, down = rng.choice([(across, down), (across, down), (width, down), (across, height)])
        resized = picture(width, height).resize((across, down), [BILINEAR, BICUBIC, LANCZOS][number])
        yield [number, width, height, across, down, crc(resized)]


def write(name: str, values) -> None:
    lines = "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
    packed = gzip.compress(lines.encode(), 9, mtime=0)
    (HERE / "images" / name).write_bytes(packed)
    print(f"{name}: {len(packed):,} bytes")


if __name__ == "__main__":
    write("layouts.jsonl.gz", layouts(Path(sys.argv[1]), 8, random.Random(1)))
    write("resizes.jsonl.gz", resizes(1500, random.Random(2)))
