"""The chat page with a model that reads pictures, from the attached file to the answer."""

import pytest
from chat_page import ask, finished, needs_browser
from harness import Server, wait_until
from test_pictures import TEMPLATE, encoded, entry
from tiny_vision import picture, write_encoder, write_language

pytestmark = needs_browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sees")
    (folder / "chat.jinja").write_text(TEMPLATE)
    write_language(folder / "eyes.gguf")
    write_encoder(folder / "mmproj-eyes.gguf")
    (folder / "config.toml").write_text('[server]\ndefault_models = ["eyes"]\n' + entry("eyes", folder / "eyes.gguf", folder))
    with Server({"ENGINE__BACKEND": "cpu"}, ("--config", str(folder / "config.toml"))) as server:
        yield server


def test_a_picture_is_attached_answered_and_asked_about_again(server, open_page):
    page = open_page()
    file = {"name": "a.png", "mimeType": "image/png", "buffer": picture(112, 112)}
    page.set_input_files("#pick", [file])
    wait_until(lambda: page.locator("#files li").count() == 1, 10, "the picture is read")
    ask(page, "What is it?")
    finished(page)
    assert encoded(server) == {"eyes": 1}
    page.reload()
    page.wait_for_selector("#model:enabled")
    page.wait_for_selector(".thumbnail")
    ask(page, "And where?")
    finished(page)
    assert encoded(server) == {"eyes": 1}, "the picture of the first question is not encoded again"
