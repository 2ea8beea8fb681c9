"""The chat page for users of screen readers and keyboards: axe finds nothing in its main states. Also checks that the committed files of
the page match its sources."""

import os
import shutil
import subprocess

import pytest
from chat_page import PHONE, answers, ask, chunk, finished, needs_browser, parameters, says
from harness import ROOT
from test_page import MARKDOWN

PAGE = ROOT / "page"
AXE = PAGE / "node_modules" / "axe-core" / "axe.min.js"
needs_packages = pytest.mark.skipif(not AXE.exists(), reason="the page's packages are not installed (npm ci in page/)")


def check(page, state):
    """Checks axe's rules for WCAG 2.2 A and AA, and its best practices."""
    # let animations end, so that colours are final
    page.wait_for_timeout(50)
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    told = [(one["impact"], one["id"], [node["html"][:120] for node in one["nodes"]][:4]) for one in found]
    print(state, told)
    assert [one for one in told if one[0] != "minor"] == [], state


@needs_browser
@needs_packages
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(open_page, viewport, scheme):
    is_phone = viewport is PHONE
    page = open_page(viewport, scheme, has_touch=is_phone, is_mobile=is_phone)
    check(page, "empty")
    says(page, MARKDOWN, reasoning="Let me think.")
    ask(page, "Show me everything.")
    finished(page)
    page.locator("summary").click()
    check(page, "an answer with reasoning, code, a table and formulas")
    page.get_by_role("button", name="Try again").click()
    finished(page)
    page.locator(".user").hover()
    page.get_by_role("button", name="Edit").click()
    check(page, "branches, and a message that is edited")
    page.keyboard.press("Escape")
    page.unroute("**/v1/chat/completions")
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answers(page, chunk(tool_calls=[call]), chunk("tool_calls"), "[DONE]")
    ask(page, "Call it.")
    finished(page)
    check(page, "a call that waits for its result")
    page.unroute("**/v1/chat/completions")
    answers(page, {"error": {"message": "no luck", "type": "server_error", "param": "temperature", "code": "x"}})
    page.fill(".results textarea", "1")
    page.get_by_role("button", name="Send results").click()
    finished(page)
    check(page, "an error")
    parameters(page, temperature=1)
    page.click("#open")
    check(page, "parameters")
    page.click("#close")
    if is_phone:
        page.click("#show")
        page.wait_for_selector("#sidebar:visible")
    check(page, "conversations")
    page.get_by_role("button", name="More about").click()
    check(page, "the menu of a conversation")
    page.get_by_role("menuitem", name="Rename").click()
    check(page, "a question")
    page.keyboard.press("Escape")
    page.fill("#search", "it costs")
    page.wait_for_selector("#list small")
    check(page, "search")
    page.click("#help")
    check(page, "shortcuts")


@needs_packages
def test_the_committed_files_match_the_sources():
    node = shutil.which("node")
    assert node, "Node is installed, since it built the packages"
    done = subprocess.run([node, "build.mjs", "--check"], cwd=PAGE, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
