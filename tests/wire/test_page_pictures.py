"""Pictures on the chat page: attached by button, paste and drop, sent as parts of a message, and kept with their conversation."""

import base64
import json
import re
import struct
import zlib

import pytest
from chat_page import PHONE, QUESTION, ask, finished, needs_browser, rows, says
from harness import wait_until
from test_page_accessible import check, needs_packages

EYES = {"id": "eyes", "object": "model", "kind": "chat", "loaded": True, "capabilities": ["completion", "vision"]}
BLIND = {"id": "blind", "object": "model", "kind": "chat", "loaded": True, "capabilities": ["completion"]}
GIF = base64.b64decode("R0lGODlhAQABAIAAAP8AAP///yH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")
LIMIT = 20 << 20


def png(width, height, colour=(200, 30, 30)):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = (b"\0" + bytes(colour) * width) * height
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(lines)) + part(b"IEND", b"")


def file(name, data, kind="image/png"):
    return {"name": name, "mimeType": kind, "buffer": data}


def url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(data, kind="image/png"):
    return {"type": "image_url", "image_url": {"url": url(data, kind)}}


def text(words):
    return {"type": "text", "text": words}


def offers(*models):
    """The server's list of models, as a server says it that serves models which read pictures."""
    return lambda page: page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": models}))


@pytest.fixture
def seeing(open_page):
    """Opens the page with a model that reads pictures. Answers come from the test."""

    def opened(*args, models=(EYES, BLIND), **options):
        page = open_page(*args, setup=offers(*models), **options)
        says(page, "a dot")
        return page

    return opened


def attach(page, *files):
    """Attaches files, and waits until the page has taken or refused them."""
    before = page.locator("#files li").count()
    page.set_input_files("#pick", list(files))
    wait_until(lambda: page.locator("#files li").count() > before or page.inner_text("#toast"), 10, "the files are read")


def attached(page):
    return [" ".join(words.split()) for words in page.locator("#files li").all_inner_texts()]


def sent(page, words):
    """Sends a message. Returns the messages of its request."""
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, words)
    finished(page)
    return request.value.post_data_json["messages"]


def refused(page, words):
    wait_until(lambda: words in page.inner_text("#toast"), 5, words)


@needs_browser
def test_pictures_are_attached_by_button_removed_and_sent(seeing):
    page = seeing()
    assert page.get_attribute("#picture", "title") == "Attach pictures" and page.is_enabled("#picture")
    small, wide, other = png(2, 1), png(640, 480), png(3, 3)
    with page.expect_file_chooser() as chooser:
        page.click("#picture")
    assert page.get_attribute("#pick", "accept") == "image/png,image/jpeg,image/webp,image/gif"
    chooser.value.set_files([file("small.png", small), file("wide.png", wide), file("other.png", other)])
    wait_until(lambda: attached(page) == ["small.png 2 × 1", "wide.png 640 × 480", "other.png 3 × 3"], 5, "each has a thumbnail")
    assert page.locator("#files img").count() == 3
    page.get_by_role("button", name="Remove other.png").click()
    assert len(attached(page)) == 2 and page.evaluate("document.activeElement.id") == "prompt"
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "What is this?")
    finished(page)
    assert request.value.post_data_json == {
        "model": "eyes",
        "messages": [{"role": "user", "content": [part(small), part(wide), text("What is this?")]}],
        "stream": True,
        "stream_options": {"include_usage": True, "include_progress": True},
    }
    assert attached(page) == []
    names = [button.get_attribute("aria-label") for button in page.locator(".user .thumbnail").all()]
    assert names == ["Open small.png, 2 × 1", "Open wide.png, 640 × 480"]


@needs_browser
def test_a_sent_picture_opens_large(seeing):
    page = seeing()
    attach(page, file("wide.png", png(640, 480)))
    sent(page, "What is this?")
    thumbnail = page.locator(".thumbnail")
    wait_until(lambda: thumbnail.locator("img").evaluate("image => image.naturalWidth") == 640, 5, "the thumbnail is loaded")
    assert thumbnail.locator("img").bounding_box()["width"] == 256
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.click("#viewer [data-close]"), lambda: page.mouse.click(5, 5)):
        thumbnail.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#viewer[open]")
        assert page.inner_text("#viewer-title") == "wide.png, 640 × 480"
        large = page.locator("#viewer img")
        assert large.bounding_box()["width"] == 640 and large.get_attribute("alt") == "wide.png"
        close()
        page.wait_for_selector("#viewer", state="hidden")
        assert page.evaluate("document.activeElement.className") == "thumbnail", "the focus returns"
    assert page.locator(".assistant").count() == 1


PASTE = """async (bytes) => {
  const blob = new Blob([new Uint8Array(bytes)], { type: "image/png" });
  await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
}"""
DROP = """(files) => {
  const data = new DataTransfer();
  for (const { name, bytes, type } of files) data.items.add(new File([new Uint8Array(bytes)], name, { type }));
  return data;
}"""


@needs_browser
def test_pictures_are_pasted_and_dropped(seeing):
    page = seeing()
    page.evaluate(PASTE, list(png(4, 2)))
    page.focus("#prompt")
    page.keyboard.press("Control+V")
    wait_until(lambda: attached(page) == ["image.png 4 × 2"], 5, "a picture is pasted into the field")
    page.focus("#scroll")
    page.keyboard.press("Control+V")
    wait_until(lambda: len(attached(page)) == 2, 5, "and into the conversation")
    page.focus("#search")
    page.keyboard.press("Control+V")
    dropped = [{"name": "red.gif", "bytes": list(GIF), "type": "image/gif"}, {"name": "dot", "bytes": list(png(1, 1)), "type": ""}]
    data = page.evaluate_handle(DROP, dropped)
    for event in ("dragover", "drop"):
        page.dispatch_event("#log", event, {"dataTransfer": data})
        assert ("drop" in page.get_attribute("#stage", "class")) == (event == "dragover"), "the place of a drop is marked"
    wait_until(lambda: attached(page)[2:] == ["red.gif 1 × 1", "dot 1 × 1"], 5, "the files are dropped, and no paste into another field")
    (message,) = sent(page, "")
    pasted, *others = message["content"]
    assert pasted["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo") and others[0] == pasted
    assert others[1:] == [part(GIF, "image/gif"), part(png(1, 1))], "the bytes are those of the files, and without a text there is no part"
    assert page.inner_text("#title") == "image.png"


@needs_browser
def test_a_paste_with_a_text_is_the_text(seeing):
    page = seeing()
    page.evaluate("""async (bytes) => {
      const picture = new Blob([new Uint8Array(bytes)], { type: "image/png" });
      const text = new Blob(["a table"], { type: "text/plain" });
      await navigator.clipboard.write([new ClipboardItem({ "image/png": picture, "text/plain": text })]);
    }""", list(png(4, 2)))
    page.focus("#prompt")
    page.keyboard.press("Control+V")
    wait_until(lambda: page.input_value("#prompt") == "a table", 5, "the text is pasted")
    assert attached(page) == []


@needs_browser
def test_the_first_bytes_tell_what_a_file_is(seeing):
    page = seeing()
    made = {}
    for kind in ("image/jpeg", "image/webp"):
        of_canvas = """(kind) => {
          const canvas = Object.assign(document.createElement("canvas"), { width: 8, height: 4 });
          canvas.getContext("2d");
          return canvas.toDataURL(kind).split(",")[1];
        }"""
        made[kind] = base64.b64decode(page.evaluate(of_canvas, kind))
    files = [file("a.png", made["image/jpeg"]), file("b.txt", made["image/webp"], "text/plain"), file("c.jpg", GIF, "image/jpeg")]
    page.set_input_files("#pick", files)
    wait_until(lambda: attached(page) == ["a.png 8 × 4", "b.txt 8 × 4", "c.jpg 1 × 1"], 5, "they are pictures")
    for name, data, kind, why in (
        ("d.png", b"GIF8", "image/png", "d.png: it is not a PNG, JPEG, WebP or GIF picture"),
        ("e.bmp", b"BM" + bytes(60), "image/bmp", "e.bmp: it is not a PNG, JPEG, WebP or GIF picture"),
        ("f.bin", b"\xff\xfe\0", "", "f.bin: it is neither a text in UTF-8 nor a PNG, JPEG, WebP or GIF picture"),
        ("g.png", png(9, 9)[:40], "image/png", "g.png: the browser cannot read this picture"),
    ):
        page.set_input_files("#pick", [file(name, data, kind)])
        refused(page, why)
    attach(page, file("h.svg", b"<svg/>", "image/svg+xml"))
    assert attached(page)[3:] == ["h.svg"], "it is a text"
    (message,) = sent(page, "What are they?")
    kinds = [part(made["image/jpeg"], "image/jpeg"), part(made["image/webp"], "image/webp"), part(GIF, "image/gif")]
    assert message["content"] == [*kinds, text("h.svg:\n```\n<svg/>\n```\n\nWhat are they?")]


@needs_browser
def test_the_limits_are_named(seeing):
    page = seeing()
    whole = png(5, 5)
    page.set_input_files("#pick", [file("large.png", whole + bytes(LIMIT + 1 - len(whole)))])
    refused(page, "large.png: it is larger than 20 MiB, the most for a picture")
    page.set_input_files("#pick", [file("exact.png", whole + bytes(LIMIT - len(whole)))])
    wait_until(lambda: attached(page) == ["exact.png 5 × 5"], 10, "a picture of the largest size is taken")
    page.set_input_files("#pick", [file(f"{i}.png", png(i, 1)) for i in range(1, 21)])
    refused(page, "20.png: a message has at most 20 pictures")
    assert len(attached(page)) == 20 and attached(page)[-1] == "19.png 19 × 1"
    attach(page, file("a.txt", b"a", "text/plain"))
    assert attached(page)[-1] == "a.txt", "texts count for themselves"


@needs_browser
def test_a_model_that_reads_no_pictures_says_which_ones_do(seeing):
    page = seeing(models=(BLIND, EYES, {"id": "look", "object": "model", "loaded": True, "input_modalities": ["text", "image"]}))
    who = "blind reads no pictures; on this server, these do: eyes, look"
    button = page.locator("#picture")
    assert button.get_attribute("aria-disabled") == "true" and button.get_attribute("title") == who
    button.focus()
    page.keyboard.press("Enter")
    refused(page, who)
    page.evaluate("document.getElementById('toast').textContent = ''")
    page.set_input_files("#pick", [file("a.png", png(1, 1))])
    refused(page, "a.png: " + who)
    page.evaluate(PASTE, list(png(4, 2)))
    page.focus("#prompt")
    page.keyboard.press("Control+V")
    refused(page, "image.png: " + who)
    data = page.evaluate_handle(DROP, [{"name": "b.png", "bytes": list(png(1, 1)), "type": "image/png"}])
    page.dispatch_event("#log", "drop", {"dataTransfer": data})
    refused(page, "b.png: " + who)
    assert attached(page) == []
    page.select_option("#model", "look")
    assert page.is_enabled("#picture") and page.get_attribute("#picture", "title") == "Attach pictures"


@needs_browser
def test_a_server_whose_models_read_no_pictures_says_so(seeing):
    page = seeing(models=(BLIND,))
    assert page.get_attribute("#picture", "title") == "blind reads no pictures; no model of this server does"


@needs_browser
def test_a_conversation_with_pictures_goes_on_with_a_text_model_only_if_the_user_agrees(seeing):
    page = seeing()
    attach(page, file("cat.png", png(6, 6)), file("dog.png", png(7, 7)))
    sent(page, "Which is which?")
    page.select_option("#model", "blind")
    ask(page, "And now?")
    page.wait_for_selector("#question[open]")
    assert page.inner_text("#question-text") == (
        "blind reads no pictures; on this server, these do: eyes. Send it only the names of the 2 pictures in this conversation?"
    )
    page.keyboard.press("Escape")
    page.wait_for_selector("#question", state="hidden")
    assert page.locator(".turn").count() == 2 and page.input_value("#prompt") == "And now?", "nothing is sent or lost"
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "And now?")
        page.click("#question-yes")
    finished(page)
    first = {"role": "user", "content": "[picture: cat.png]\n\n[picture: dog.png]\n\nWhich is which?"}
    expected = [first, {"role": "assistant", "content": "a dot"}, {"role": "user", "content": "And now?"}]
    assert request.value.post_data_json["messages"] == expected
    assert len(sent(page, "Again?")) == 5, "it asks once"
    page.select_option("#model", "eyes")
    assert sent(page, "And you?")[0]["content"] == [part(png(6, 6)), part(png(7, 7)), text("Which is which?")]


@needs_browser
def test_edits_branches_and_reloads_keep_pictures(seeing):
    page = seeing()
    one, two = png(6, 6), png(7, 7)
    attach(page, file("one.png", one), file("two.png", two))
    sent(page, "first")
    for press in ("Try again", None):
        with page.expect_request("**/v1/chat/completions") as request:
            if press:
                page.get_by_role("button", name=press).click()
            else:
                page.locator(".user").hover()
                page.locator(".user").get_by_role("button", name="Edit").click()
                page.fill(".edit textarea", "")
                page.press(".edit textarea", "Enter")
        finished(page)
        words = [text("first")] if press else []
        assert request.value.post_data_json["messages"][0]["content"] == [part(one), part(two), *words], press
    wait_until(lambda: len(rows(page, "messages")) == 5, 5, "the branches are stored")
    assert len(rows(page, "pictures")) == 2, "branches share the bytes"
    page.reload()
    page.wait_for_selector("#model:enabled")
    loaded = "() => [...document.querySelectorAll('.thumbnail img')].map((image) => image.naturalWidth)"
    wait_until(lambda: page.evaluate(loaded) == [6, 7], 5, "the pictures are shown again")
    page.locator(".user").get_by_role("button", name="Previous version").click()
    wait_until(lambda: page.evaluate(loaded) == [6, 7], 5, "on the other branch, too")
    says(page, "ok")
    assert sent(page, "second")[0]["content"] == [part(one), part(two), text("first")]
    page.get_by_role("button", name="More about").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.click("#question-yes")
    wait_until(lambda: not rows(page, "conversations") and not rows(page, "pictures"), 5, "they are deleted with their conversation")


@needs_browser
def test_pictures_move_to_another_browser(seeing):
    page = seeing()
    picture = png(6, 6)
    attach(page, file("one.png", picture), file("a.txt", b"a", "text/plain"))
    sent(page, "first")
    wait_until(lambda: len(rows(page, "messages")) == 2, 5, "the conversation is stored")
    with page.expect_download() as download:
        page.click("#export")
    exported = json.loads(open(download.value.path()).read())
    (files,) = [one["attachments"] for one in exported["conversations"][0]["messages"] if "attachments" in one]
    assert {"name": "one.png", "image": url(picture)} in files and {"name": "a.txt", "text": "a"} in files

    other = seeing()
    load = lambda: other.set_input_files("#load", file("chats.json", json.dumps(exported).encode(), "application/json"))
    load()
    other.wait_for_selector(".thumbnail")
    assert sent(other, "second")[0]["content"] == [part(picture), text("a.txt:\n```\na\n```\n\nfirst")]
    for wrong, why in (("data:image/png;base64,?", "attachments: one.png: "), (url(b"GIF8"), "not a PNG, JPEG, WebP or GIF picture")):
        next(one for one in files if "image" in one)["image"] = wrong
        load()
        refused(other, why)
    assert len(rows(other, "conversations")) == 1, "a file with a fault is refused as a whole"


@needs_browser
def test_pictures_of_an_older_database_version_can_be_added(open_page):
    """The page of version 0.1 made the tables without the one of pictures."""
    before = """() => new Promise((resolve) => {
      const request = indexedDB.open("penstock", 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("conversations", { keyPath: "id" });
        request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      };
      request.onsuccess = () => { request.result.close(); resolve(); };
    })"""

    page = open_page(setup=offers(EYES))
    page.evaluate("() => new Promise((resolve) => { indexedDB.deleteDatabase('penstock').onsuccess = resolve; })")
    page.evaluate(before)
    page.reload()
    page.wait_for_selector("#model:enabled")
    says(page, "a dot")
    attach(page, file("one.png", png(6, 6)))
    sent(page, "first")
    wait_until(lambda: len(rows(page, "pictures")) == 1, 5, "the picture is stored")


@needs_browser
def test_a_picture_that_the_browser_has_lost_is_named(seeing):
    page = seeing()
    attach(page, file("one.png", png(6, 6)))
    sent(page, "first")
    wait_until(lambda: len(rows(page, "pictures")) == 1, 5, "the picture is stored")
    page.evaluate("""() => new Promise((resolve) => {
      indexedDB.open("penstock").onsuccess = ({ target: { result } }) => {
        const change = result.transaction("pictures", "readwrite");
        change.objectStore("pictures").clear();
        change.oncomplete = () => { result.close(); resolve(); };
      };
    })""")
    page.reload()
    page.wait_for_selector("#model:enabled")
    lost = "the picture one.png is no longer in this browser"
    wait_until(lambda: page.inner_text(".thumbnail") == lost, 5, "it is named")
    ask(page, "second")
    assert finished(page).locator(".error").inner_text() == lost, "no request without it"
    page.click("#curl")
    refused(page, lost)


@needs_browser
def test_a_picture_moves_nothing_when_it_is_loaded(seeing):
    page = seeing()
    attach(page, file("one.png", png(640, 480)))
    sent(page, "first")
    wait_until(lambda: len(rows(page, "pictures")) == 1, 5, "the picture is stored")
    page.add_init_script("HTMLImageElement.prototype.__defineSetter__('src', () => {})")
    page.reload()
    page.wait_for_selector("#model:enabled")
    box = page.locator(".thumbnail img").bounding_box()
    assert (box["width"], box["height"]) == (256, 192), "its place is there before its bytes"


@needs_browser
def test_a_curl_line_has_the_pictures(seeing):
    page = seeing()
    attach(page, file("one.png", png(6, 6)))
    page.fill("#prompt", QUESTION)
    page.click("#curl")
    wait_until(lambda: url(png(6, 6)) in page.evaluate("navigator.clipboard.readText()"), 5, "the line has the picture")
    body = re.search(r"-d '(.*)'$", page.evaluate("navigator.clipboard.readText()"), re.S)[1]
    assert json.loads(body)["messages"] == [{"role": "user", "content": [part(png(6, 6)), text(QUESTION)]}]


@needs_browser
@needs_packages
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["desktop", "phone"])
def test_pictures_are_accessible(seeing, viewport, scheme):
    is_phone = viewport is PHONE
    page = seeing(viewport, scheme, has_touch=is_phone, is_mobile=is_phone)
    attach(page, file("wide.png", png(1600, 900)), file("tall.png", png(30, 900)), file("a.txt", b"a", "text/plain"))
    check(page, "attached pictures")
    sent(page, "What are they?")
    check(page, "sent pictures")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".thumbnail").first.click()
    page.wait_for_selector("#viewer[open]")
    check(page, "a large picture")
    box = page.locator("#viewer").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"] and box["y"] + box["height"] <= viewport["height"]
    page.keyboard.press("Escape")
    page.select_option("#model", "blind")
    check(page, "a model that reads no pictures")
