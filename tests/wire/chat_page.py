"""Drives the chat page in a real browser: Debian's Chromium, through Playwright."""

import json
import os
import shutil

import pytest
from harness import MODEL, ROOT

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
SCREENSHOTS = ROOT / ".cache" / "screenshots"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian package chromium)")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture
def open_page(server, browser):
    """Opens the page. When the test ends, the page must have sent requests to this server only, broken no rule of its content security
    policy and raised no script error. `context`: the context of an earlier page, in which this page opens as a further tab."""
    contexts, faults = [], []

    def look(message):
        # the browser itself logs a refused request
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            faults.append(message.text)

    def opened(viewport=DESKTOP, scheme="light", setup=None, context=None, **options):
        if context is None:
            permissions = ["clipboard-read", "clipboard-write"]
            context = browser.new_context(viewport=viewport, color_scheme=scheme, permissions=permissions, **options)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", look)
        page.on("pageerror", lambda error: faults.append(str(error)))
        own = (server.url, "data:", "blob:" + server.url)
        page.on("request", lambda request: None if request.url.startswith(own) else faults.append(request.url))
        if setup:
            setup(page)
        page.goto(server.url)
        page.wait_for_selector("#model:enabled")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def parameters(page, **values):
    if not page.is_visible("#settings"):
        page.click("#open")
    for name, value in values.items():
        if page.locator(f"select[name={name}]").count():
            page.select_option(f"[name={name}]", value)
        else:
            page.fill(f"[name={name}]", str(value))
    page.click("#close")


def ask(page, text=QUESTION):
    page.fill("#prompt", text)
    if page.evaluate("matchMedia('(pointer: coarse)').matches"):
        page.tap("#send")
    else:
        page.press("#prompt", "Enter")


def finished(page):
    page.wait_for_selector("#send:visible")
    return page.locator(".assistant").last


def answers(page, *events, status=200, kind="text/event-stream"):
    """Replaces the server's answers with events that a real model does not produce on demand."""
    body = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, content_type=kind, body=body))


def chunk(reason=None, **delta):
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    }


def says(page, *pieces, reasoning=None):
    """Replaces the model's answers with these texts."""
    thoughts = [chunk(reasoning_content=reasoning)] if reasoning else []
    answers(page, chunk(role="assistant", content=""), *thoughts, *(chunk(content=piece) for piece in pieces), chunk("stop"), "[DONE]")


def tab(open_page, page):
    """Opens a further tab in the same browser."""
    return open_page(context=page.context)


def rows(page, store):
    """The rows of a table in the page's database."""
    return page.evaluate(
        """(store) => new Promise((resolve) => {
          indexedDB.open("penstock").onsuccess = (opened) => {
            const all = opened.target.result.transaction(store).objectStore(store).getAll();
            all.onsuccess = () => { opened.target.result.close(); resolve(all.result); };
          };
        })""",
        store,
    )
