#!/usr/bin/env python3
"""Draws curves from the output of `penstock bench --json`, one SVG file per quantity.

    penstock bench model.gguf --context 0,8192,32000 --batch 1,16 --json > decode.json
    penstock bench model.gguf --mixed --at-once 8,32,128 --json > mixed.json
    tests/bench/curves.py decode.json mixed.json --out docs/images

A file holds one object, or an array of objects for several models. Files of the same mode share pictures, in which each line is named
after its model. `LABEL=FILE` names the lines of a file, for example to compare two versions. Uses the standard library only."""

import argparse
import json
import math
import sys
import textwrap
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 32, 44, 48
LINE = 18
# Colours that most people with colour-blindness can tell apart.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555"]

# Per mode: the file's name, the title, the x axis, whether the x axis doubles per step, and the value of a row.
PICTURES = {
    "context": [("decode-context", "decode step [ms]", "tokens of context", False, lambda row: row["decode_step_milliseconds"])],
    "decode": [
        ("decode-batch", "decode step [ms]", "sequences at once", True, lambda row: row["decode_step_milliseconds"]),
        ("decode-rate", "decode tokens per second", "sequences at once", True, lambda row: row["decode_tokens_per_second"]),
    ],
    "mixed": [
        ("mixed-rate", "output tokens per second", "requests at once", True, lambda row: row["output_tokens_per_second"]),
        ("mixed-first", "time to the first token, p99 [ms]", "requests at once", True, lambda row: row["first_token_milliseconds"]["p99"]),
        ("mixed-between", "time between tokens, p99 [ms]", "requests at once", True, lambda row: row["between_tokens_milliseconds"]["p99"]),
    ],
}
ACROSS = {"context": "context", "decode": "batch", "mixed": "at_once"}


def read(arguments: list[str]) -> list[tuple[str | None, dict]]:
    """Reads the reports of all files, each with its file's label."""
    found = []
    for argument in arguments:
        label, _, name = argument.rpartition("=")
        try:
            reports = json.loads(Path(name).read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"{name}: {error}")
        for report in reports if isinstance(reports, list) else [reports]:
            if not isinstance(report, dict) or report.get("mode") not in PICTURES or not report.get("rows"):
                sys.exit(f"{name}: not what `penstock bench --json` prints")
            found.append((label or None, report))
    return found


def lines(reports: list[tuple[str | None, dict]], mode: str, value) -> dict[str, list[tuple[float, float]]]:
    """The points of each line, sorted by x."""
    found: dict[str, list[tuple[float, float]]] = {}
    for label, report in reports:
        for row in report["rows"] if report["mode"] == mode else []:
            name = report["name"] if label is None else f"{report['name']}, {label}"
            if mode == "context":
                name += f", batch {row['batch']}"
            found.setdefault(name, []).append((row[ACROSS[mode]], value(row)))
    return {name: sorted(points) for name, points in found.items()}


def nice(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def draw(title: str, across: str, doubles: bool, curves: dict[str, list[tuple[float, float]]]) -> str:
    points = [point for curve in curves.values() for point in curve]
    scaled = (lambda x: math.log2(max(x, 1))) if doubles else float
    least, most = min(scaled(x) for x, _ in points), max(scaled(x) for x, _ in points)
    step = nice(max(y for _, y in points) / 5)
    top = max(math.ceil(max(y for _, y in points) / step - 1e-9), 1) * step
    place = lambda x: LEFT + ((scaled(x) - least) / (most - least) if most > least else 0.5) * (WIDTH - LEFT - RIGHT)
    height = lambda y: HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)
    text = lambda x, y, words, more="": f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'
    svg = [text(LEFT, 24, title, ' font-weight="bold"')]
    for i in range(round(top / step) + 1):
        y = height(i * step)
        svg.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        svg.append(text(LEFT - 6, y + 4, number(i * step), ' text-anchor="end"'))
    last = -math.inf
    for x in sorted({x for x, _ in points}):
        if place(x) - last >= 40:  # keeps labels from overlapping
            last = place(x)
            svg.append(text(last, HEIGHT - BOTTOM + 18, number(x), ' text-anchor="middle"'))
    svg.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, ' text-anchor="middle"'))
    for i, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{place(x):.1f},{height(y):.1f}" for x, y in curve)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in curve:
            svg.append(f'<circle cx="{place(x):.1f}" cy="{height(y):.1f}" r="3.5" fill="{colour}"><title>{number(y)}</title></circle>')
        y = HEIGHT + LINE * (i + 1)
        svg.append(f'<rect x="{LEFT}" y="{y - 6}" width="14" height="4" fill="{colour}"/>')
        svg.append(text(LEFT + 20, y, name))
    whole = HEIGHT + LINE * (len(curves) + 1)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole}" width="{WIDTH}" height="{whole}"'
    head += f' font-family="system-ui, sans-serif" font-size="12" fill="#222">\n<title>{escape(title)}</title>\n'
    lines = [*head.splitlines(), '<rect width="100%" height="100%" fill="#fff"/>', *svg, "</svg>"]
    return "\n".join(textwrap.fill(line, 120, break_long_words=False, break_on_hyphens=False) for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="[LABEL=]FILE.json")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    parser.add_argument("--prefix", default="", help="a prefix for the names of the pictures")
    args = parser.parse_args()
    reports = read(args.files)
    args.out.mkdir(parents=True, exist_ok=True)
    for mode, pictures in PICTURES.items():
        for name, title, across, doubles, value in pictures:
            curves = lines(reports, mode, value)
            if curves:
                path = args.out / f"{args.prefix}{name}.svg"
                path.write_text(draw(title, across, doubles, curves))
                print(path)


if __name__ == "__main__":
    main()
