"""Measures what the chat page costs a browser while an answer arrives, and how soon a second tab in the same process is ready: with the
real model at full speed, and with an answer at a set pace, at the browser's full speed and at a fraction of it.

    cargo build --release
    .venv/bin/python tests/load/page.py

Needs Debian's Chromium. Shares are of one core, so other work hardly changes them. Times need an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "wire")]
from chat_page import CHROMIUM, ask, parameters  # noqa: E402
from harness import MODEL, Server  # noqa: E402
from page_frames import KINDS, WATCH, forced_layouts, measure, metrics  # noqa: E402
from paced_answers import PacedAnswers  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

SHARED = ["--renderer-process-limit=1", "--disable-site-isolation-trials", "--disable-features=IsolateOrigins,site-per-process"]
MAX_CPU, MAX_LAG, MAX_TAB = 0.3, 0.5, 2.0
ANSWER = ".assistant > .text"


class Page:
    """The chat page in a new browser whose tabs all share a process."""

    def __init__(self, playwright, url: str):
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*root, *SHARED])
        self.url = url
        self.page = self.browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        self.load(self.page)
        self.session = self.page.context.new_cdp_session(self.page)
        self.session.send("Performance.enable")
        self.page.evaluate(WATCH)

    def load(self, page) -> None:
        page.set_default_timeout(60_000)
        page.goto(self.url)
        page.wait_for_selector("#model:enabled")

    def shown(self) -> int:
        return self.page.evaluate(f"document.querySelector({json.dumps(ANSWER)})?.textContent.length ?? 0")

    def ask(self) -> None:
        ask(self.page, "Count from one to a thousand, in words.")
        while not self.shown():
            time.sleep(0.05)
        time.sleep(1)

    def second_tabs(self, count: int = 3) -> list[float]:
        """Measures how long each of some tabs takes to be ready, opened and closed one after another [s]."""
        took = []
        for _ in range(count):
            start = time.monotonic()
            two = self.page.context.new_page()
            self.load(two)
            took.append(round(time.monotonic() - start, 2))
            two.close()
        return took


def real(playwright, url: str, seconds: float) -> dict:
    """Measures an answer of the model at full speed."""
    one = Page(playwright, url)
    parameters(one.page, temperature=0, max_completion_tokens=4000)
    one.ask()
    before = metrics(one.session)
    time.sleep(seconds)
    after = metrics(one.session)
    share = lambda name: round((after[name] - before[name]) / (after["Timestamp"] - before["Timestamp"]), 3)
    found = {"layouts": share("LayoutCount"), "main": share("TaskDuration"), "cpu": share("ProcessTime"), "characters": one.shown()}
    found |= {"rate": one.page.inner_text("#rate"), "second_tabs": one.second_tabs()}
    one.browser.close()
    return found


def paced(playwright, url: str, args: argparse.Namespace, kind: str, slower: float) -> dict:
    """Measures an answer of one kind at the set pace. `slower`: the factor by which the main thread is slowed down."""
    one = Page(playwright, url)
    with PacedAnswers(KINDS[kind], args.rate) as answers:
        answers.route(one.page)
        if slower > 1:
            one.session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        one.ask()
        costs = measure(one.page, one.session, answers, args.seconds)
        print(f"{kind}, {slower:g} times slower: {costs}", flush=True)
        found = {name: round(value, 3) for name, value in asdict(costs).items() if isinstance(value, (int, float))}
        found |= {"lag_median": round(costs.lag(0.5), 3), "lag_95": round(costs.lag(0.95), 3), "lag_max": round(costs.lag(1), 3)}
        found["forced"], found["traced"] = forced_layouts(one.browser, one.page, 2)
        if slower == 1:
            found["second_tabs"] = one.second_tabs()
    one.browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200, help="pieces per second of the paced answers")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--slower", type=float, nargs="+", default=[1, 4])
    parser.add_argument("--out", default="page.json")
    args = parser.parse_args()
    report = {}
    with Server({"SERVER__DEFAULT_MODELS": MODEL, "ENGINE__KV_TOKENS": "8192"}) as server, sync_playwright() as playwright:
        report["real"] = real(playwright, server.url, args.seconds)
        print("real model:", report["real"], flush=True)
        for kind in args.kinds:
            report[kind] = {f"{slower:g}": paced(playwright, server.url, args, kind, slower) for slower in args.slower}
            print(kind, report[kind], flush=True)
    whole = [report[kind]["1"] for kind in args.kinds if "1" in report[kind]]
    tabs = [min(one["second_tabs"]) for one in [report["real"], *whole]]
    report["checks"] = {
        "renderer": all(one["cpu"] <= MAX_CPU for one in whole),
        "forced layouts": all(one["forced"] == 0 for kind in args.kinds for one in report[kind].values()),
        "lag": all(one["lag_95"] <= MAX_LAG for one in whole),
        "second tab": max(tabs) <= MAX_TAB,
    }
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["checks"]))
    return 0 if all(report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
