"""The chat page at `/` in a real browser: Debian's Chromium, driven by Playwright."""

import json
import os
import re
import shutil
import subprocess

import pytest
from harness import MODEL, ROOT, Server, wait_until

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
STARTERS = ["Name three rivers.", "What is a penstock?", "Write a haiku about water."]
SCREENSHOTS = ROOT / ".cache" / "screenshots"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian package chromium): the page is not tried in a browser")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture
def open_page(server, browser):
    """Opens the page. At the end of the test the page must have sent requests to this server only, without a violation of its policy or an
    error of a script."""
    contexts, faults = [], []

    def look(message):
        # the browser itself logs a refused request
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            faults.append(message.text)

    def opened(viewport=DESKTOP, scheme="light", setup=None, **options):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"], **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", look)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith((server.url, "data:")) else faults.append(request.url))
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
    page.click("#open")
    for name, value in values.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#close")


def ask(page, text=QUESTION):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finished(page):
    page.wait_for_selector("#send:visible")
    return page.locator(".assistant").last


def answers(page, *events, status=200, kind="text/event-stream"):
    """Replaces the answers of the server by events that a real model does not write on demand."""
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


# Who asks for no page is told that the server is there: test_ollama.py.
BROWSER = {"accept": "text/html,*/*;q=0.8"}


def test_the_headers_forbid_everything_from_elsewhere(server):
    reply = server.get("/", headers=BROWSER)
    assert reply.status == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy and "http" not in policy
    for part in (
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ):
        assert part in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert server.request("HEAD", "/").body == b"" and server.post("/", {}).status == 405


def test_the_page_can_be_switched_off():
    with Server({"SERVER__CHAT_PAGE": "false", "SERVER__DEFAULT_MODELS": MODEL}) as server:
        reply = server.get("/", headers=BROWSER)
        assert reply.status == 404 and reply.error["code"] == "unknown_url"


@needs_browser
def test_a_question_is_answered(open_page):
    page = open_page()
    assert page.evaluate("document.activeElement.id") == "prompt" and page.is_disabled("#send")
    parameters(page, temperature=0, max_completion_tokens=12)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page)
    turn = finished(page)
    assert sent.value.post_data_json == {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_completion_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert turn.locator(".text").inner_text() == ANSWER
    # 37 tokens of prompt
    told = turn.locator(".below span").inner_text()
    assert re.fullmatch(r"7 tokens · [\d.,]+ tokens/s · first after \d+\.\d\d s · 44 of 8,192 tokens of context", told), told
    assert page.inner_text("#said") == f"Answer: {ANSWER}"
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And of Italy?")
    finished(page)
    assert [message["role"] for message in sent.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.locator(".turn").count() == 4 and page.input_value("[name=temperature]") == "0"
    page.click("#new")
    assert page.locator(".turn").count() == 0 and page.is_visible("#empty")


@needs_browser
def test_every_parameter_is_sent(open_page):
    page = open_page()
    page.select_option("#model", MODEL)
    numbers = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "max_completion_tokens": 3}
    numbers |= {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.2}
    parameters(page, **numbers, system="Be brief.", stop="END\n\\n\\n", key="secret")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hi")
    finished(page)
    body = sent.value.post_data_json
    assert {name: body[name] for name in numbers} == numbers
    assert body["stop"] == ["END", "\n\n"] and body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent.value.headers["authorization"] == "Bearer secret"
    page.click("#open")
    page.click("#reset")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Try again").click()
        page.keyboard.press("Escape")
    assert set(sent.value.post_data_json) == {"model", "messages", "stream", "stream_options"}


@needs_browser
def test_stop_ends_the_generation(open_page, server):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=2000)
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        ask(page, "Count from one to a thousand, in words.")
        wait_until(lambda: page.locator(".assistant .text").last.text_content() > "", 20, "the first token")
        wait_until(lambda: server.gauge("num_requests_running") == 1, 2, "the request is counted")
        assert page.get_attribute("#log", "aria-busy") == "true"
        stop()
        turn = finished(page)
        wait_until(lambda: server.gauge("num_requests_running") == 0, 2, "the stopped request is gone")
        assert turn.locator(".below span").inner_text().startswith("stopped · about ") and turn.locator(".text").inner_text()
        assert turn.locator(".error").count() == 0 and page.evaluate("document.activeElement.id") == "prompt"


@needs_browser
def test_the_page_works_by_keyboard(open_page):
    page = open_page()
    page.focus("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo" and page.locator(".turn").count() == 0
    page.focus(".skip")
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert reached == ["model", "new", "curl", "open", *STARTERS, "prompt", "send"], reached
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    unnamed = """[...document.querySelectorAll('button, input, select, textarea')]
        .filter(e => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML)"""
    assert page.evaluate(unnamed) == []


@needs_browser
def test_an_error_is_shown_beside_its_parameter(open_page):
    page = open_page()
    parameters(page, temperature=3)
    ask(page)
    turn = finished(page)
    assert "`temperature` must be from 0 to 2, not 3" in turn.get_by_role("alert").inner_text()
    assert (
        page.get_attribute("[name=temperature]", "aria-invalid") == "true" and page.evaluate("document.activeElement.name") == "temperature"
    )
    assert "must be from 0 to 2" in page.inner_text(".field:has([name=temperature]) .wrong")
    page.fill("[name=temperature]", "0")
    assert page.locator(".wrong").count() == 0
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".assistant .text:not(:empty)")
    assert page.locator(".error").count() == 0 and finished(page).locator(".text").inner_text().startswith("The capital")


@needs_browser
def test_an_unanswered_question_is_not_sent_again(open_page):
    page = open_page()
    answers(page, {"error": {"message": "no luck", "type": "server_error", "param": None, "code": "generation_failed"}})
    ask(page, "lost")
    assert "no luck" in finished(page).get_by_role("alert").inner_text()
    page.unroute("**/v1/chat/completions")
    parameters(page, max_completion_tokens=1)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "kept")
    finished(page)
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "kept"}]


@needs_browser
def test_faults_in_the_middle_of_a_stream_are_shown(open_page, server):
    page = open_page()
    answers(page, chunk(role="assistant", content=""), chunk(content="half an"))
    ask(page)
    turn = finished(page)
    assert turn.locator(".text").inner_text() == "half an" and "ended before the answer did" in turn.get_by_role("alert").inner_text()
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/**", lambda route: route.abort())
    ask(page)
    assert "cannot be reached" in finished(page).get_by_role("alert").inner_text()
    page.wait_for_selector("#model:disabled")
    page.unroute("**/v1/**")
    page.wait_for_selector("#model:enabled")


@needs_browser
def test_a_key_is_asked_for(open_page):
    error = {"error": {"message": "an API key is needed", "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}

    def lock(page):
        # enabled once there is a key
        def answer(route):
            if route.request.headers.get("authorization") == "Bearer open":
                return route.continue_()
            return route.fulfill(status=401, json=error)

        page.route("**/v1/models", answer)

    def setup(page):
        lock(page)
        original = page.wait_for_selector

        def typed(selector, **kwargs):
            page.wait_for_selector = original
            original("[name=key]:focus")
            assert "an API key is needed" in page.inner_text(".field:has([name=key]) .wrong")
            page.keyboard.type("open")
            page.keyboard.press("Tab")
            return original(selector, **kwargs)

        page.wait_for_selector = typed

    open_page(setup=setup)


@needs_browser
def test_text_is_never_html(open_page):
    nasty = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>**b** &amp; <b>"
    page = open_page()
    answers(
        page,
        chunk(role="assistant", content=""),
        chunk(reasoning_content=nasty),
        chunk(content=nasty[:9]),
        chunk(content=nasty[9:]),
        chunk("stop"),
        "[DONE]",
    )
    ask(page, nasty)
    turn = finished(page)
    assert turn.locator(":scope > .text").inner_text() == nasty and page.locator(".user .text").inner_text() == nasty
    turn.locator("summary").click()
    assert turn.locator("details .text").inner_text() == nasty
    page.unroute("**/v1/chat/completions")
    answers(page, {"error": {"message": nasty, "type": "server_error", "param": None, "code": nasty}})
    ask(page)
    assert nasty in finished(page).get_by_role("alert").inner_text()
    assert page.locator("#log img, #log script, #log b").count() == 0 and page.title() == "Penstock"


@needs_browser
def test_a_long_answer_stays_at_its_end_until_the_reader_scrolls(open_page):
    page = open_page()
    answers(page, *(chunk(content=f"line {number}\n") for number in range(3000)), chunk("stop"), "[DONE]")
    ask(page)
    turn = finished(page)
    assert turn.locator(".text").inner_text().count("line ") == 3000
    at_end = """(() => {
        const e = document.getElementById('scroll');
        return e.scrollHeight - e.scrollTop - e.clientHeight < 40 && e.scrollHeight > 10000
    })()"""
    assert page.evaluate(at_end) and not page.is_visible("#latest")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -5000)
    page.wait_for_selector("#latest:visible")
    page.click("#latest")
    assert page.evaluate(at_end)


@needs_browser
def test_a_request_can_be_copied_for_curl_and_an_answer_as_text(open_page):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=12, stop="it's")
    page.fill("#prompt", QUESTION + " It's $HOME, `id`?")
    page.click("#curl")
    page.wait_for_selector("#toast:not(:empty)")
    line = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert "data: [DONE]" in done.stdout, (line, done)
    body = json.loads(re.search(r"-d '(.*)'$", line, re.S)[1].replace("'\\''", "'"))
    assert body["messages"] == [{"role": "user", "content": QUESTION + " It's $HOME, `id`?"}] and body["stop"] == ["it's"]
    parameters(page, key="secret")
    page.click("#curl")
    wait_until(lambda: "$PENSTOCK_API_KEY" in page.evaluate("navigator.clipboard.readText()"), 5, "the key's variable is named")
    assert "secret" not in page.evaluate("navigator.clipboard.readText()")
    ask(page)
    finished(page).get_by_role("button", name="Copy").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == ANSWER, 5, "the answer is copied")


@needs_browser
def test_a_question_can_be_edited(open_page):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=2)
    ask(page, "first")
    finished(page)
    ask(page, "second")
    finished(page)
    page.get_by_role("button", name="Edit").last.click()
    assert page.input_value("#prompt") == "second" and page.locator(".turn").count() == 2
    page.get_by_role("button", name="Edit").click()
    assert page.input_value("#prompt") == "first" and page.locator(".turn").count() == 0


# The contrast of every element with text of its own against the nearest painted background, as WCAG computes it.
CONTRASTS = """() => {
  const numbers = (colour) => {
    const c = new OffscreenCanvas(1, 1).getContext("2d");
    c.fillStyle = colour;
    c.fillRect(0, 0, 1, 1);
    return c.getImageData(0, 0, 1, 1).data;
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(colour[i] / 255), 0);
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const c = numbers(getComputedStyle(e).backgroundColor);
      if (c[3] === 255) return c;
    }
  };
  const own = (e) =>
    [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) &&
    e.checkVisibility() &&
    !e.closest(":disabled, .away, option, script, style");
  return [...document.body.querySelectorAll("*")].filter(own).map((e) => {
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(back(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.trim().slice(0, 40)];
  });
}"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name, viewport", [("desktop", DESKTOP), ("phone", PHONE)])
def test_the_page_fits_and_has_enough_contrast(open_page, name, viewport, scheme):
    page = open_page(viewport, scheme, has_touch=name == "phone", is_mobile=name == "phone")
    parameters(page, temperature=0, max_completion_tokens=60)
    ask(page, "Write a short poem about the river Rhine. " + "x" * 300)
    finished(page)
    parameters(page, temperature=9)
    ask(page, "Again")
    finished(page)

    def check(state):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{state}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate("document.getElementById('scroll').scrollWidth <= document.getElementById('scroll').clientWidth")
        faint = [entry for entry in page.evaluate(CONTRASTS) if entry[0] < 4.5]
        assert faint == []

    for box in map(page.locator, ("#model", "#prompt", "#send", "#open")):
        place = box.bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= viewport["width"] and place["height"] >= 38, (box, place)
        assert place["y"] + place["height"] <= viewport["height"]
    check("chat")
    if not page.is_visible("#settings"):
        page.click("#open")
    check("parameters")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 26)"
    assert dark == (scheme == "dark")
    page.select_option("#theme", "light" if dark else "dark")
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 26)") != dark
