"""The chat page manages the server's models: it lists, loads, unloads, fetches and deletes them, and base models continue texts."""

import re

import pytest
from chat_page import PHONE, answers, ask, chunk, finished, needs_browser, parameters
from harness import Server, wait_until
from hub import REPOSITORY, Hub
from test_keys import Keys, bearer
from test_page_accessible import check, needs_packages
from tiny import VOCAB, Tiny

TEMPLATE = {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
# A vocabulary for any text: each byte is a token.
BYTES = {
    "tokenizer.ggml.tokens": [f"<0x{byte:02X}>" for byte in range(256)] + [f"word{i} " for i in range(VOCAB - 256)],
    "tokenizer.ggml.token_type": [6] * 256 + [1] * (VOCAB - 256),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model that chats, a base model, and a hub with a third one."""
    folder = tmp_path_factory.mktemp("models")
    Tiny("llama").write(folder / "chats.gguf", metadata=BYTES | TEMPLATE)
    Tiny("llama").write(folder / "base.gguf", metadata=BYTES)
    Tiny("llama").write(folder / "far.gguf", metadata=BYTES | TEMPLATE)
    source = lambda name: f"source = {{ type = 'file', path = '{folder}/{name}.gguf' }}"
    entries = [f"[[models]]\nid = '{name}'\n{source(name)}\n" for name in ("base", "chats")]
    (folder / "models.toml").write_text("".join(entries))
    hub = Hub({"far-Q8_0.gguf": (folder / "far.gguf").read_bytes(), "mmproj.gguf": b"x"})
    yield folder, hub
    hub.stop()


@pytest.fixture(scope="module")
def server(place):
    folder, hub = place
    settings = {"SERVER__MODELS_DIR": str(folder / "store"), "SERVER__DEFAULT_MODELS": "base", "ENGINE__THREADS": "1"}
    with Server(settings, ("--config", str(folder / "models.toml")), env={"HF_ENDPOINT": hub.url}) as running:
        yield running


FETCHED = f"hf:{REPOSITORY}/far-Q8_0.gguf"


def search(server, query="", **kwargs):
    return server.get("/admin/catalogue" + query, **kwargs)


def test_the_catalogue_can_be_searched(server):
    found = search(server).json()
    ids = [model["id"] for model in found["data"]]
    assert len(ids) >= 40 and "base" not in ids, "a local file cannot be fetched"
    assert found["device"]["total"] >= found["device"]["free"] > 0 and found["hub_error"] is None
    (one,) = search(server, "?search=qwen3+0.6b").json()["data"]
    assert one["id"] == "qwen3:0.6b" and one["bytes"] == 600_000_000 and one["needed"] == 750_000_000 + (256 << 20)
    assert (one["source"], one["base"], one["on_disk"], one["partial"]) == ("catalogue", False, False, 0)
    assert search(server, "?search=270m").json()["data"][0]["base"] is True
    for query, param in (("?hub=1", "hub"), ("?serach=x", "serach"), ("?search=" + "x" * 201, "search")):
        reply = search(server, query)
        assert reply.status == 400 and reply.error["param"] == param


def test_the_hub_is_searched_if_asked_for(server, place):
    hub = place[1]
    before = len(hub.asked)
    assert search(server, "?search=tiny").json()["data"][0]["id"] == "tinyllama:1.1b" and len(hub.asked) == before
    found = search(server, "?search=tiny&hub=true").json()
    assert [model["id"] for model in found["data"]] == ["tinyllama:1.1b", REPOSITORY], "a name that cannot be fetched is left out"
    assert found["data"][1]["source"] == "repository" and found["data"][1]["downloads"] == 1234
    (one,) = search(server, f"?search={REPOSITORY}&hub=true").json()["data"]
    assert one["id"] == FETCHED and one["source"] == "hub" and one["bytes"] == len(hub.files["far-Q8_0.gguf"])
    lost = search(server, "?search=no/such&hub=true").json()
    assert lost["data"] == [] and "404" in lost["hub_error"]


def test_only_operators_search(place, tmp_path):
    folder, hub = place
    keys = Keys(tmp_path / "keys.toml")
    user, admin = keys.add("user"), keys.add("ops", "--admin")
    settings = {"SERVER__MODELS_DIR": str(tmp_path / "store"), "SERVER__DEFAULT_MODELS": "chats", **keys.config}
    with Server(settings, ("--config", str(folder / "models.toml"))) as one:
        assert search(one).status == 401
        assert search(one, headers=bearer(user)).error["code"] == "admin_required"
        assert search(one, headers=bearer(admin)).status == 200


def manager(page):
    """Opens the list of models, and waits until it is complete."""
    page.click("#manage")
    page.wait_for_selector("#models[open]")
    wait_until(lambda: "result" in page.inner_text("#found-said"), 10, "the catalogue is listed")


def row(page, name, where="served"):
    return page.locator(f"#{where} li").filter(has=page.locator(f"strong:text-is('{name}')"))


def press(page, label, name):
    page.get_by_role("button", name=f"{label} {name}", exact=True).click()


@needs_browser
def test_models_are_listed_loaded_chosen_and_unloaded(open_page, server):
    page = open_page()
    assert page.input_value("#model") == "base", "it is loaded"
    assert page.locator("#model option").all_inner_texts() == ["chats (not loaded)", "base · base model"]
    manager(page)
    assert row(page, "base").locator(".mark.on").inner_text() == "loaded"
    wait_until(lambda: "base model" in row(page, "base").inner_text(), 5, "a base model is marked")
    wait_until(lambda: "KiB on disk" in row(page, "chats").inner_text(), 5, "the size is shown")
    press(page, "Load", "chats")
    wait_until(lambda: row(page, "chats").locator(".mark.on").count() == 1, 20, "the model is loaded")
    assert page.evaluate("document.activeElement.ariaLabel") == "Unload chats", "the focus stays in the row"
    press(page, "Default", "chats")
    assert page.get_by_role("button", name="Default chats").get_attribute("aria-pressed") == "true"
    press(page, "Use", "chats")
    page.wait_for_selector("#models", state="hidden")
    assert page.input_value("#model") == "chats" and page.evaluate("document.activeElement.id") == "prompt"
    manager(page)
    press(page, "Unload", "chats")
    wait_until(lambda: row(page, "chats").locator(".mark.on").count() == 0, 20, "the model is unloaded")
    press(page, "Delete", "chats")
    page.click("#question-yes")
    wait_until(lambda: "local file" in page.inner_text("#models-wrong"), 10, "the server says why it keeps the file")
    page.keyboard.press("Escape")
    page.click("#new")
    page.reload()
    page.wait_for_selector("#model:enabled")
    assert page.input_value("#model") == "chats", "new chats begin with the default"


@needs_browser
def test_a_model_that_is_being_unloaded_can_be_deleted_next(open_page):
    """The deletion waits for the unloading, and its answer is shown."""
    page = open_page()
    manager(page)
    press(page, "Load", "chats")
    wait_until(lambda: row(page, "chats").locator(".mark.on").count() == 1, 20, "the model is loaded")
    held = []
    page.route("**/admin/models/unload", lambda route: held.append(route))
    press(page, "Unload", "chats")
    wait_until(lambda: "working…" in row(page, "chats").inner_text(), 10, "the row says so")
    press(page, "Delete", "chats")
    page.click("#question-yes")
    page.wait_for_timeout(300)
    assert page.inner_text("#models-wrong") == ""
    held[0].continue_()
    wait_until(lambda: "local file" in page.inner_text("#models-wrong"), 10, "the server says why it keeps the file")
    assert row(page, "chats").locator(".mark.on").count() == 0, "it was unloaded"


@needs_browser
def test_a_model_is_found_fetched_with_progress_and_deleted(open_page, server, place):
    hub = place[1]
    page = open_page()
    manager(page)
    page.fill("#words", "tiny")
    page.check("#hub")
    page.keyboard.press("Enter")
    press(page, "Show models", REPOSITORY)
    found = row(page, FETCHED, "found")
    found.wait_for()
    assert "fits" in found.inner_text() and "KiB" in found.inner_text() and page.locator("#found li").count() == 1
    hub.gate.clear()
    press(page, "Fetch", FETCHED)
    wait_until(lambda: re.search(r"[\d.]+ KiB of [\d.]+ KiB", found.inner_text()), 10, "the progress is shown")
    assert 0 < found.locator("progress").evaluate("(bar) => bar.value / bar.max") < 1
    page.keyboard.press("Escape")
    manager(page)
    assert found.locator("progress").count() == 1, "it goes on while the dialog is closed"
    press(page, "Cancel", FETCHED)
    page.get_by_role("button", name=f"Continue {FETCHED}", exact=True).wait_for()
    assert "% on disk" in found.inner_text()
    hub.gate.set()
    states = lambda: [model["state"] for model in server.get("/admin/models").json()["data"]]
    wait_until(lambda: "downloading" not in states(), 10, "the download has ended")
    press(page, "Continue", FETCHED)
    row(page, FETCHED).wait_for()
    wait_until(lambda: "on disk" in found.inner_text() and found.locator("button").count() == 0, 10, "it is on disk")
    assert page.locator(f"#model option[value='{FETCHED}']").count() == 1
    press(page, "Delete", FETCHED)
    page.click("#question-yes")
    row(page, FETCHED).wait_for(state="detached")
    page.get_by_role("button", name=f"Fetch {FETCHED}", exact=True).wait_for()
    assert server.get(f"/v1/models/{FETCHED.replace('/', '%2F')}").status == 404


@needs_browser
def test_a_model_in_use_is_unloaded_only_if_the_user_insists(open_page):
    page = open_page()
    manager(page)
    sent = []
    refusal = {"error": {"message": "the model `base` is in use by 1 requests", "code": "model_in_use"}}

    def unload(route):
        sent.append(route.request.post_data_json)
        return route.fulfill(status=200 if sent[-1].get("force") else 409, json={} if sent[-1].get("force") else refusal)

    page.route("**/admin/models/unload", unload)
    press(page, "Unload", "base")
    page.wait_for_selector("#question[open]")
    page.click("#question-yes")
    insisted = [{"model": "base"}, {"model": "base", "force": True}]
    # The page's requests are answered while it is asked for something.
    wait_until(lambda: page.is_visible("#models") and sent == insisted, 5, "the second request insists")


@needs_browser
def test_without_the_right_to_manage_the_list_only_informs(open_page):
    refusal = {"error": {"message": "this API key may not manage models", "code": "admin_required"}}
    page = open_page(setup=lambda page: page.route("**/admin/**", lambda route: route.fulfill(status=403, json=refusal)))
    page.click("#manage")
    wait_until(lambda: page.inner_text("#models-about") == "this API key may not manage models", 5, "the server says why")
    assert page.is_hidden("#more") and page.get_by_role("button", name="Load").count() == 0
    press(page, "Use", "chats")
    assert page.input_value("#model") == "chats"


@needs_browser
def test_abilities_are_marked(open_page):
    able = {"capabilities": ["completion", "tools", "thinking", "vision"]}
    page = open_page(setup=lambda page: page.route("**/api/show", lambda route: route.fulfill(json=able)))
    manager(page)
    marks = lambda: row(page, "chats").locator(".mark").all_inner_texts()
    wait_until(lambda: {"tools", "reasoning", "pictures"} <= set(marks()), 5, "abilities are marked")
    assert "tools" not in row(page, "base").inner_text(), "a base model takes no tools"


@needs_browser
def test_a_base_model_continues_each_text(open_page):
    page = open_page()
    page.select_option("#model", "base")
    assert page.get_attribute("#prompt", "placeholder") == "Write a text to continue" and "does not chat" in page.inner_text("#hint")
    assert "go on" in page.inner_text("#empty") and page.get_attribute("[name=max_completion_tokens]", "placeholder") == "256"
    parameters(page, temperature=0, max_completion_tokens=4, system="Be brief.", tools='[{"name": "f"}]')
    for text in ("Once upon a time", "The end"):
        with page.expect_request("**/v1/completions") as sent:
            ask(page, text)
        turn = finished(page)
        body = sent.value.post_data_json
        assert body["prompt"] == text and body["max_tokens"] == 4 and not {"messages", "tools", "max_completion_tokens"} & body.keys()
        assert turn.locator(".error").count() == 0 and "tokens of context" in turn.locator(".note").inner_text()
    before = turn.locator(".text").text_content()
    with page.expect_request("**/v1/completions") as sent:
        page.get_by_role("button", name="Continue").click()
    finished(page)
    prompt = sent.value.post_data_json["prompt"]
    assert prompt.startswith("The end") and len(prompt) >= len("The end" + before.strip())
    page.click("#curl")
    wait_until(lambda: "/v1/completions" in page.evaluate("navigator.clipboard.readText()"), 5, "curl gets the same endpoint")


@needs_browser
def test_the_first_answer_has_the_total_of_the_context(open_page, server):
    server.post("/admin/models/unload", {"model": "chats"})
    page = open_page()
    page.select_option("#model", "chats")
    assert page.locator("#model option").first.inner_text() == "chats (not loaded)"
    parameters(page, temperature=0, max_completion_tokens=4)
    ask(page, "Hi")
    turn = finished(page)
    assert re.search(r"\d+ of 256 tokens of context", turn.locator(".note").inner_text())
    assert page.locator("#model option").first.inner_text() == "chats"


@needs_browser
def test_a_call_has_no_speed(open_page):
    page = open_page()
    page.select_option("#model", "chats")
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 16, "total_tokens": 20}}
    answers(page, chunk(tool_calls=[call]), chunk("tool_calls"), usage, "[DONE]")
    ask(page, "Call it.")
    note = finished(page).locator(".note").inner_text()
    assert "16 tokens" in note and "tokens/s" not in note, note


@needs_browser
def test_wrong_parameters_are_named_when_their_field_is_left(open_page):
    page = open_page()
    page.select_option("#model", "chats")
    page.click("#open")
    for name, value, told in (
        ("temperature", "3", "from 0 to 2, not 3"),
        ("max_completion_tokens", "0", "at least 1"),
        ("top_k", "1.5", "whole number"),
        ("stop", "a\nb\nc\nd\ne", "5 stop texts"),
        ("tools", "[{", "must be JSON"),
    ):
        page.fill(f"[name={name}]", value)
        page.press(f"[name={name}]", "Tab")
        wrong = page.locator(f".field:has([name={name}]) .wrong")
        assert told in wrong.inner_text() and page.get_attribute(f"[name={name}]", "aria-invalid") == "true"
        sent = []
        page.on("request", lambda request: sent.append(request.url) if "completions" in request.url else None)
        ask(page, "Hi")
        assert page.locator(".turn").count() == 0 and sent == [], "nothing is sent"
        page.fill(f"[name={name}]", "")
        assert wrong.count() == 0
        page.fill("#prompt", "")


@needs_browser
def test_a_note_covers_no_button(open_page):
    page = open_page()
    page.select_option("#model", "chats")
    text = "\n\n".join(f"Paragraph {i}." for i in range(60))
    answers(page, chunk(content=text), chunk("stop"), "[DONE]")
    ask(page, "Go on.")
    finished(page)
    page.evaluate("document.getElementById('scroll').scrollTop = 0")
    page.wait_for_selector("#latest:visible")
    page.locator("#curl").click()
    page.wait_for_selector("#toast:not(:empty)")
    page.click("#latest")
    boxes = [page.locator(one).bounding_box() for one in ("#toast", "header", "footer")]
    assert boxes[0]["y"] >= boxes[1]["y"] + boxes[1]["height"] and boxes[0]["y"] + boxes[0]["height"] <= boxes[2]["y"]


@needs_browser
@needs_packages
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["desktop", "phone"])
def test_the_list_of_models_is_accessible(open_page, viewport, scheme):
    page = open_page(viewport, scheme)
    manager(page)
    check(page, "models")
    assert page.evaluate("document.querySelector('#models').scrollWidth <= document.querySelector('#models').clientWidth")
    page.keyboard.press("Escape")
    page.select_option("#model", "base")
    check(page, "a base model")
