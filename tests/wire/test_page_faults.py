"""The chat page under bad conditions: no server, a storage that refuses writes, a closed tab, a phone. Nothing is lost."""

import json
import re

import pytest
from chat_page import PHONE, answers, ask, chunk, finished, needs_browser, parameters, rows, says, tab
from harness import MODEL, wait_until
from test_page_conversations import listed, menu, send, settled, texts

COMPLETIONS = "**/v1/chat/completions"
COUNT = "Count from one to a thousand, in words."
REFUSE = """() => {
  window.put ??= IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = () => { throw new DOMException("the disk is full", "QuotaExceededError"); };
}"""
ACCEPT = "() => { IDBObjectStore.prototype.put = window.put; }"


@needs_browser
def test_without_a_server_nothing_is_sent_and_the_model_stays(open_page):
    page = open_page()
    send(page, "first", "one")
    page.unroute(COMPLETIONS)
    page.route("**/v1/**", lambda route: route.abort())
    ask(page, "second")
    finished(page)
    page.wait_for_selector("#model:disabled")
    assert page.input_value("#model") == MODEL, "the model list stays as it was"
    sent = []
    page.on("request", lambda request: sent.append(request) if request.url.endswith("completions") else None)
    page.locator(".assistant").last.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#toast:has-text('no model to ask')")
    assert sent == [] and page.locator(".turn").count() == 4
    page.unroute("**/v1/**")
    page.wait_for_selector("#model:enabled")
    send(page, "third", "three")
    assert sent[-1].post_data_json["model"] == MODEL


@needs_browser
def test_a_server_without_models_shows_no_model(open_page):
    page = open_page()
    page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": []}))
    page.reload()
    page.wait_for_selector("#model option:text('no models')", state="attached")
    page.fill("#prompt", "x")
    assert page.input_value("#model") == "" and page.is_disabled("#send")


@needs_browser
def test_a_conversation_keeps_its_model_when_the_list_is_reloaded(open_page):
    two = {"data": [{"id": MODEL, "loaded": True}, {"id": "other", "loaded": False}]}
    page = open_page(setup=lambda page: page.route("**/v1/models", lambda route: route.fulfill(json=two)))
    page.select_option("#model", "other")
    send(page, "to the other", "a")
    page.click("#new")
    page.select_option("#model", MODEL)
    send(page, "to the first", "b")
    listed(page, "to the first", "to the other")
    page.locator("#list .open", has_text="to the other").click()
    wait_until(lambda: page.input_value("#model") == "other", 5, "the conversation's model is selected")
    page.unroute("**/v1/models")
    page.route("**/v1/models", lambda route: route.abort())
    page.click("#open")
    page.fill("[name=key]", "x")
    page.press("[name=key]", "Tab")
    page.wait_for_selector("#model:disabled")
    page.unroute("**/v1/models")
    page.route("**/v1/models", lambda route: route.fulfill(json=two))
    page.wait_for_selector("#model:enabled")
    assert page.input_value("#model") == "other"
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.input_value("#model") == "other"


@needs_browser
def test_messages_that_the_browser_refuses_to_store_are_stored_later(open_page):
    page = open_page()
    page.evaluate(REFUSE)
    send(page, "first", "one")
    page.wait_for_selector("#unkept:has-text('the disk is full')")
    assert rows(page, "messages") == []
    listed(page, "first")
    page.click("#new")
    page.locator("#list .open", has_text="first").click()
    wait_until(lambda: texts(page) == ["first", "one"], 5, "the conversation is still shown")
    assert page.is_visible("#unkept"), "the warning stays until the messages are stored"
    with page.expect_download() as download:
        page.click("#unkept-save")
    saved = json.loads(open(download.value.path()).read())
    assert [message["content"] for message in saved["conversations"][0]["messages"]] == ["first", "one"]
    page.evaluate(ACCEPT)
    send(page, "second", "two")
    settled(page, 4)
    page.wait_for_selector("#unkept", state="hidden")
    # a later write is refused, too, and is repeated without a further message
    page.evaluate(REFUSE)
    send(page, "third", "three")
    page.wait_for_selector("#unkept:visible")
    page.evaluate(ACCEPT)
    page.wait_for_selector("#unkept", state="hidden")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert texts(page) == ["first", "one", "second", "two", "third", "three"]


@needs_browser
def test_a_title_that_cannot_be_stored_is_reported(open_page):
    page = open_page()
    send(page, "first", "one")
    page.click("#new")
    page.evaluate(REFUSE)
    menu(page, "first", "Rename")
    page.fill("#question-input", "second")
    page.click("#question-yes")
    page.wait_for_selector("#toast:has-text('the disk is full')")
    listed(page, "first")


@pytest.mark.real_models
@needs_browser
@pytest.mark.parametrize("locks", [True, False], ids=["locks", "plain HTTP"])
def test_an_answer_whose_tab_is_closed_is_interrupted(open_page, server, locks):
    one = open_page()
    if not locks:
        one.context.add_init_script("Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })")
        one.reload()
        one.wait_for_selector("#model:enabled")
    parameters(one, temperature=0, max_completion_tokens=4000)
    ask(one, COUNT)
    wait_until(lambda: len(one.locator(".assistant > .text").text_content()) > 20, 20, "some text is shown")
    two = tab(open_page, one)
    two.locator("#list .open").click()
    two.wait_for_selector(".assistant.running")
    two.wait_for_timeout(3000)
    assert two.locator(".note").count() == 0, "its own tab is still writing it"
    one.close()
    two.wait_for_selector(".note:has-text('interrupted')", timeout=8000)
    assert two.get_by_role("button", name="Continue").count() == 1
    wait_until(lambda: server.gauge("num_requests_running") == 0, 5, "the request has ended")


@pytest.mark.real_models
@needs_browser
def test_an_answer_continues_while_another_branch_is_shown(open_page):
    page = open_page()
    send(page, "first", "one")
    page.unroute(COMPLETIONS)
    parameters(page, temperature=0, max_completion_tokens=150)
    page.locator(".user").hover()
    page.get_by_role("button", name="Edit").click()
    page.fill(".edit textarea", COUNT)
    page.press(".edit textarea", "Enter")
    wait_until(lambda: texts(page)[-1] not in ("", "one"), 20, "some text is shown")
    page.get_by_role("button", name="Previous version").click()
    assert texts(page) == ["first", "one"] and page.is_visible("#stop"), "the answer continues"
    page.get_by_role("button", name="Next version").first.click()
    finished(page)
    assert "cut at the token limit" in page.locator(".note").last.inner_text() and texts(page)[0] == COUNT


@needs_browser
def test_drafts_stay_with_their_conversations(open_page):
    page = open_page()
    send(page, "first", "one")
    page.fill("#prompt", "for the first")
    page.set_input_files("#pick", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"}])
    page.wait_for_selector("#files li")
    page.click("#new")
    assert page.input_value("#prompt") == "" and page.locator("#files li").count() == 0
    page.fill("#prompt", "for a new one")
    page.locator("#list .open", has_text="first").click()
    wait_until(lambda: page.input_value("#prompt") == "for the first", 5, "the draft is shown again")
    assert page.locator("#files li").all_inner_texts() == ["a.txt"]
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.input_value("#prompt") == "for the first"
    page.click("#new")
    assert page.input_value("#prompt") == "for a new one"


@needs_browser
def test_a_question_after_an_unanswered_call_is_sent_alone(open_page):
    page = open_page()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answers(page, chunk(tool_calls=[call]), chunk("tool_calls"), "[DONE]")
    ask(page, "Call it.")
    finished(page)
    page.unroute(COMPLETIONS)
    says(page, "ok")
    with page.expect_request(COMPLETIONS) as sent:
        ask(page, "Never mind.")
    finished(page)
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "Never mind."}]


@needs_browser
def test_interrupted_reasoning_is_not_continued(open_page):
    page = open_page()
    answers(page, chunk(reasoning_content="Let me think"))
    ask(page)
    turn = finished(page)
    assert "reasoning cannot be continued" in turn.locator(".note").inner_text()
    assert turn.get_by_role("button", name="Continue").count() == 0


@needs_browser
def test_every_level_of_reasoning_can_be_chosen(open_page):
    page = open_page()
    says(page, "ok")
    parameters(page, reasoning_effort="none")
    with page.expect_request(COMPLETIONS) as sent:
        ask(page)
    finished(page)
    assert sent.value.post_data_json["reasoning_effort"] == "none"
    levels = page.locator("[name=reasoning_effort] option").evaluate_all("(all) => all.map((one) => one.value)")
    assert levels == ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"]


@needs_browser
def test_a_conversation_saved_by_the_terminal_is_imported(open_page):
    page = open_page()
    saved = {
        "format": "penstock-chat",
        "model": MODEL,
        "settings": {"system": "Be brief.", "think": "off", "sampling": {"temperature": 0.2, "top_p": None}, "seed": 7, "stop": ["a\nb"]},
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
    }
    load = lambda one: page.set_input_files("#load", {"name": "talk.json", "mimeType": "", "buffer": json.dumps(one).encode()})
    load(saved)
    wait_until(lambda: texts(page) == ["Hi", "Hello!"], 5, "the conversation is imported")
    listed(page, "Hi")
    page.click("#open")
    shown = {name: page.input_value(f"[name={name}]") for name in ("system", "reasoning_effort", "temperature", "top_p", "seed", "stop")}
    assert shown == {"system": "Be brief.", "reasoning_effort": "none", "temperature": "0.2", "top_p": "", "seed": "7", "stop": "a\\nb"}
    load(saved | {"messages": [{"role": "boss", "content": ""}]})
    page.wait_for_selector("#toast:has-text('.messages[0].role is')")


@needs_browser
def test_enter_starts_a_new_line_on_a_touch_screen(open_page):
    page = open_page(PHONE, has_touch=True, is_mobile=True)
    page.tap("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo" and page.locator(".turn").count() == 0
    says(page, "ok")
    page.tap("#send")
    finished(page)
    assert re.fullmatch(r"one\ntwo", texts(page)[0])
