"""Measures what an answer costs a real browser while it arrives, and how late the text appears (Chromium, driven by Playwright)."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from paced_answers import PacedAnswers

# Records the number of the answer's last word `w123`, with the time at which the frame that shows it ended.
WATCH = """() => {
  window.drawn = [];
  new MutationObserver(() => {
    const word = /w(\\d+)\\D[^w]*$/.exec(document.querySelector(".turn:last-child").textContent.slice(-200));
    if (word) requestAnimationFrame(() => drawn.push([Date.now() / 1000, Number(word[1])]));
  }).observe(document.getElementById("log"), { subtree: true, childList: true, characterData: true });
}"""

PIECES = 4000


def words(head: str = "", form: str = "w{0} ", field: str = "content"):
    """Returns a function that makes an answer of numbered words, one per piece."""

    def deltas():
        for at in range(PIECES):
            # A new block begins now and then.
            end = "\n\n" if field == "content" and not head and at % 50 == 49 else ""
            yield {field: (head if at == 0 else "") + form.format(at) + end}

    return deltas


def calls():
    for at in range(PIECES):
        call = {"index": 0, "function": {"arguments": ("[" if at == 0 else ", ") + f'"w{at}"'}}
        if at == 0:
            call |= {"id": "call_1", "type": "function", "function": {"name": "count", **call["function"]}}
        yield {"tool_calls": [call]}


# The kinds of answers. Each piece is about one token.
KINDS = {
    "paragraphs": words(),
    "one paragraph": words(form="w{0} ", head=" "),
    "list": words(head="- all\n", form="- w{0}\n"),
    "table": words(head="| word |\n|---|\n", form="| w{0} |\n"),
    "code": words(head="```js\n", form="f(w{0});\n"),
    "reasoning": words(field="reasoning_content"),
    "calls": calls,
}


@dataclass
class Costs:
    layouts: float  # [1/s]
    main: float  # share of the time in which the main thread was busy
    cpu: float  # processor time of the renderer's process per second
    lags: list[float]  # per frame, the delay of its oldest piece [s], in ascending order
    pieces: int
    shown: int

    def lag(self, share: float) -> float:
        """The delay within which this share of the frames stays [s]."""
        return self.lags[min(len(self.lags) - 1, int(share * len(self.lags)))]

    def slowed(self, throttled: float = 1) -> float:
        """How many times longer the main thread's work took than it would have alone: its time on the clock by the processor time of its
        process, at least 1. `throttled`: what Chromium itself adds."""
        return max(1.0, self.main / (throttled * self.cpu))

    def __str__(self) -> str:
        lags = ", ".join(f"{self.lag(share):.3f}" for share in (0.5, 0.95, 1))
        return (
            f"{self.layouts:.1f} layouts/s, main thread {100 * self.main:.1f} %, renderer's CPU {100 * self.cpu:.1f} %, "
            f"lag {lags} s (median, 95 %, all), {self.shown} of {self.pieces} pieces shown"
        )


def metrics(session) -> dict[str, float]:
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def lags(drawn: list[tuple[float, int]], sent: list[float], before: int) -> list[float]:
    """The delay of the oldest piece of each frame, in ascending order [s]. `before`: the last piece that had already been shown."""
    out = []
    for at, last in drawn:
        if last > before:
            out.append(at - sent[before + 1])
            before = last
    return sorted(out)


def measure(page, session, paced: PacedAnswers, seconds: float) -> Costs:
    """Measures the answer in progress for `seconds`. The page must have run `WATCH`, and the session `Performance.enable`."""
    before, first = metrics(session), page.evaluate("drawn.length")
    time.sleep(seconds)
    after, drawn = metrics(session), page.evaluate("drawn")
    pieces = len(paced.sent)
    rate = lambda name: (after[name] - before[name]) / (after["Timestamp"] - before["Timestamp"])
    known = lags(drawn[first:], paced.sent, drawn[first - 1][1])
    return Costs(rate("LayoutCount"), rate("TaskDuration"), rate("ProcessTime"), known, pieces, drawn[-1][1] + 1)


# A fixed amount of a page's work: paragraphs are added one by one, and each is laid out.
YARDSTICK = """() => {
  const box = document.body.appendChild(document.createElement("div"));
  for (let at = 0; at < 2000; at++) {
    const text = box.appendChild(document.createElement("p"));
    text.textContent = `w${at} `.repeat(40);
    text.offsetHeight;
    if (at >= 20) box.firstChild.remove();
  }
  box.remove();
}"""
# The processor time of the yardstick on the machine for which the tests' bounds were set [s].
YARDSTICK_TAKES = 0.25


def slowness(browser) -> float:
    """How many times slower this machine's processor is, while nothing else runs, than the one for which the tests' bounds were set: by
    the yardstick, at least 1."""
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    took = []
    for _ in range(3):
        before = metrics(session)["ProcessTime"]
        page.evaluate(YARDSTICK)
        took.append(metrics(session)["ProcessTime"] - before)
    page.close()
    return max(1.0, min(took) / YARDSTICK_TAKES)


# Trace events that run scripts. A layout inside one of them was forced by a script that asked for a size or a position.
SCRIPTS = {"FunctionCall", "EvaluateScript", "FireAnimationFrame", "TimerFire", "EventDispatch", "RunMicrotasks"}


def forced_layouts(browser, page, seconds: float) -> tuple[int, int]:
    """The number of layouts that scripts forced within `seconds`, and the number of all layouts."""
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    time.sleep(seconds)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X"]
    layouts = [event for event in spans if event["name"] == "Layout"]
    thread = lambda event: (event["pid"], event["tid"])
    inside = lambda inner, outer: outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    scripts = [event for event in spans if event["name"] in SCRIPTS]
    forced = [one for one in layouts if any(thread(one) == thread(other) and inside(one, other) for other in scripts)]
    return len(forced), len(layouts)
