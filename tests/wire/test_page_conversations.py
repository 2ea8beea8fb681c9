"""Conversations on the chat page: stored, searched, branched, moved between browsers and shared by tabs."""

import json
import re
import time

import pytest
from chat_page import PHONE, answers, ask, chunk, finished, needs_browser, parameters, rows, says, tab
from harness import wait_until


def titles(page):
    return page.locator("#list .open > span").all_inner_texts()


def listed(page, *expected):
    wait_until(lambda: titles(page) == list(expected), 5, f"the list is {expected}")


def menu(page, title, action):
    page.get_by_role("button", name="More about " + title).click()
    page.get_by_role("menuitem", name=action).click()


def texts(page):
    return page.locator(".turn > .text").all_inner_texts()


def send(page, question, answer):
    """Asks a question, which the model answers with this text."""
    page.unroute("**/v1/chat/completions")
    says(page, answer)
    ask(page, question)
    finished(page)


def settled(page, count):
    wait_until(lambda: len(rows(page, "messages")) == count, 5, f"{count} messages are stored")


@needs_browser
def test_conversations_are_kept_found_renamed_and_deleted(open_page):
    page = open_page()
    send(page, "About apples", "They are *round*.")
    page.click("#new")
    send(page, "About pears", "A pear is a pomaceous fruit.")
    listed(page, "About pears", "About apples")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert texts(page) == ["About pears", "A pear is a pomaceous fruit."], "the tab shows the same conversation again"
    page.keyboard.press("Control+k")
    page.keyboard.type("ROUND")
    listed(page, "About apples")
    assert "They are *round*." in page.locator("#list small").inner_text()
    page.keyboard.press("Enter")
    wait_until(lambda: texts(page) == ["About apples", "They are round."], 5, "the conversation that was found is shown")
    assert page.title() == "About apples · Penstock"
    page.fill("#search", "zzz")
    page.wait_for_selector("#list .none:text('Nothing found')")
    page.focus("#search")
    page.keyboard.press("Escape")
    listed(page, "About pears", "About apples")
    menu(page, "About apples", "Rename")
    page.fill("#question-input", "Fruit <b>&</b>")
    page.keyboard.press("Enter")
    listed(page, "About pears", "Fruit <b>&</b>")
    assert page.inner_text("#title") == "Fruit <b>&</b>"
    menu(page, "About pears", "Delete")
    page.get_by_role("button", name="Cancel").click()
    menu(page, "About pears", "Delete")
    page.click("#question-yes")
    listed(page, "Fruit <b>&</b>")
    settled(page, 2)
    menu(page, "Fruit <b>&</b>", "Delete")
    page.keyboard.press("Enter")
    page.wait_for_selector("#empty")
    wait_until(lambda: rows(page, "conversations") == rows(page, "messages") == [], 5, "the database is empty")


@needs_browser
def test_branches_lose_nothing(open_page):
    page = open_page()
    send(page, "first", "one")
    send(page, "second", "two")
    page.unroute("**/v1/chat/completions")
    says(page, "deux")
    page.get_by_role("button", name="Try again").last.click()
    wait_until(lambda: texts(page) == ["first", "one", "second", "deux"], 5, "another answer is shown")
    finished(page)
    assert page.locator(".place").all_inner_texts() == ["2/2"]
    page.get_by_role("button", name="Previous version").click()
    assert texts(page)[-1] == "two" and page.get_by_role("button", name="Previous version").is_disabled()
    page.locator(".user").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    assert page.input_value(".edit textarea") == "first"
    page.keyboard.press("Escape")
    assert page.locator(".edit").count() == 0
    page.locator(".user").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    page.fill(".edit textarea", "changed")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press(".edit textarea", "Enter")
    finished(page)
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "changed"}]
    assert texts(page) == ["changed", "deux"] and page.locator(".place").all_inner_texts() == ["2/2"]
    page.get_by_role("button", name="Previous version").click()
    wait_until(lambda: texts(page) == ["first", "one", "second", "deux"], 5, "the first branch is shown with its latest messages")
    settled(page, 7)
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert texts(page) == ["first", "one", "second", "deux"], "the selected branch is shown again"
    page.fill("#prompt", "")
    page.press("#prompt", "ArrowUp")
    assert page.input_value(".edit textarea") == "second", "the arrow key edits the last message"


@needs_browser
def test_a_conversation_moves_to_another_browser(open_page):
    page = open_page()
    parameters(page, system="Be brief.", temperature=0.5)
    send(page, "first", "one")
    page.unroute("**/v1/chat/completions")
    says(page, "uno")
    page.get_by_role("button", name="Try again").click()
    wait_until(lambda: texts(page)[-1] == "uno", 5, "another answer is shown")
    finished(page)
    page.click("#new")
    send(page, "other", "thing")
    settled(page, 5)
    with page.expect_download() as download:
        page.click("#export")
    exported = json.loads(open(download.value.path()).read())
    assert (exported["format"], exported["version"], len(exported["conversations"])) == ("penstock-chat", 1, 2)

    other = open_page()
    path = {"name": "chats.json", "mimeType": "application/json", "buffer": json.dumps(exported).encode()}
    for times in (1, 2):
        other.set_input_files("#load", path)
        wait_until(lambda: len(titles(other)) == 2 * times, 5, "the conversation is imported beside the others")
    settled(other, 10)
    other.locator("#list .open", has_text="first").first.click()
    wait_until(lambda: texts(other) == ["first", "uno"], 5, "the branch that was shown is imported")
    other.get_by_role("button", name="Previous version").click()
    assert texts(other) == ["first", "one"]
    other.click("#open")
    assert other.input_value("[name=system]") == "Be brief." and other.input_value("[name=temperature]") == "0.5"

    first, boss = exported["conversations"][0], {"messages": [{"id": "x", "role": "boss"}]}
    bad = [
        (b"{", "is not JSON"),
        (b"[]", "is no export"),
        (json.dumps(exported | {"version": 9}).encode(), "version 9, expected 1"),
        (json.dumps(exported | {"conversations": [first, boss]}).encode(), 'messages[0].role is "boss"'),
        (json.dumps(exported | {"conversations": [{}]}).encode(), "conversations[0].messages is missing"),
    ]
    for data, says_what in bad:
        other.set_input_files("#load", {"name": "bad.json", "mimeType": "application/json", "buffer": data})
        wait_until(lambda: says_what in other.inner_text("#toast"), 5, says_what)
    assert len(rows(other, "conversations")) == 4, "a file is imported completely or not at all"
    # messages that are each other's parent, and an answer that never ended
    circle = [
        {"id": "a", "parent": "b", "role": "user", "content": "A"},
        {"id": "b", "parent": "a", "role": "assistant", "state": "streaming"},
    ]
    odd = {"conversations": [{"title": "odd", "messages": circle, "head": "b", "settings": {"system": 5, "stop": "x"}}]}
    other.set_input_files("#load", {"name": "odd.json", "mimeType": "application/json", "buffer": json.dumps(exported | odd).encode()})
    wait_until(lambda: "odd" in titles(other), 5, "the conversation is imported")
    assert other.locator(".turn").count() == 2


@pytest.mark.real_models
@needs_browser
def test_a_reload_in_mid_stream_keeps_the_text_so_far(open_page, server):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=2000)
    ask(page, "Count from one to a thousand, in words.")
    copy = lambda: next((row for row in rows(page, "messages") if row["role"] == "assistant"), {"content": ""})
    # The time until text is stored depends on the browser.
    wait_until(lambda: len(copy()["content"]) > 60, 20, "some text is in the browser's storage")
    before = copy()
    assert before["state"] == "streaming", "the answer is still arriving"
    page.reload()
    page.wait_for_selector("#model:enabled")
    page.wait_for_selector(".note:has-text('interrupted')")
    after = page.locator(".assistant > .text").text_content()
    assert after.strip().startswith(before["content"].strip()), (before, after)
    wait_until(lambda: server.gauge("num_requests_running") == 0, 5, "the interrupted request has ended")
    parameters(page, max_completion_tokens=8)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Continue").click()
    finished(page)
    body = sent.value.post_data_json
    assert body["continue_final_message"] and not body["add_generation_prompt"] and body["messages"][-1]["role"] == "assistant"
    longer = page.locator(".assistant > .text").text_content()
    assert longer.startswith(after) and len(longer) > len(after), "the answer continues where it stopped"
    assert "cut at the token limit" in page.inner_text(".assistant .note") and page.locator(".turn").count() == 2


@needs_browser
def test_two_tabs_do_not_overwrite_each_other(open_page):
    one = open_page()
    send(one, "shared", "yes")
    settled(one, 2)
    two = tab(open_page, one)
    listed(two, "shared")
    two.locator("#list .open").click()
    wait_until(lambda: texts(two) == ["shared", "yes"], 5, "the other tab shows the conversation")
    # both tabs continue from the same message
    for page, word in ((one, "from one"), (two, "from two")):
        page.unroute("**/v1/chat/completions")
        says(page, "answer to " + word)
    one.fill("#prompt", "from one")
    two.fill("#prompt", "from two")
    one.evaluate("document.getElementById('composer').requestSubmit()")
    two.evaluate("document.getElementById('composer').requestSubmit()")
    for page in (one, two):
        finished(page)
    settled(one, 6)
    kept = {row["content"] for row in rows(one, "messages")}
    assert kept == {"shared", "yes", "from one", "from two", "answer to from one", "answer to from two"}
    parents = {row["id"]: row["parent"] for row in rows(one, "messages")}
    assert set(parents.values()) - {None} <= set(parents), "every message has its parent"
    for page in (one, two):
        page.reload()
        page.wait_for_selector("#model:enabled")
        assert texts(page)[:2] == ["shared", "yes"] and len(texts(page)) >= 4
    # another tab sees new messages and the new title
    one.click("#new")
    send(one, "followed", "a")
    listed(two, "followed", "shared")
    two.locator("#list .open", has_text="followed").click()
    wait_until(lambda: texts(two) == ["followed", "a"], 5, "the conversation is shown")
    send(one, "more", "b")
    wait_until(lambda: texts(two) == ["followed", "a", "more", "b"], 5, "the other tab follows")
    menu(one, "followed", "Rename")
    one.fill("#question-input", "renamed")
    one.keyboard.press("Enter")
    wait_until(lambda: two.inner_text("#title") == "renamed", 5, "the new title is shown")
    menu(two, "renamed", "Delete")
    two.click("#question-yes")
    one.wait_for_selector("#empty")
    listed(one, "shared")


@pytest.mark.real_models
@needs_browser
def test_an_answer_in_one_tab_is_not_interrupted_for_another(open_page):
    one = open_page()
    parameters(one, temperature=0, max_completion_tokens=400)
    ask(one, "Count from one to a thousand, in words.")
    wait_until(lambda: len(one.locator(".assistant > .text").text_content()) > 20, 20, "some text is shown")
    two = tab(open_page, one)
    two.locator("#list .open").click()
    wait_until(lambda: two.locator(".assistant > .text").count() == 1, 5, "the other tab shows the conversation")
    time.sleep(1)
    assert two.locator(".note").count() == 0, "the other tab does not call the answer interrupted"
    one.keyboard.press("Escape")
    finished(one)
    wait_until(lambda: texts(one) == texts(two), 5, "both tabs show the same end")


@pytest.mark.real_models
@needs_browser
def test_an_answer_continues_while_another_conversation_is_shown(open_page):
    page = open_page()
    parameters(page, temperature=0, max_completion_tokens=60)
    ask(page, "Count from one to a thousand, in words.")
    wait_until(lambda: page.locator(".assistant > .text").text_content() != "", 20, "some text is shown")
    page.click("#new")
    assert page.is_visible("#send") and page.locator(".turn").count() == 0
    page.locator("#list .open").first.click()
    finished(page)
    assert "cut at the token limit" in page.inner_text(".assistant .note")
    kept = [row for row in rows(page, "messages") if row["role"] == "assistant"]
    assert len(kept) == 1 and kept[0]["state"] == "cut" and len(kept[0]["content"]) > 50


def long_export(num_turns):
    answer = "Some **text** with `code`, $x^2$ and\n\n```python\nprint('hello')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n"
    messages = []
    for at in range(num_turns):
        role = "assistant" if at % 2 else "user"
        content = f"{answer}\nEnd of {at}." if at % 2 else f"Question {at}"
        messages.append({"id": f"m{at}", "parent": f"m{at - 1}" if at else None, "role": role, "content": content, "created": at + 1})
    one = {"id": "c", "title": "long", "head": f"m{num_turns - 1}", "created": 1, "updated": 1, "messages": messages}
    return json.dumps({"format": "penstock-chat", "version": 1, "conversations": [one]}).encode()


@needs_browser
def test_a_conversation_of_200_turns_opens_quickly(open_page):
    page = open_page()
    page.set_input_files("#load", {"name": "long.json", "mimeType": "application/json", "buffer": long_export(200)})
    listed(page, "long")
    page.reload()
    page.wait_for_selector("#model:enabled")
    page.click("#new")
    opens = """() => new Promise((resolve) => {
      const start = performance.now();
      document.querySelector("#list .open").click();
      const look = () => {
        const turns = document.querySelectorAll(".turn");
        if (turns.length === 200 && turns[199].querySelector(".katex")) requestAnimationFrame(() => resolve(performance.now() - start));
        else setTimeout(look, 5);
      };
      look();
    })"""
    took = page.evaluate(opens)
    print(f"200 turns: {took:.0f} ms")
    assert took < 1500, took
    assert "End of 199." in page.locator(".turn").last.inner_text() and not page.is_visible("#latest")
    page.evaluate("document.getElementById('scroll').scrollTop = 0")
    wait_until(lambda: page.locator(".turn").nth(1).locator(".katex, .hljs-string, table").count() == 3, 5, "the first turns are shown too")
    assert page.evaluate("document.getElementById('scroll').scrollTop") == 0
    send(page, "the 201st", "**done**")
    assert page.locator(".turn").count() == 202 and page.locator(".turn").last.locator("strong").inner_text() == "done"


@needs_browser
def test_a_long_stream_takes_time_in_proportion_to_its_length(open_page):
    """Four times the text takes at most about four times the work. Parsing the whole text again for each frame would take sixteen times."""
    page = open_page()
    work = []
    for paragraphs in (150, 600):
        page.unroute("**/v1/chat/completions")
        one = "Paragraph {} has *some* words and `code`.\n\n- a\n- b\n\n```js\nlet x = 1;\n```\n\n"
        text = "".join(one.format(at) for at in range(paragraphs))
        # one piece arrives per frame
        page.evaluate(
            """(text) => {
              window.fetched ??= window.fetch;
              const encoder = new TextEncoder();
              const event = (data) => encoder.encode("data: " + data + "\\n\\n");
              window.fetch = (...given) => !String(given[0]).endsWith("completions") ? window.fetched(...given)
                : Promise.resolve(new Response(new ReadableStream({
                    at: 0,
                    async pull(controller) {
                      await new Promise((resolve) => setTimeout(resolve, 4));
                      const piece = text.slice(this.at, this.at += 120);
                      if (piece) return controller.enqueue(event(JSON.stringify({ choices: [{ index: 0, delta: { content: piece } }] })));
                      controller.enqueue(event("[DONE]"));
                      controller.close();
                    },
                  })));
            }""",
            text,
        )
        page.click("#new")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        used = lambda: {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ScriptDuration"]
        before = used()
        ask(page, "long")
        page.wait_for_selector("#stop:visible")
        page.wait_for_selector("#send:visible", timeout=90_000)
        work.append(used() - before)
        assert page.locator(".assistant .code").count() == paragraphs and page.locator(".assistant ul").count() == paragraphs
    print(f"script time: {work[0]:.2f} s, {work[1]:.2f} s")
    assert work[1] < 8 * max(work[0], 0.05), work


WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


@needs_browser
def test_calls_are_shown_and_their_results_sent(open_page):
    page = open_page()
    parameters(page, tools="[{")
    ask(page, "What is the weather in Paris?")
    page.wait_for_selector(".field:has([name=tools]) .wrong:has-text('must be JSON')")
    assert page.locator(".turn").count() == 0, "nothing is sent while the tools are invalid"
    parameters(page, tools=json.dumps([WEATHER]), tool_choice="required")
    name = lambda text: {"index": 0, "id": "call_1", "type": "function", "function": {"name": text, "arguments": ""}}
    piece = lambda text: {"index": 0, "function": {"arguments": text}}
    calls = [chunk(tool_calls=[name("get_weather")]), chunk(tool_calls=[piece('{"ci')]), chunk(tool_calls=[piece('ty":"<b>Paris</b>"}')])]
    answers(page, *calls, chunk("tool_calls"), "[DONE]")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is the weather in Paris?")
    finished(page)
    body = sent.value.post_data_json
    assert body["tools"] == [{"type": "function", "function": WEATHER}] and body["tool_choice"] == "required"
    assert page.inner_text(".call code >> nth=0") == "get_weather" and '"city": "<b>Paris</b>"' in page.inner_text(".call pre")
    page.unroute("**/v1/chat/completions")
    says(page, "It rains.")
    page.fill(".results textarea", '{"sky": "rain"}')
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press(".results textarea", "Enter")
    finished(page)
    function = {"name": "get_weather", "arguments": '{"city":"<b>Paris</b>"}'}
    assert sent.value.post_data_json["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "rain"}'},
    ]
    assert page.inner_text(".tool .result") == '{"sky": "rain"}' and texts(page)[-1] == "It rains."
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.locator(".call").count() == 2 and page.locator(".results").count() == 0
    page.locator(".tool").hover()
    page.locator(".tool").get_by_role("button", name="Edit").click()
    page.fill(".results textarea", "sun")
    page.press(".results textarea", "Enter")
    finished(page)
    assert page.inner_text(".tool .result") == "sun" and page.locator(".place").inner_text() == "2/2"


@needs_browser
def test_files_are_sent_with_a_message(open_page, tmp_path):
    page = open_page()
    says(page, "ok")
    fenced = "a\n```\nb"
    files = [
        {"name": "notes.md", "mimeType": "text/markdown", "buffer": fenced.encode()},
        {"name": "tool.py", "mimeType": "", "buffer": b"print(1)\n"},
        {"name": "binary.bin", "mimeType": "", "buffer": b"\xff\xfe\x00"},
    ]
    page.set_input_files("#pick", files)
    wait_until(lambda: "binary.bin: it is neither a text in UTF-8" in page.inner_text("#toast"), 5, "a file that is not text is refused")
    page.set_input_files("#pick", [{"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * ((1 << 20) + 1)}])
    wait_until(lambda: "big.txt: it is larger than 1 MiB" in page.inner_text("#toast"), 5, "a file that is too large is refused")
    assert page.locator("#files li").all_inner_texts() == ["notes.md", "tool.py"]
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is in them?")
    finished(page)
    expected = "notes.md:\n````\na\n```\nb\n````\n\ntool.py:\n```\nprint(1)\n```\n\nWhat is in them?"
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": expected}]
    assert page.locator(".user .files li").all_inner_texts() == ["notes.md", "tool.py"] and page.locator("#files li").count() == 0


@pytest.mark.real_models
@needs_browser
def test_the_models_own_values_and_the_progress_of_a_prompt_are_shown(open_page, server):
    page = open_page()
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert "sampling" in server.get("/v1/models").json()["data"][0]
    told = lambda route: route.fulfill(json={"data": [{"id": "m", "loaded": True, "max_model_len": 8192, "sampling": own}]})
    page.route("**/v1/models", told)
    page.reload()
    page.wait_for_selector("#model:enabled")
    page.click("#open")
    shown = {name: page.get_attribute(f"[name={name}]", "placeholder") for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    assert shown == {"temperature": "0.6", "top_k": "20", "top_p": "0.95", "min_p": "0", "seed": "random"}
    page.fill("[name=temperature]", "1.5")
    page.click("#defaults")
    page.click("#close")
    page.unroute("**/v1/models")
    page.reload()
    page.wait_for_selector("#model:enabled")
    # The page shows the progress of a long prompt.
    seen = []
    page.expose_function("seen", lambda text: seen.append(text))
    page.evaluate("""() => new MutationObserver(() => {
      const text = document.querySelector(".waiting")?.textContent;
      if (text) window.seen(text);
    }).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true })""")
    parameters(page, max_completion_tokens=2)
    ask(page, "word " * 1500)
    page.wait_for_selector("#stop:visible")
    page.wait_for_selector("#send:visible", timeout=90_000)
    read = [re.fullmatch(r"Reading the prompt: ([\d,]+) of (1,5\d\d) tokens", text) for text in seen]
    counts = [int(found[1].replace(",", "")) for found in read if found]
    assert len(set(counts)) >= 2 and counts == sorted(counts) and counts[-1] > 0, seen


@needs_browser
def test_the_page_is_complete_on_a_phone(open_page):
    page = open_page(PHONE, has_touch=True, is_mobile=True)
    says(page, "An answer")
    ask(page, "A question")
    finished(page)
    assert not page.is_visible("#sidebar")
    page.tap("#show")
    page.wait_for_selector("#sidebar:visible")
    assert titles(page) == ["A question"]
    box = page.locator("#sidebar").bounding_box()
    assert box["x"] == 0 and box["width"] <= PHONE["width"] * 0.9
    page.tap("#new")
    page.wait_for_selector("#sidebar", state="hidden")
    page.wait_for_selector("#empty")
    page.tap("#show")
    page.locator("#list .open").tap()
    page.wait_for_selector("#sidebar", state="hidden")
    assert texts(page) == ["A question", "An answer"]
    page.tap("#show")
    page.get_by_role("button", name="More about").tap()
    place = page.locator("#menu").bounding_box()
    assert place["x"] >= 0 and place["x"] + place["width"] <= PHONE["width"]
    page.get_by_role("menuitem", name="Rename").tap()
    page.fill("#question-input", "Renamed")
    page.tap("#question-yes")
    listed(page, "Renamed")
