"""The chat page at `/` in a real browser: questions, answers, parameters and errors. Conversations are in test_page_conversations.py."""

import gzip
import json
import re
import subprocess

import pytest
from chat_page import ANSWER, DESKTOP, PHONE, QUESTION, SCREENSHOTS, answers, ask, chunk, finished, needs_browser, parameters, says
from harness import MODEL, Server, wait_until

STARTERS = ["Name three rivers.", "What is a penstock?", "Write a haiku about water."]

# Browsers request HTML. Other clients get a line of text (test_ollama.py).
BROWSER = {"accept": "text/html,*/*;q=0.8"}


def test_the_headers_forbid_everything_from_elsewhere(server):
    reply = server.get("/", headers=BROWSER)
    assert reply.status == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ") and "unsafe" not in policy and "http" not in policy
    for part in (
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data: blob:;",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ):
        assert part in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert server.request("HEAD", "/").body == b"" and server.post("/", {}).status == 405


def test_the_files_of_the_page(server):
    kinds = {"app.js": "text/javascript", "app.css": "text/css", "licences.txt": "text/plain"}
    kinds["fonts/KaTeX_Main-Regular.woff2"] = "font/woff2"
    for name, kind in kinds.items():
        plain = server.get(f"/page/{name}")
        assert plain.status == 200 and plain.headers["content-type"].startswith(kind)
        assert plain.headers["x-content-type-options"] == "nosniff"
        packed = server.request("GET", f"/page/{name}", headers={"accept-encoding": "gzip"})
        unpacked = gzip.decompress(packed.body) if packed.headers["content-encoding"] == "gzip" else packed.body
        assert unpacked == plain.body and (kind == "font/woff2") == (packed.headers["content-encoding"] is None)
        again = server.request("GET", f"/page/{name}", headers={"if-none-match": plain.headers["etag"]})
        assert again.status == 304 and again.body == b""
    for name in ("index.html", "", "nothing.js", "../page.rs", "fonts/", "%2e%2e/page.rs"):
        assert server.get(f"/page/{name}").status == 404, name


def test_the_page_can_be_switched_off():
    with Server({"SERVER__CHAT_PAGE": "false", "SERVER__DEFAULT_MODELS": MODEL}) as server:
        reply = server.get("/", headers=BROWSER)
        assert reply.status == 404 and reply.error["code"] == "unknown_url"
        assert server.get("/page/app.js").status == 404


@pytest.mark.real_models
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
        "stream_options": {"include_usage": True, "include_progress": True},
    }
    assert turn.locator(".text").inner_text() == ANSWER and page.inner_text("#rate") == ""
    # the prompt has 37 tokens
    told = turn.locator(".below .note").inner_text()
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


@pytest.mark.real_models
@needs_browser
def test_stop_ends_the_generation(open_page, server):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=2000)
    for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
        ask(page, "Count from one to a thousand, in words.")
        wait_until(lambda: page.locator(".assistant .text").last.text_content() > "", 20, "the first token is generated")
        wait_until(lambda: server.gauge("num_requests_running") == 1, 20, "the request is counted")
        assert page.get_attribute("#log", "aria-busy") == "true"
        stop()
        turn = finished(page)
        wait_until(lambda: server.gauge("num_requests_running") == 0, 2, "the stopped request has ended")
        assert turn.locator(".below .note").inner_text().startswith("stopped · about ") and turn.locator(".text").inner_text()
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
    for _ in range(17):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    sidebar = ["hide", "new", "search", "import", "export", "help", "API"]
    assert reached == [*sidebar, "model", "manage", "curl", "open", *STARTERS, "prompt", "attach", "picture"], reached
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    unnamed = """[...document.querySelectorAll('button, input, select, textarea')]
        .filter(e => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML)"""
    assert page.evaluate(unnamed) == []


@pytest.mark.real_models
@needs_browser
def test_an_error_is_shown_beside_its_parameter(open_page):
    page = open_page()
    refusal = {"error": {"message": "`temperature` must be from 0 to 2, not 3", "param": "temperature", "code": "invalid_value"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refusal))
    parameters(page, temperature=2)
    ask(page)
    turn = finished(page)
    assert "`temperature` must be from 0 to 2, not 3" in turn.get_by_role("alert").inner_text()
    assert (
        page.get_attribute("[name=temperature]", "aria-invalid") == "true" and page.evaluate("document.activeElement.name") == "temperature"
    )
    assert "must be from 0 to 2" in page.inner_text(".field:has([name=temperature]) .wrong")
    page.unroute("**/v1/chat/completions")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_completion_tokens]", "12")
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
        # refuses every request that lacks the key
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


NASTY = [
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "<svg onload=\"document.title='owned'\"><a xlink:href=\"javascript:document.title='owned'\">x</a></svg>",
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "[click](javascript:document.title='owned') [data](data:text/html,<script>1</script>) [v](vbscript:x) [\t](java\nscript:x)",
    "![x](javascript:document.title='owned') ![remote](http://127.0.0.1:1/pixel.png)",
    "<b onmouseover=\"document.title='owned'\">bold</b> <b>fine</b><sub>2</sub>",
    "$\\href{javascript:document.title='owned'}{x}$ $\\includegraphics{http://127.0.0.1:1/x.png}$ $\\htmlStyle{color:red}{x}$",
    "$\\colorbox{red}{x}$ $$\\fcolorbox{red}{blue}{y}$$",
    "```html\n<script>document.title='owned'</script>\n```",
    "| a | b |\n|---|---|\n| <img src=x onerror=alert(1)> | <style>*{display:none}</style> |",
    "<!-- --><math><mi//xlink:href=\"data:x,<script>alert(1)</script>\">",
    "<a href=\"http://evil.example\" style=\"position:fixed;inset:0\">all</a> &lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x&#62;",
    "<form action=http://127.0.0.1:1><input name=q><button>Send</button></form><base href=http://127.0.0.1:1/>",
    ">" * 5000 + " deep",
    "[" * 3000 + "x" + "](y)" * 3000,
    "x " + "<b>" * 60_000,
]


@needs_browser
def test_text_is_never_html(open_page):
    page = open_page()
    nasty = "\n\n".join(NASTY)
    says(page, nasty[:9], nasty[9:200], nasty[200:], reasoning=nasty)
    ask(page, nasty)
    turn = finished(page)
    assert page.locator(".user .text").inner_text() == nasty
    shown = turn.locator(":scope > .text").inner_text()
    tags = ("<img src=x onerror=", "<script>document.title='owned'</script>", "<svg onload", "<iframe srcdoc", "<style>*{display:none}")
    for text in tags:
        assert text in shown, text
    turn.locator("summary").click()
    assert "<iframe srcdoc" in turn.locator("details .text").inner_text()
    page.unroute("**/v1/chat/completions")
    answers(page, {"error": {"message": nasty, "type": "server_error", "param": None, "code": nasty}})
    ask(page)
    assert NASTY[0] in finished(page).get_by_role("alert").inner_text()
    assert page.locator("#log :is(img, script, iframe, style, form, base, input, object, embed)").count() == 0
    links = page.evaluate("[...document.querySelectorAll('#log a')].map((link) => link.protocol)")
    assert set(links) <= {"http:", "https:"}, links
    handlers = "[...document.querySelectorAll('#log *')].filter(e => e.getAttributeNames().some(n => n.startsWith('on') || n === 'srcdoc'))"
    assert page.evaluate(handlers + ".length") == 0 and page.title().startswith("<img src=x")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.locator("#log :is(img, script, iframe, style, form, base)").count() == 0 and page.locator(".turn").count() == 4


MARKDOWN = r"""# Title

Some **bold**, *italic*, ~~gone~~ and `code`.<br>A [link](https://example.com/a?b=1&c=2).

| Name | Value |
|:-----|------:|
| a    | $x^2$ |

1. one
   - inner
2. two

- [x] done
- [ ] open

> quoted

```python
def f(x):
    return "a" + x
```

Inline \(a_1\) and it costs $5 or $10.

$$\int_0^1 x\,dx = \frac{1}{2}$$

\[ E = mc^2 \]

See [the end][ref].

[ref]: https://example.com/ref
"""


@needs_browser
def test_markdown_code_and_formulas(open_page):
    page = open_page()
    # in pieces of three characters, so that every construct is seen incomplete
    says(page, *(MARKDOWN[at : at + 3] for at in range(0, len(MARKDOWN), 3)))
    ask(page)
    turn = finished(page)
    count = lambda selector: turn.locator(selector).count()
    numbers = {"h4": 1, "table th": 2, "table td": 2, "ol > li": 2, "ol ul li": 1, "blockquote": 1}
    assert {selector: count(selector) for selector in numbers} == numbers
    assert (count("strong"), count("em"), count("del"), count("br"), count("input:disabled")) == (1, 1, 1, 1, 2)
    assert count(".formula .katex") == 4 and count(".formula.wide") == 2 and "$5 or $10" in turn.inner_text()
    assert turn.locator("td").last.get_attribute("class") == "right"
    assert page.evaluate("document.fonts.check('16px KaTeX_Main')"), "the fonts of formulas are loaded"
    hrefs = page.evaluate("[...document.querySelectorAll('.assistant .text a')].map((link) => [link.href, link.rel])")
    assert [href for href, _ in hrefs] == ["https://example.com/a?b=1&c=2", "https://example.com/ref"]
    assert all("noopener" in rel for _, rel in hrefs)
    assert count(".hljs-keyword") == 2 and count(".hljs-string") == 1
    turn.get_by_role("button", name="Copy the code").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == 'def f(x):\n    return "a" + x', 5, "the code is copied")
    # the text drawn piece by piece equals the text drawn at once
    grown = turn.locator(":scope > .text").evaluate("(node) => node.innerHTML")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.locator(".assistant > .text").evaluate("(node) => node.innerHTML") == grown


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


@pytest.mark.real_models
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
    finished(page).get_by_role("button", name="Copy", exact=True).click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == ANSWER, 5, "the answer is copied")


# Returns the contrast (WCAG) of every element that has text of its own with the nearest painted background.
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
    if page.is_visible("#settings"):
        page.click("#close")
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
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 27)"
    assert dark == (scheme == "dark")
    page.select_option("[name=theme]", "light" if dark else "dark")
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 27)") != dark
