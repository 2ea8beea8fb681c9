"""The chat page during a fast answer: its costs, the lag of the screen, and a view that does not move under the reader."""

import json
import os
import re
import shutil
import statistics
import subprocess
import time

import pytest
from chat_page import CHROMIUM, ask, finished, needs_browser, tab
from harness import ROOT, wait_until
from page_frames import KINDS, WATCH, forced_layouts, measure, metrics, slowness, words
from paced_answers import PacedAnswers
from test_page_accessible import needs_packages

RATE = 200  # pieces per second
WINDOWS = 3  # number of measurements per test; the median counts
THROTTLED = 6  # how many times slower than usual the slow browser is
AT_END = """() => {
  const e = document.getElementById("scroll");
  return e.scrollHeight - e.scrollTop - e.clientHeight < 40;
}"""


def answering(page, paced, seconds=1.5):
    """Asks a paced server, and waits until the answer arrives at full speed."""
    paced.route(page)
    page.evaluate(WATCH)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    ask(page, "Count")
    wait_until(lambda: page.evaluate("drawn.length") > 0, 20, "the first piece is shown")
    time.sleep(seconds)
    return session


def usual(windows, figure) -> float:
    """The median of a figure over the windows. A pause of the whole machine in one window is not a cost of the page."""
    return statistics.median(map(figure, windows))


def is_idle():
    """Whether other programs leave a core to the browser."""
    return os.getloadavg()[0] <= os.cpu_count()


def own_lag(windows, lag) -> float:
    """The lag that the page itself causes: the median over the windows, or the least one if other programs leave no core to the browser.
    They only add to a lag, also before a piece reaches the page."""
    return usual(windows, lag) if is_idle() else min(map(lag, windows))


def text(page):
    return page.locator(".assistant").last.text_content()


@pytest.mark.timing
@needs_browser
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_at_200_tokens_per_second_takes_little_of_the_renderers_time(open_page, browser, kind):
    """Counts hardly change if the machine is busy. The lag does change, so the slowdown by other programs is factored out. A slower
    processor takes more time for the same work, which the yardstick tells."""
    page = open_page()
    slower = slowness(browser)
    with PacedAnswers(KINDS[kind], RATE) as paced:
        session = answering(page, paced)
        windows = [measure(page, session, paced, 2) for _ in range(WINDOWS)]
        forced, layouts = forced_layouts(browser, page, 1.5)
        page.keyboard.press("Escape")
        finished(page)
    slower = max(slower, slowness(browser))
    print(f"{kind}, {slower:.2f} times slower: {'; '.join(map(str, windows))}; {forced} of {layouts} layouts were forced")
    assert forced == 0 and layouts > 0, "no piece forces a layout"
    assert usual(windows, lambda costs: costs.layouts) <= 35, "several pieces are drawn together"
    assert usual(windows, lambda costs: costs.cpu) <= 0.3 * slower, "most of the renderer's time is left"
    share = 0.95 if is_idle() else 0.5
    assert own_lag(windows, lambda costs: costs.lag(share) / costs.slowed()) <= 0.5, "the screen is hardly behind"


@pytest.mark.timing
@needs_browser
def test_waiting_for_the_first_token_takes_none_of_the_renderers_time(open_page):
    page = open_page()

    def deltas():
        time.sleep(6)
        yield {"content": "w0"}

    with PacedAnswers(deltas, RATE) as paced:
        paced.route(page)
        ask(page, "Count")
        page.wait_for_selector(".waiting")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        time.sleep(0.5)
        before = metrics(session)
        time.sleep(3)
        after = metrics(session)
        assert page.is_visible(".waiting")
        finished(page)
    layouts, cpu = (after[name] - before[name] for name in ("LayoutCount", "ProcessTime"))
    print(f"{layouts:.0f} layouts and {cpu:.3f} s of the processor in 3 s")
    assert layouts <= 3 and cpu <= 0.3


@pytest.mark.timing
@needs_browser
def test_a_slow_browser_draws_less_often_and_shows_the_text_in_time(open_page, browser):
    page = open_page()
    # on a slower machine, the browser is slowed down by less
    throttled = max(1.0, THROTTLED / slowness(browser))
    with PacedAnswers(KINDS["paragraphs"], RATE) as paced:
        session = answering(page, paced, 3)
        usually = measure(page, session, paced, 2).layouts
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": throttled})
        time.sleep(2)
        windows = [measure(page, session, paced, 2) for _ in range(WINDOWS)]
        page.keyboard.press("Escape")
        finished(page)
    print(f"{usually} layouts per second at full speed", *windows, sep="; ")
    assert usual(windows, lambda costs: costs.layouts) <= 0.6 * usually, "slower frames are drawn less often"
    assert usual(windows, lambda costs: costs.main / costs.slowed(throttled)) <= (0.5 if is_idle() else 0.75), "frames leave some time"
    assert own_lag(windows, lambda costs: costs.lag(0.5) / costs.slowed(throttled)) <= 0.5, "frames come often enough"


@pytest.mark.timing
@needs_browser
def test_a_second_tab_of_the_same_process_is_ready_soon_during_an_answer(server, browser):
    """On an idle machine this takes less than a second, most of it for the scripts of the page."""
    shared = ["--no-sandbox", "--renderer-process-limit=1", "--disable-features=IsolateOrigins,site-per-process"]
    shared += ["--disable-site-isolation-trials"]
    took = []
    with PacedAnswers(KINDS["paragraphs"], RATE) as paced:
        own = browser.browser_type.launch(executable_path=CHROMIUM, args=shared)
        page = own.new_context().new_page()
        page.goto(server.url)
        page.wait_for_selector("#model:enabled")
        answering(page, paced)
        for _ in range(3):
            start = time.monotonic()
            two = page.context.new_page()
            two.goto(server.url)
            two.wait_for_selector("#model:enabled")
            took.append(time.monotonic() - start)
            two.close()
        before = len(text(page))
        wait_until(lambda: len(text(page)) > before, 5, "the answer continues")
        own.close()
    print(f"a second tab is ready after {', '.join(f'{one:.2f}' for one in took)} s")
    assert min(took) <= (2 if is_idle() else 10), took


@needs_browser
@pytest.mark.parametrize("kind", ["paragraphs", "one paragraph", "list", "table", "code", "reasoning"])
def test_drawn_text_keeps_its_elements_and_a_selection_while_more_arrives(open_page, kind):
    """Holds in the tab that writes the answer, and in one that follows it."""
    one = open_page()
    with PacedAnswers(KINDS[kind], 40) as paced:
        paced.route(one)
        ask(one, "Count")
        wait_until(lambda: "w9" in text(one), 20, "some text is shown")
        two = tab(open_page, one)
        two.locator("#list .open").first.click()
        wait_until(lambda: two.locator(".assistant").count() == 1 and "w9" in text(two), 20, "the other tab shows the conversation")
        for page in (one, two):
            page.bring_to_front()
            # finds the text node of the first word
            select = """() => {
              const walk = document.createTreeWalker(document.querySelector(".assistant"), NodeFilter.SHOW_TEXT);
              let node = walk.nextNode();
              while (!/w0\\b/.test(node.data)) node = walk.nextNode();
              window.first = node;
              getSelection().setBaseAndExtent(node, node.data.indexOf("w0"), node, node.data.indexOf("w0") + 2);
            }"""
            page.evaluate(select)
            before = len(text(page))
            wait_until(lambda: len(text(page)) > before + 60, 20, "more text is shown")
            selected = "[first.isConnected, getSelection().anchorNode === first, getSelection().focusOffset - getSelection().anchorOffset]"
            assert page.evaluate(selected) == [True, True, 2]
        one.bring_to_front()
        one.keyboard.press("Escape")
        finished(one)
        wait_until(lambda: two.locator(".note").count() == 1, 5, "the other tab sees the end")
        assert text(two) == text(one)


# By name: the text before the rows, the form of a row, the text after the rows, and a selector of the rows.
LONG = {
    "list": ("", "- w{0} *a*\n", "\nAn end.", "ul:first-child > li"),
    "numbers": ("Before.\n\n", "{1}. w{0}\n", "", "ol > li"),
    "loose at last": ("", "* w{0}\n", "\n* the last\n\n  a paragraph\n", "ul > li"),
    "nested": ("", "- w{0}\n  - in {0}\n    1. deep\n", "\n    text", ":scope > ul > li"),
    "tasks": ("", "- [x] w{0}\n", "\n\n```js\nx\n```", "ul > li"),
    "table": ("a|b\n-|:-:\n", "w{0}|`b`\n", "\n| x | y |\n|---|---|\n| 1 | 2 |\n", "table:first-child tbody > tr"),
    "another list": ("", "- w{0}\n", "1. one\n2. two\n", "ul > li"),
}


@needs_browser
@pytest.mark.parametrize("kind", LONG)
def test_a_long_list_or_table_drawn_row_by_row_equals_the_whole_text(open_page, kind):
    head, form, end, rows = LONG[kind]
    count = 160
    pieces = [head]
    for at in range(count):
        row = form.format(at, at + 1)
        # a row arrives in two pieces
        pieces += [row[:4], row[4:]]
    pieces += [end[at : at + 5] for at in range(0, len(end), 5)]
    page = open_page()
    with PacedAnswers(lambda: ({"content": piece} for piece in pieces if piece), 120) as paced:
        paced.route(page)
        ask(page, "Count")
        find = f"[...(document.querySelector('.assistant > .text')?.querySelectorAll('{rows}') ?? [])].map((row) => row.textContent)"
        wait_until(lambda: len(page.evaluate(find)) > 100, 20, "most rows are shown")
        grown = [int(re.search(r"w(\d+)", text)[1]) for text in page.evaluate(find)[:-1]]
        assert grown == list(range(len(grown))), "each row is there once"
        finished(page)
    grown = page.locator(".assistant > .text").evaluate("(node) => node.innerHTML")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.locator(".assistant > .text").evaluate("(node) => node.innerHTML") == grown


@needs_browser
def test_a_reader_who_scrolls_up_stays_there_during_the_answer(open_page):
    page = open_page()
    with PacedAnswers(words(form="w{0}\n\n"), 60) as paced:
        answering(page, paced, 0)
        wait_until(lambda: page.evaluate("document.getElementById('scroll').scrollTop") > 300, 20, "the end is followed")
        assert page.evaluate(AT_END) and not page.is_visible("#latest")
        page.mouse.move(600, 400)
        page.mouse.wheel(0, -200)
        page.wait_for_selector("#latest:visible")
        time.sleep(0.3)
        place, length = page.evaluate("document.getElementById('scroll').scrollTop"), len(text(page))
        wait_until(lambda: len(text(page)) > length + 200, 20, "more text is shown")
        assert page.evaluate("document.getElementById('scroll').scrollTop") == place, "the view does not move"
        page.click("#latest")
        wait_until(lambda: page.evaluate(AT_END), 5, "the end is shown again")
        length = len(text(page))
        wait_until(lambda: len(text(page)) > length + 200, 20, "more text is shown")
        wait_until(lambda: page.evaluate(AT_END), 1, "the end is followed again")
        page.keyboard.press("Escape")
        finished(page)


@needs_browser
@pytest.mark.parametrize("state", ["hidden", "visible"])
def test_an_answer_continues_in_a_tab_without_frames(open_page, state):
    """Hidden tabs have no animation frames, and in some browsers neither do covered windows."""
    script = f"""
      window.requestAnimationFrame = () => 1;
      Object.defineProperty(Document.prototype, "hidden", {{ get: () => {json.dumps(state == "hidden")} }});
    """
    count = 300
    page = open_page(setup=lambda page: page.add_init_script(script))
    with PacedAnswers(lambda: ({"content": f"w{at} "} for at in range(count)), RATE) as paced:
        paced.route(page)
        ask(page, "Count")
        # Playwright's own waiting needs frames.
        wait_until(lambda: page.evaluate("document.querySelector('.assistant .note')?.textContent ?? ''") != "", 20, "the answer has ended")
    assert page.evaluate("document.querySelector('.assistant > .text').textContent").split() == [f"w{at}" for at in range(count)]


@needs_browser
def test_a_line_break_that_arrives_in_two_pieces_is_one(open_page):
    page = open_page()
    pieces = ["one\r", "\ntwo\r", "\n\r", "\nthree\r", "four", "\r"]
    with PacedAnswers(lambda: ({"content": piece} for piece in pieces), 5) as paced:
        paced.route(page)
        ask(page, "Count")
        turn = finished(page)
    assert turn.locator(":scope > .text > p").all_inner_texts() == ["one\ntwo", "three\nfour"]


@needs_packages
def test_the_pause_follows_the_frame():
    """Drawing takes a seventh of the time, or more if the text would otherwise lag half a second behind. Even then there are pauses."""
    node = shutil.which("node")
    assert node, "Node is installed, since it built the packages"
    code = 'import { pauseAfter } from "./frames.js"; console.log(JSON.stringify([...Array(1001).keys()].map(pauseAfter)));'
    done = subprocess.run(
        [node, "--input-type=module", "-e", code], cwd=ROOT / "page" / "src", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # a message channel keeps Node running only while it has a listener
    pauses = json.loads(re.search(r"\[.*\]", done.stdout)[0])
    for cost, pause in enumerate(pauses):
        assert pause >= min(6 * cost, 150), "some time is always left"
        # text that arrives just after the start of a frame is on the screen at the end of the next one
        assert 2 * cost + pause <= 500 or cost > 160, cost
        assert pause == 6 * cost or cost > 56, cost
